//! A cluster as its clients and its attacker see it, and the honest clients.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use firstflight_client::{HttpResponse, Request, Target, connect_tls, http_get};
use firstflight_testkit::{Recorder, until};
use firstflight_tls::{
    ConnectOptions, Connector, ConnectorConfig, EarlyData, Session, Trust, Version,
};
use http::StatusCode;
use tokio::time::timeout;

use crate::application::Application;
use crate::cluster::{ALL, NODES};
use crate::kind::Kind;

/// The addresses of the nodes, with recorders in front and the application behind.
pub(crate) struct ClusterClients {
    /// The kind of servers.
    pub(crate) kind: Kind,
    /// The application.
    pub(crate) application: Application,
    /// In front of each node.
    pub(crate) recorders: Vec<Recorder>,
    slots: Vec<NodeSlot>,
    clients: [Client; 2],
}

/// A client of one HTTP version. Early data is bound to the application protocol of the session.
struct Client {
    connector: Connector,
    sessions: Mutex<VecDeque<Session>>,
}

/// The HTTP version of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Http {
    /// HTTP/1.1.
    One,
    /// HTTP/2.
    Two,
}

/// A node that may be down.
#[derive(Default)]
struct NodeSlot {
    address: Mutex<Option<SocketAddr>>,
    /// Number of clients that it serves.
    clients: AtomicUsize,
}

/// One connection of an honest client.
pub(crate) struct Connection {
    /// The first flight.
    pub(crate) flight: Vec<u8>,
    /// The outcome of its early data.
    pub(crate) early: EarlyData,
    /// The status of the response, or why there was none.
    pub(crate) status: Result<StatusCode, String>,
}

impl ClusterClients {
    /// Clients for a cluster whose certificate is in this file. All nodes are down at first.
    pub(crate) fn new(kind: Kind, certificate: &Path) -> Self {
        let client = |alpn: &str| {
            let connector = Connector::new(ConnectorConfig {
                min_version: Version::Tls13,
                alpn: vec![alpn.into()],
                ..ConnectorConfig::new(Trust::File(certificate.to_owned()))
            });
            Client { connector: connector.unwrap(), sessions: Mutex::default() }
        };
        Self {
            kind,
            application: Application::start(NODES),
            recorders: ALL.map(|_| Recorder::start(None)).into(),
            slots: ALL.map(|_| NodeSlot::default()).into(),
            clients: [client("http/1.1"), client("h2")],
        }
    }

    /// Sets where a node listens from now on. With `None` it is down, and gets no clients.
    pub(crate) fn put(&self, node: usize, address: Option<SocketAddr>) {
        *self.slots[node].address.lock().unwrap() = address;
        // Clients sent before may still connect, and are forwarded to the old address.
        if let Some(address) = address {
            self.recorders[node].forward_to(address);
        }
    }

    /// Where a node listens, for the attacker.
    pub(crate) fn address(&self, node: usize) -> Option<SocketAddr> {
        *self.slots[node].address.lock().unwrap()
    }

    /// Whether a node serves no client.
    pub(crate) fn is_idle(&self, node: usize) -> bool {
        self.slots[node].clients.load(Ordering::SeqCst) == 0
    }

    /// Enters a client at a node that is up, at `node` if possible.
    ///
    /// # Panics
    /// If none comes up.
    pub(crate) fn enter(&self, node: usize) -> NodeClient<'_> {
        let enter = |number: usize| {
            let slot = &self.slots[number];
            slot.clients.fetch_add(1, Ordering::SeqCst);
            let node_client = NodeClient { slot, number };
            let is_up = slot.address.lock().unwrap().is_some();
            is_up.then_some(node_client)
        };
        let mut entered = None;
        until(|| {
            entered = (0..NODES).find_map(|step| enter((node + step) % NODES));
            entered.is_some()
        });
        entered.expect("a node comes up")
    }

    /// One GET on a fresh connection, early if it may be and there is a session.
    pub(crate) async fn get(
        &self,
        node_client: &NodeClient<'_>,
        http: Http,
        target: &str,
        early: bool,
    ) -> Connection {
        let recorder = &self.recorders[node_client.number];
        let client = &self.clients[http as usize];
        let session = client.sessions.lock().unwrap().pop_front();
        let offer = ConnectOptions { host: "localhost".to_owned(), session, early_data: early };
        let url = Target::parse(&format!("https://localhost{target}")).unwrap();
        let mut local = None;
        let exchange = async {
            let connected =
                connect_tls(&client.connector, &offer, recorder.address(), false).await?;
            local = connected.stream.socket().local_addr().ok();
            http_get(connected, &Request::get(url), 1 << 16).await
        };
        let result = timeout(RESPONSE_TIMEOUT, exchange).await;
        let mut connection = Connection {
            flight: local.map(|local| recorder.take_flight(local)).unwrap_or_default(),
            early: EarlyData::NotOffered,
            status: Err("no response".to_owned()),
        };
        match result {
            Err(_) => {}
            Ok(Err(error)) => connection.status = Err(error.to_string()),
            Ok(Ok(response)) => {
                connection.early = response.facts.as_ref().unwrap().early_data;
                connection.status = Ok(response.head.status);
                if response.head.status.is_success() && response.body != target.as_bytes() {
                    connection.status = Err("the response to another request".to_owned());
                }
                client.keep_sessions(response).await;
            }
        }
        connection
    }
}

impl Client {
    async fn keep_sessions(&self, response: HttpResponse) {
        let mut sessions = response.sessions;
        sessions.extend(response.exchange.close(TICKET_TIMEOUT).await);
        let mut kept = self.sessions.lock().unwrap();
        kept.extend(sessions);
        // Keeps the newest sessions; the keys of old ones may be gone.
        let spare = kept.len().saturating_sub(MAX_SESSIONS);
        kept.drain(..spare);
    }
}

/// A client at a node.
pub(crate) struct NodeClient<'a> {
    slot: &'a NodeSlot,
    /// The node.
    pub(crate) number: usize,
}

impl Drop for NodeClient<'_> {
    fn drop(&mut self) {
        self.slot.clients.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A request without a response after this time is lost. Longer than `header_timeout`.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// How long to wait for tickets after the response.
const TICKET_TIMEOUT: Duration = Duration::from_millis(250);

/// How many sessions a client keeps.
const MAX_SESSIONS: usize = 40;
