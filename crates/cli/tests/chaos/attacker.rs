//! Resends captured flights byte for byte, straight to the nodes' ports.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// What became of copies.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Resent {
    /// A node took the connection.
    pub(crate) sent: u64,
    /// The node answered by a flight of its own: it has processed the copy's ClientHello.
    pub(crate) answered: u64,
}

impl Resent {
    /// Both together.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { sent: self.sent + other.sent, answered: self.answered + other.answered }
    }
}

/// Sends all of these copies, so many at a time. With `closes` every fourth says at once that no
/// more comes, and sees the node give up; the others stay for a while, as a client does that is
/// about to finish the handshake.
pub(crate) async fn resend(
    copies: impl IntoIterator<Item = (SocketAddr, Arc<[u8]>)>,
    at_once: usize,
    closes: bool,
) -> Resent {
    let limit = Arc::new(Semaphore::new(at_once));
    let mut tasks = JoinSet::new();
    let mut total = Resent::default();
    for (number, (node, flight)) in copies.into_iter().enumerate() {
        let permit = limit.clone().acquire_owned().await.unwrap();
        tasks.spawn(async move {
            let resent = copy(node, &flight, number % 4 != 3 || !closes).await;
            drop(permit);
            resent
        });
        while let Some(done) = tasks.try_join_next() {
            total = total.and(done.unwrap());
        }
    }
    while let Some(done) = tasks.join_next().await {
        total = total.and(done.unwrap());
    }
    total
}

/// One copy.
async fn copy(node: SocketAddr, flight: &[u8], stays: bool) -> Resent {
    let mut resent = Resent::default();
    let Ok(Ok(mut tcp)) = timeout(QUIET, TcpStream::connect(node)).await else { return resent };
    let _ = tcp.set_nodelay(true);
    if tcp.write_all(flight).await.is_err() {
        return resent;
    }
    resent.sent = 1;
    if !stays && tcp.shutdown().await.is_err() {
        return resent;
    }
    let mut bytes = [0; 8192];
    resent.answered = u64::from(matches!(timeout(QUIET, tcp.read(&mut bytes)).await, Ok(Ok(1..))));
    match stays {
        true => sleep(STAY).await,
        false => while let Ok(Ok(1..)) = timeout(QUIET, tcp.read(&mut bytes)).await {},
    }
    resent
}

/// Longer than a node takes for a response on a busy machine.
const QUIET: Duration = Duration::from_secs(5);

/// Longer than a request takes to the application.
const STAY: Duration = Duration::from_millis(50);
