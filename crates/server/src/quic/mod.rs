//! HTTP/3 beside TCP: the same port over UDP, one quinn endpoint a worker.
//!
//! A request is early until its connection's handshake is complete. The flight's claim is settled
//! before TLS accepts early data at all ([`accept`]), and each request passes the gate as over TCP
//! ([`request`]).

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use firstflight_quic::{AddressTokens, ResetKey, ServerCrypto, SpentTokens, Steering};
use firstflight_tls::AcceptorConfig;
use quinn::{
    Endpoint, EndpointConfig, Incoming, ServerConfig, ValidationTokenConfig, VarInt, crypto,
};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tracing::debug;

use arrivals::Arrivals;
use door::{Door, Entry, Handshaking};
use strays::Strays;

use crate::keys::TicketRing;
use crate::server::{Shared, Stop};
use crate::{ServerError, keys};

mod accept;
mod ahead;
mod arrivals;
mod body;
mod connection;
mod door;
mod endpoint;
mod halves;
mod http3;
mod ping_pong;
mod ports;
mod request;
mod socket;
mod strays;
mod streams;

/// All that listens on UDP.
pub(crate) struct Front {
    workers: Vec<Worker>,
    door: Arc<Door>,
    tokens: AddressTokens,
}

/// What connections are told, as one configuration has it.
pub(crate) struct Terms {
    pub(crate) crypto: Arc<ServerCrypto>,
    /// With cryptography that refuses early data.
    config: ServerConfig,
}

/// Address tokens, and which of them are spent. They outlive configurations.
pub(crate) struct Tokens {
    tokens: AddressTokens,
    spent: Arc<SpentTokens>,
}

/// An endpoint, on one of a port's sockets.
#[derive(Clone)]
struct Worker {
    endpoint: Endpoint,
    /// What comes in on it, where flights are claimed in a store.
    arrivals: Option<Arc<Arrivals>>,
}

/// Binds a port's sockets, inside a tokio runtime.
///
/// # Errors
/// [`ServerError::UdpInUse`], [`ServerError::AddressForbidden`] or [`ServerError::Listen`].
pub(crate) fn bind(address: SocketAddr) -> Result<Vec<UdpSocket>, ServerError> {
    ports::bind(address, steering())
}

/// One worker a worker thread.
fn steering() -> Steering {
    let workers = tokio::runtime::Handle::current().metrics().num_workers();
    Steering::new(u8::try_from(workers).unwrap_or(u8::MAX))
}

impl Worker {
    /// What was seen of a connection that does not begin is not for another one with its id.
    fn forget(&self, incoming: &quinn::Incoming) {
        if let Some(arrivals) = &self.arrivals {
            arrivals.forget(incoming);
        }
    }
}

impl Tokens {
    /// Sealed under the ring's keys.
    pub(crate) fn new(ring: &TicketRing) -> Self {
        Self {
            tokens: AddressTokens::new(ring.keys().clone(), keys::now),
            spent: Arc::new(SpentTokens::new(SPENT_TOKENS, keys::now)),
        }
    }
}

impl Terms {
    /// What a configuration tells connections.
    ///
    /// # Errors
    /// [`ServerError::Tls`].
    pub(crate) fn new(
        tls: AcceptorConfig,
        tokens: &Tokens,
        ring: &TicketRing,
        settings: &firstflight_config::ServerConfig,
    ) -> Result<Self, ServerError> {
        let (http3, limits) = (&settings.http3, &settings.limits);
        // What a client remembers of HTTP/3's settings beside the transport's.
        let bound_to = limits.header_size.to_be_bytes();
        let crypto = ServerCrypto::with_settings(tls, &bound_to)?;
        let refusing = crypto.for_connection(Box::new(|_| false), None);
        let mut config = ServerConfig::new(refusing, Arc::new(tokens.tokens.clone()));
        config.transport_config(Arc::new(endpoint::transport(http3, limits)));
        let mut validation = ValidationTokenConfig::default();
        validation
            .lifetime(http3.token_lifetime.unwrap_or(ring.lifetime()))
            .log(tokens.spent.clone())
            .sent(TOKENS);
        config
            .validation_token_config(validation)
            .max_incoming(INCOMING)
            .incoming_buffer_size(INCOMING_BYTES)
            .incoming_buffer_size_total(ALL_INCOMING_BYTES);
        Ok(Self { crypto, config })
    }

    /// What a connection with this cryptography is told.
    fn server_config(&self, crypto: Arc<dyn crypto::ServerConfig>) -> ServerConfig {
        let mut config = self.config.clone();
        config.crypto = crypto;
        config
    }
}

impl Front {
    /// Opens endpoints on the sockets of each port.
    ///
    /// # Errors
    /// [`ServerError::Listen`].
    pub(crate) fn open(
        ports: Vec<(SocketAddr, Vec<UdpSocket>)>,
        terms: &Terms,
        tokens: &Tokens,
        settings: &firstflight_config::ServerConfig,
    ) -> Result<Self, ServerError> {
        let http3 = &settings.http3;
        let mut random = [0; 32];
        getrandom::fill(&mut random).expect("the system gives random bytes");
        let steering = steering();
        let mut endpoints = EndpointConfig::new(Arc::new(ResetKey::new(random)));
        // quinn would name drafts too, whose keys we do not have.
        endpoints.supported_versions(vec![1]);
        let door = Door::new(http3.retry_above, http3.refuse_above);
        let mut front = Self { workers: Vec::new(), door, tokens: tokens.tokens.clone() };
        for (address, sockets) in ports {
            let strays = (sockets.len() > 1).then(|| Arc::new(Strays::new(steering)));
            for (worker, socket) in (0..).zip(sockets) {
                let (server, endpoints) = (terms.config.clone(), endpoints.clone());
                let arrivals = settings.store.as_ref().map(|_| Arrivals::new());
                let opened = endpoint::open(
                    socket,
                    server,
                    endpoints,
                    (steering, worker),
                    strays.clone(),
                    arrivals.clone(),
                );
                let endpoint = opened.map_err(|reason| ServerError::Listen { address, reason })?;
                front.workers.push(Worker { endpoint, arrivals });
            }
        }
        Ok(front)
    }

    /// Takes up another configuration for what an endpoint decides by itself: tokens and buffers.
    pub(crate) fn take_up(&self, terms: &Terms) {
        for Worker { endpoint, .. } in &self.workers {
            endpoint.set_server_config(Some(terms.config.clone()));
        }
    }

    /// Accepts connections, a task an endpoint. When the server stops, they refuse further ones.
    pub(crate) fn run(
        self: &Arc<Self>,
        server: &Arc<Shared>,
        places: &Arc<Semaphore>,
        stop: &watch::Receiver<Stop>,
        tasks: &mut tokio::task::JoinSet<()>,
    ) {
        for worker in self.workers.clone() {
            let front = self.clone();
            tasks.spawn(front.accept(worker, server.clone(), places.clone(), stop.clone()));
        }
    }

    async fn accept(
        self: Arc<Self>,
        worker: Worker,
        server: Arc<Shared>,
        places: Arc<Semaphore>,
        stop: watch::Receiver<Stop>,
    ) {
        let port = worker.endpoint.local_addr().map_or(0, |address| address.port());
        while let Some(incoming) = worker.endpoint.accept().await {
            if *stop.borrow() != Stop::No {
                incoming.refuse();
                continue;
            }
            let handshaking = match self.door.enter(incoming.remote_address_validated()) {
                Entry::Handshake(handshaking) => handshaking,
                Entry::Retry => {
                    worker.forget(&incoming);
                    // An address that was not shown may always be asked for.
                    let _ = incoming.retry();
                    continue;
                }
                Entry::Ignore => {
                    worker.forget(&incoming);
                    incoming.ignore();
                    continue;
                }
            };
            // There is no backlog to wait in, and a client that is refused has TCP.
            let Ok(place) = places.clone().try_acquire_owned() else {
                worker.forget(&incoming);
                incoming.refuse();
                continue;
            };
            let client = incoming.remote_address();
            let arrivals = worker.arrivals.clone();
            let beginning = Beginning { incoming, handshaking, arrivals, port };
            let serving = connection::serve(server.clone(), self.clone(), beginning, stop.clone());
            tokio::spawn(async move {
                if let Err(error) = serving.await {
                    debug!("{client}: {error}");
                }
                drop(place);
            });
        }
    }

    /// Says when a rush of connections is over. Call it about once a second.
    pub(crate) fn look(&self) {
        self.door.look();
    }

    /// Ends what is left, and sees that the last words leave.
    pub(crate) async fn close(&self) {
        for Worker { endpoint, .. } in &self.workers {
            endpoint.close(VarInt::from_u32(H3_NO_ERROR), b"");
        }
        let idle = async {
            for Worker { endpoint, .. } in &self.workers {
                endpoint.wait_idle().await;
            }
        };
        let _ = timeout(LAST_WORDS, idle).await;
    }
}

/// A connection that begins.
struct Beginning {
    incoming: Incoming,
    handshaking: Handshaking,
    arrivals: Option<Arc<Arrivals>>,
    /// The port it came to.
    port: u16,
}

/// RFC 9114 section 8.1.
const H3_NO_ERROR: u32 = 0x100;

/// Tokens in NEW_TOKEN frames that a connection brings: as many as tickets, one for each connection
/// that it may begin.
const TOKENS: u32 = 2;

/// Connections at a time that wait for the store's word on their flights, for each worker. What
/// comes beyond is ignored, and comes again by itself.
const INCOMING: usize = 4096;

/// Bytes of 0-RTT that such a connection may send meanwhile, more than a client's first window,
/// and all of them together.
const INCOMING_BYTES: u64 = 64 * 1024;
const ALL_INCOMING_BYTES: u64 = 16 * 1024 * 1024;

/// Bytes in which spent tokens are noted, a bit each.
const SPENT_TOKENS: usize = 4 << 20;

/// For the connections' last packets.
const LAST_WORDS: Duration = Duration::from_millis(500);
