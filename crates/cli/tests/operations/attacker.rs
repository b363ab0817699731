//! The attacker: forwards connections, and sends copies of their first flights to the server,
//! immediately and later.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};

pub(crate) struct Attacker {
    pub(crate) address: SocketAddr,
    runtime: Runtime,
    copies: Arc<AtomicU64>,
}

impl Attacker {
    /// Starts an attacker in front of a server.
    pub(crate) fn start(server: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let copies = Arc::new(AtomicU64::new(0));
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let counter = copies.clone();
        runtime.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let counter = counter.clone();
                tokio::spawn(async move {
                    let _ = pass(client, server, counter).await;
                });
            }
        });
        Self { address, runtime, copies }
    }

    /// Sends the last copies. Returns the number of copies with a response.
    pub(crate) fn end(self) -> u64 {
        let last = DELAYS[DELAYS.len() - 1] + Duration::from_secs(1);
        self.runtime.block_on(async { sleep(last).await });
        self.copies.load(Ordering::SeqCst)
    }
}

async fn pass(
    mut client: TcpStream,
    server: SocketAddr,
    counter: Arc<AtomicU64>,
) -> std::io::Result<()> {
    let _ = client.set_nodelay(true);
    let mut flight = Vec::with_capacity(32 * 1024);
    client.read_buf(&mut flight).await?;
    let mut to_server = TcpStream::connect(server).await?;
    let _ = to_server.set_nodelay(true);
    to_server.write_all(&flight).await?;
    // The original first, so that copies are stopped.
    let mut response = Vec::with_capacity(32 * 1024);
    to_server.read_buf(&mut response).await?;
    for delay in DELAYS {
        let (flight, counter) = (flight.clone(), counter.clone());
        tokio::spawn(async move {
            sleep(delay).await;
            if copy(server, &flight).await.is_some() {
                counter.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    client.write_all(&response).await?;
    copy_bidirectional(&mut client, &mut to_server).await?;
    Ok(())
}

/// Sends a copy, and waits until the server has processed it.
async fn copy(server: SocketAddr, flight: &[u8]) -> Option<()> {
    let mut tcp = TcpStream::connect(server).await.ok()?;
    tcp.write_all(flight).await.ok()?;
    let mut bytes = [0; 4096];
    timeout(Duration::from_secs(10), tcp.read(&mut bytes)).await.ok()?.ok()?;
    // Longer than a request takes to reach the application.
    sleep(Duration::from_millis(100)).await;
    Some(())
}

/// Immediately, after the next action of the operator, and after some more.
const DELAYS: [Duration; 3] =
    [Duration::ZERO, Duration::from_millis(700), Duration::from_millis(2500)];
