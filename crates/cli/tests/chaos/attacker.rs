//! Sends copies of captured flights, byte for byte, directly to the nodes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Counts of copies.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CopyCounts {
    /// Copies whose connection a node accepted.
    pub(crate) sent: u64,
    /// Copies to which a node responded with its flight, so that it has processed the ClientHello.
    pub(crate) responses: u64,
}

impl CopyCounts {
    /// Adds two counts.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { sent: self.sent + other.sent, responses: self.responses + other.responses }
    }
}

/// Sends copies, at most `at_once` at a time. With `with_close` every fourth closes its direction
/// immediately and waits until the node gives up. The others stay open for a while, like a client that
/// is about to finish the handshake.
pub(crate) async fn resend(
    copies: impl IntoIterator<Item = (SocketAddr, Arc<[u8]>)>,
    at_once: usize,
    with_close: bool,
) -> CopyCounts {
    let limit = Arc::new(Semaphore::new(at_once));
    let mut tasks = JoinSet::new();
    let mut total = CopyCounts::default();
    for (number, (node, flight)) in copies.into_iter().enumerate() {
        let permit = limit.clone().acquire_owned().await.unwrap();
        tasks.spawn(async move {
            let resent = copy(node, &flight, number % 4 != 3 || !with_close).await;
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

/// Sends one copy.
async fn copy(node: SocketAddr, flight: &[u8], stay_open: bool) -> CopyCounts {
    let mut resent = CopyCounts::default();
    let Ok(Ok(mut tcp)) = timeout(RESPONSE_TIMEOUT, TcpStream::connect(node)).await else {
        return resent;
    };
    let _ = tcp.set_nodelay(true);
    if tcp.write_all(flight).await.is_err() {
        return resent;
    }
    resent.sent = 1;
    if !stay_open && tcp.shutdown().await.is_err() {
        return resent;
    }
    let mut bytes = [0; 8192];
    resent.responses =
        u64::from(matches!(timeout(RESPONSE_TIMEOUT, tcp.read(&mut bytes)).await, Ok(Ok(1..))));
    match stay_open {
        true => sleep(STAY_TIME).await,
        false => while let Ok(Ok(1..)) = timeout(RESPONSE_TIMEOUT, tcp.read(&mut bytes)).await {},
    }
    resent
}

/// Longer than a node takes to respond on a busy machine.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Longer than a request takes to reach the application.
const STAY_TIME: Duration = Duration::from_millis(50);
