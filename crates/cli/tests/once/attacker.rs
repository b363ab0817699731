//! Sends copies of a recorded flight, byte for byte, to all nodes every second.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::runtime;

/// The bytes of a first flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Flight {
    /// All of it.
    Tcp(Vec<u8>),
    /// One datagram after the other.
    Udp(Vec<Vec<u8>>),
}

/// Counts of copies.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Copies {
    /// Copies that were sent completely.
    pub(crate) sent: u64,
    /// Copies to which the node responded.
    pub(crate) responses: u64,
}

/// When copies are sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    /// When a copy states its ticket's exact age.
    pub(crate) exact: Instant,
    /// When the first copies are sent.
    pub(crate) start: Instant,
    /// When the last copies are sent.
    pub(crate) end: Instant,
}

impl Schedule {
    /// Every second; every ten seconds while a copy is far from fresh.
    fn pause(&self, now: Instant) -> Duration {
        let remaining = self.exact.saturating_duration_since(now);
        if remaining > Duration::from_secs(90) { Duration::from_secs(10) } else { SECOND }
    }
}

/// Sends copies to all these nodes. Returns when the last have been handled.
pub(crate) fn send_copies(flight: &Flight, nodes: &[SocketAddr], schedule: Schedule) -> Copies {
    runtime().block_on(async {
        let counts = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let flight = Arc::new(flight.clone());
        let mut copies = JoinSet::new();
        let mut next = schedule.start.max(Instant::now());
        while next < schedule.end {
            sleep_until(next).await;
            for &node in nodes {
                let (flight, counts) = (flight.clone(), counts.clone());
                copies.spawn(async move {
                    if let Some(got_response) = copy(&flight, node).await {
                        counts[0].fetch_add(1, Ordering::SeqCst);
                        counts[1].fetch_add(got_response.into(), Ordering::SeqCst);
                    }
                });
            }
            next += schedule.pause(next);
        }
        while copies.join_next().await.is_some() {}
        let [sent, responses] = [0, 1].map(|index: usize| counts[index].load(Ordering::SeqCst));
        Copies { sent, responses }
    })
}

/// Sends one copy from a new port. Returns whether the node responded, or `None` if the node is not
/// running.
async fn copy(flight: &Flight, node: SocketAddr) -> Option<bool> {
    let mut bytes = vec![0; 1 << 16];
    let got_response = match flight {
        Flight::Tcp(flight) => {
            let mut tcp = timeout(RESPONSE_TIMEOUT, TcpStream::connect(node)).await.ok()?.ok()?;
            let _ = tcp.set_nodelay(true);
            tcp.write_all(flight).await.ok()?;
            let got_response =
                matches!(timeout(RESPONSE_TIMEOUT, tcp.read(&mut bytes)).await, Ok(Ok(1..)));
            // Stays connected, like a client that is about to complete the handshake.
            sleep(STAY_TIME).await;
            got_response
        }
        Flight::Udp(flight) => {
            let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.ok()?;
            udp.connect(node).await.ok()?;
            for datagram in flight {
                udp.send(datagram).await.ok()?;
            }
            let got_response = matches!(timeout(SECOND, udp.recv(&mut bytes)).await, Ok(Ok(_)));
            sleep(STAY_TIME).await;
            got_response
        }
    };
    Some(got_response)
}

const SECOND: Duration = Duration::from_secs(1);

/// Longer than a node needs for a response on a busy machine.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Longer than a request needs to reach the application.
const STAY_TIME: Duration = Duration::from_millis(300);
