//! The attacker on the path to a node: passes all on, records first flights, and may hold one
//! back.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use crate::runtime;

/// Stands in front of a node. It keeps its port while the node comes and goes.
pub(crate) struct Recorder {
    /// Where honest clients connect.
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    node: Mutex<Option<SocketAddr>>,
    /// By the client's address.
    flights: Mutex<HashMap<SocketAddr, Vec<u8>>>,
    hold: Mutex<Option<Hold>>,
}

struct Hold {
    captured: oneshot::Sender<Vec<u8>>,
    released: oneshot::Receiver<()>,
}

/// A first flight that has not reached its node yet.
pub(crate) struct Held {
    captured: oneshot::Receiver<Vec<u8>>,
    release: oneshot::Sender<()>,
}

impl Held {
    /// Waits for the flight; the other end lets it go to its node.
    pub(crate) async fn flight(self) -> (Vec<u8>, oneshot::Sender<()>) {
        (self.captured.await.expect("a client connects"), self.release)
    }
}

impl Recorder {
    /// Listens until the program ends; passes nothing on before it knows a node.
    pub(crate) fn start() -> Self {
        let shared = Arc::<Shared>::default();
        let address = runtime().block_on(async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let address = listener.local_addr().unwrap();
            let shared = shared.clone();
            tokio::spawn(async move {
                while let Ok((client, peer)) = listener.accept().await {
                    let shared = shared.clone();
                    tokio::spawn(async move { shared.pass(client, peer).await });
                }
            });
            address
        });
        Self { address, shared }
    }

    /// Passes on to this address from now on.
    pub(crate) fn turn_to(&self, node: Option<SocketAddr>) {
        *self.shared.node.lock().unwrap() = node;
    }

    /// What the client at this address sent first: all that it can send unanswered, for it leaves
    /// in one write.
    pub(crate) fn take_flight(&self, client: SocketAddr) -> Vec<u8> {
        self.shared.flights.lock().unwrap().remove(&client).unwrap_or_default()
    }

    /// Holds back the next client's flight.
    pub(crate) fn hold(&self) -> Held {
        let (captured, flight) = oneshot::channel();
        let (release, released) = oneshot::channel();
        *self.shared.hold.lock().unwrap() = Some(Hold { captured, released });
        Held { captured: flight, release }
    }
}

impl Shared {
    async fn pass(&self, mut client: TcpStream, peer: SocketAddr) -> Option<()> {
        let _ = client.set_nodelay(true);
        let mut first = vec![0; 1 << 16];
        let count = client.read(&mut first).await.ok()?;
        first.truncate(count);
        let hold = self.hold.lock().unwrap().take();
        self.flights.lock().unwrap().insert(peer, first.clone());
        if let Some(hold) = hold {
            let _ = hold.captured.send(first.clone());
            let _ = hold.released.await;
        }
        let node = (*self.node.lock().unwrap())?;
        let mut server = TcpStream::connect(node).await.ok()?;
        let _ = server.set_nodelay(true);
        server.write_all(&first).await.ok()?;
        copy_bidirectional(&mut client, &mut server).await.ok()?;
        Some(())
    }
}
