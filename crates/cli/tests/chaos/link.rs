//! The network link between a node and the store, which can be cut or slow.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::runtime;

/// A forwarder to one address, until the program ends.
pub(crate) struct Link {
    port: u16,
    state: watch::Sender<State>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// Holds all bytes without an error. They arrive when the link is open again, like TCP
    /// retransmissions after a partition.
    Cut,
    /// Delays each direction.
    Slow(Duration),
}

impl Link {
    /// Forwards to this port of 127.0.0.1.
    pub(crate) fn to(port: u16) -> Self {
        let target = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let (state, receiver) = watch::channel(State::Open);
        let port = runtime().block_on(async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let port = listener.local_addr().unwrap().port();
            tokio::spawn(async move {
                while let Ok((near, _)) = listener.accept().await {
                    tokio::spawn(connect(near, target, receiver.clone()));
                }
            });
            port
        });
        Self { port, state }
    }

    /// The port that it listens on.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Cuts the link. Connections stay open.
    pub(crate) fn cut(&self) {
        self.state.send_replace(State::Cut);
    }

    /// Delays each direction.
    pub(crate) fn slow(&self, each_way: Duration) {
        self.state.send_replace(State::Slow(each_way));
    }

    /// Opens the link, and delivers held bytes.
    pub(crate) fn open(&self) {
        self.state.send_replace(State::Open);
    }
}

async fn connect(near: TcpStream, target: SocketAddr, mut state: watch::Receiver<State>) {
    let _ = state.wait_for(|state| *state != State::Cut).await;
    let Ok(far) = TcpStream::connect(target).await else { return };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
    tokio::spawn(pass(near_in, far_out, state.clone()));
    tokio::spawn(pass(far_in, near_out, state));
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut state: watch::Receiver<State>) {
    let mut bytes = vec![0; 1 << 16];
    loop {
        let count = from.read(&mut bytes).await.unwrap_or(0);
        let Ok(now) = state.wait_for(|state| *state != State::Cut).await.map(|state| *state) else {
            return;
        };
        if let State::Slow(each_way) = now {
            sleep(each_way).await;
        }
        if count == 0 || to.write_all(&bytes[..count]).await.is_err() {
            let _ = to.shutdown().await;
            return;
        }
    }
}
