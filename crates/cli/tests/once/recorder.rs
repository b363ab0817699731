//! The recorder between one client and a server. It forwards everything, and keeps the first
//! flight: what the client sends before it gets a response.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::client::Transport;
use crate::runtime;

/// The bytes of a first flight: a TCP stream or datagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Flight {
    /// The stream.
    Tcp(Vec<u8>),
    /// The datagrams in order.
    Udp(Vec<Vec<u8>>),
}

/// Waits for one client and connects it to one server.
pub(crate) struct Recorder {
    /// The address for the client.
    pub(crate) address: SocketAddr,
    tap: Arc<Tap>,
}

struct Tap {
    flight: Mutex<Flight>,
    /// Whether the server has responded, so that the flight is complete.
    responded: AtomicBool,
    /// Whether the flight is forwarded.
    open: watch::Sender<bool>,
}

impl Recorder {
    /// Forwards at once.
    pub(crate) fn start(transport: Transport, server: SocketAddr) -> Self {
        let recorder = Self::closed(transport, server);
        recorder.open();
        recorder
    }

    /// Delays the flight until [`Recorder::open`].
    pub(crate) fn closed(transport: Transport, server: SocketAddr) -> Self {
        let is_quic = transport == Transport::Http3;
        let empty = if is_quic { Flight::Udp(Vec::new()) } else { Flight::Tcp(Vec::new()) };
        let tap = Arc::new(Tap {
            flight: Mutex::new(empty),
            responded: AtomicBool::new(false),
            open: watch::Sender::new(false),
        });
        let passing = tap.clone();
        let address = runtime().block_on(async move {
            if is_quic {
                let near = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
                let address = near.local_addr().unwrap();
                tokio::spawn(async move { pass_datagrams(&passing, near, server).await });
                return address;
            }
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let address = listener.local_addr().unwrap();
            tokio::spawn(async move { pass_stream(&passing, listener, server).await });
            address
        });
        Self { address, tap }
    }

    /// Forwards the flight.
    pub(crate) fn open(&self) {
        self.tap.open.send_replace(true);
    }

    /// The flight so far.
    pub(crate) fn flight(&self) -> Flight {
        self.tap.flight.lock().unwrap().clone()
    }

    /// Whether the server has responded to the flight.
    pub(crate) fn has_response(&self) -> bool {
        self.tap.responded.load(Ordering::SeqCst)
    }
}

impl Tap {
    /// Forwards the client's next bytes; they belong to the flight until the server has responded.
    fn take(&self, bytes: &[u8]) {
        if self.responded.load(Ordering::SeqCst) {
            return;
        }
        match &mut *self.flight.lock().unwrap() {
            Flight::Tcp(all) => all.extend_from_slice(bytes),
            Flight::Udp(all) => all.push(bytes.to_vec()),
        }
    }

    /// Delays the first response until the flight is certainly complete.
    async fn respond(&self) {
        if !self.responded.load(Ordering::SeqCst) {
            sleep(FLIGHT).await;
            self.responded.store(true, Ordering::SeqCst);
        }
    }

    async fn pass(&self) {
        let _ = self.open.subscribe().wait_for(|open| *open).await;
    }
}

/// Maximum time between parts of one flight.
const FLIGHT: Duration = Duration::from_millis(30);

async fn pass_stream(tap: &Tap, listener: TcpListener, server: SocketAddr) -> io::Result<()> {
    let (near, _) = listener.accept().await?;
    drop(listener);
    let _ = near.set_nodelay(true);
    let (mut near_in, mut near_out) = near.into_split();
    let mut bytes = vec![0; 1 << 16];
    // Nothing is lost without a connection to the server: the flight is recorded first.
    let count = near_in.read(&mut bytes).await?;
    tap.take(&bytes[..count]);
    tap.pass().await;
    let far = TcpStream::connect(server).await?;
    let _ = far.set_nodelay(true);
    let (mut far_in, mut far_out) = far.into_split();
    far_out.write_all(&bytes[..count]).await?;
    let up = async {
        while let Ok(count @ 1..) = near_in.read(&mut bytes).await {
            tap.take(&bytes[..count]);
            if far_out.write_all(&bytes[..count]).await.is_err() {
                break;
            }
        }
        let _ = far_out.shutdown().await;
    };
    let down = async {
        let mut bytes = vec![0; 1 << 16];
        if let Ok(count @ 1..) = far_in.read(&mut bytes).await {
            tap.respond().await;
            let _ = near_out.write_all(&bytes[..count]).await;
            let _ = copy(&mut far_in, &mut near_out).await;
        }
        let _ = near_out.shutdown().await;
    };
    tokio::join!(up, down);
    Ok(())
}

async fn pass_datagrams(tap: &Tap, near: UdpSocket, server: SocketAddr) -> io::Result<()> {
    let far = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    far.connect(server).await?;
    let client = watch::Sender::new(None);
    let up = async {
        let mut bytes = vec![0; 1 << 16];
        loop {
            let (count, from) = near.recv_from(&mut bytes).await?;
            client.send_replace(Some(from));
            tap.take(&bytes[..count]);
            tap.pass().await;
            let _ = far.send(&bytes[..count]).await;
        }
    };
    let down = async {
        let mut bytes = vec![0; 1 << 16];
        loop {
            // A stopped server refuses datagrams, which ends nothing.
            let Ok(count) = far.recv(&mut bytes).await else { continue };
            tap.respond().await;
            let to = *client.borrow();
            if let Some(to) = to {
                let _ = near.send_to(&bytes[..count], to).await;
            }
        }
    };
    tokio::select! {
        ended = up => ended,
        () = down => Ok(()),
        () = sleep(MAX_EXCHANGE_TIME) => Ok(()),
    }
}

/// Longer than any exchange.
const MAX_EXCHANGE_TIME: Duration = Duration::from_secs(60);
