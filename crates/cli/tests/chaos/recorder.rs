//! The attacker on the path to a node: forwards everything, records first flights, and can hold one.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use crate::runtime;

/// A recording proxy in front of a node. It keeps its port while the node is down.
pub(crate) struct Recorder {
    /// Where honest clients connect.
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    node: Mutex<Option<SocketAddr>>,
    /// By client address.
    flights: Mutex<HashMap<SocketAddr, Vec<u8>>>,
    hold: Mutex<Option<Hold>>,
}

struct Hold {
    captured: oneshot::Sender<Vec<u8>>,
    released: oneshot::Receiver<()>,
}

/// A first flight that was not forwarded yet.
pub(crate) struct HeldFlight {
    captured: oneshot::Receiver<Vec<u8>>,
    release: oneshot::Sender<()>,
}

impl HeldFlight {
    /// Waits for the flight. Sending on the returned channel forwards it to the node.
    pub(crate) async fn flight(self) -> (Vec<u8>, oneshot::Sender<()>) {
        (self.captured.await.expect("a client connects"), self.release)
    }
}

impl Recorder {
    /// Listens until the program ends. Forwards nothing before a node is set.
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

    /// Forwards to this address from now on.
    pub(crate) fn set_node(&self, node: Option<SocketAddr>) {
        *self.shared.node.lock().unwrap() = node;
    }

    /// Takes the first flight of the client at this address. It is complete, because the client sends it
    /// with one write.
    pub(crate) fn take_flight(&self, client: SocketAddr) -> Vec<u8> {
        self.shared.flights.lock().unwrap().remove(&client).unwrap_or_default()
    }

    /// Holds the flight of the next client.
    pub(crate) fn hold(&self) -> HeldFlight {
        let (captured, flight) = oneshot::channel();
        let (release, released) = oneshot::channel();
        *self.shared.hold.lock().unwrap() = Some(Hold { captured, released });
        HeldFlight { captured: flight, release }
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
