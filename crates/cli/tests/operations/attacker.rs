//! The attacker: forwards connections, and sends copies of their first flights to the server,
//! immediately and later.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use firstflight_testkit::Recorder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

pub(crate) struct Attacker {
    recorder: Recorder,
    copies: Arc<AtomicU64>,
}

impl Attacker {
    /// Starts an attacker in front of a server.
    pub(crate) fn start(server: SocketAddr) -> Self {
        let recorder = Recorder::start(server);
        let copies = Arc::new(AtomicU64::new(0));
        let counter = copies.clone();
        // The server has responded to the original, so that it refuses the copies.
        recorder.on_flight(move |flight| {
            let flight = Arc::<[u8]>::from(flight);
            for delay in DELAYS {
                let (flight, counter) = (flight.clone(), counter.clone());
                tokio::spawn(async move {
                    sleep(delay).await;
                    if copy(server, &flight).await.is_some() {
                        counter.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        });
        Self { recorder, copies }
    }

    /// Where clients connect.
    pub(crate) fn address(&self) -> SocketAddr {
        self.recorder.address()
    }

    /// Sends the last copies. Returns the number of copies with a response.
    pub(crate) fn end(self) -> u64 {
        thread::sleep(DELAYS[DELAYS.len() - 1] + Duration::from_secs(1));
        self.copies.load(Ordering::SeqCst)
    }
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
