//! The network between a node and the store, which can be cut, slow or gone.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::runtime;

/// A forwarder to one address, until the program ends.
pub(crate) struct Pipe {
    port: u16,
    state: watch::Sender<State>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// Nothing arrives, nobody is told. What was sent arrives when it is open again, as TCP sends
    /// again after a partition.
    Cut,
    /// Each way takes so long.
    Slow(Duration),
}

impl Pipe {
    /// Forwards to this port of 127.0.0.1.
    pub(crate) fn to(port: u16) -> Self {
        let target = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let (state, seen) = watch::channel(State::Open);
        let port = runtime().block_on(async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let port = listener.local_addr().unwrap().port();
            tokio::spawn(async move {
                while let Ok((near, _)) = listener.accept().await {
                    tokio::spawn(connect(near, target, seen.clone()));
                }
            });
            port
        });
        Self { port, state }
    }

    /// Where it listens.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Cuts it; connections stay.
    pub(crate) fn cut(&self) {
        self.state.send_replace(State::Cut);
    }

    /// Has each way take so long.
    pub(crate) fn slow(&self, each_way: Duration) {
        self.state.send_replace(State::Slow(each_way));
    }

    /// Lets all pass again, also what was kept.
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
