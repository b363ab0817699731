//! HTTP/3 beside TCP: the same port over UDP, one quinn endpoint a worker.
//!
//! A request is early until its connection's handshake is complete. The flight's claim is settled
//! before TLS accepts early data at all ([`accept`]), and each request passes the gate as over TCP
//! ([`request`]).

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use firstflight_quic::{AddressTokens, ResetKey, ServerCrypto, SpentTokens, Steering};
use quinn::{Endpoint, EndpointConfig, ServerConfig, ValidationTokenConfig, VarInt, crypto};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tracing::debug;

use crate::keys::TicketRing;
use crate::server::{Shared, Stop};
use crate::{ServerError, keys};

mod accept;
mod body;
mod connection;
mod endpoint;
mod halves;
mod http3;
mod ping_pong;
mod ports;
mod request;
mod streams;

/// All that listens on UDP.
pub(crate) struct Front {
    endpoints: Vec<Endpoint>,
    crypto: Arc<ServerCrypto>,
    /// What all connections are told, with cryptography that refuses early data.
    config: ServerConfig,
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

impl Front {
    /// Opens endpoints on the sockets of each port.
    ///
    /// # Errors
    /// [`ServerError::Listen`].
    pub(crate) fn open(
        ports: Vec<(SocketAddr, Vec<UdpSocket>)>,
        crypto: Arc<ServerCrypto>,
        ring: &TicketRing,
        settings: &crate::ServerConfig,
    ) -> Result<Self, ServerError> {
        let (http3, limits) = (&settings.http3, &settings.limits);
        let tokens = AddressTokens::new(ring.keys().clone(), keys::now);
        let refusing = crypto.for_connection(Box::new(|_| false), None);
        let mut config = ServerConfig::new(refusing, Arc::new(tokens));
        config.transport_config(Arc::new(endpoint::transport(http3, limits)));
        let mut validation = ValidationTokenConfig::default();
        validation
            .lifetime(http3.token_lifetime.unwrap_or(ring.lifetime()))
            .log(Arc::new(SpentTokens::new(SPENT_TOKENS, keys::now)))
            .sent(TOKENS);
        config.validation_token_config(validation);
        let mut random = [0; 32];
        getrandom::fill(&mut random).expect("the system gives random bytes");
        let steering = steering();
        let endpoints = EndpointConfig::new(Arc::new(ResetKey::new(random)));
        let mut front = Self { endpoints: Vec::new(), crypto, config };
        for (address, sockets) in ports {
            for (worker, socket) in (0..).zip(sockets) {
                let (server, endpoints) = (front.config.clone(), endpoints.clone());
                let opened = endpoint::open(socket, server, endpoints, steering, worker);
                let opened = opened.map_err(|reason| ServerError::Listen { address, reason })?;
                front.endpoints.push(opened);
            }
        }
        Ok(front)
    }

    /// What a connection with this cryptography is told.
    fn server_config(&self, crypto: Arc<dyn crypto::ServerConfig>) -> ServerConfig {
        let mut config = self.config.clone();
        config.crypto = crypto;
        config
    }

    /// Accepts connections, a task an endpoint.
    pub(crate) fn run(
        self: &Arc<Self>,
        server: &Arc<Shared>,
        places: &Arc<Semaphore>,
        stop: &watch::Receiver<Stop>,
        tasks: &mut tokio::task::JoinSet<()>,
    ) {
        for endpoint in self.endpoints.clone() {
            let front = self.clone();
            tasks.spawn(front.accept(endpoint, server.clone(), places.clone(), stop.clone()));
        }
    }

    async fn accept(
        self: Arc<Self>,
        endpoint: Endpoint,
        server: Arc<Shared>,
        places: Arc<Semaphore>,
        stop: watch::Receiver<Stop>,
    ) {
        while let Some(incoming) = endpoint.accept().await {
            // There is no backlog to wait in, and a client that is refused has TCP.
            let Ok(place) = places.clone().try_acquire_owned() else {
                incoming.refuse();
                continue;
            };
            let client = incoming.remote_address();
            let serving = connection::serve(server.clone(), self.clone(), incoming, stop.clone());
            tokio::spawn(async move {
                if let Err(error) = serving.await {
                    debug!("{client}: {error}");
                }
                drop(place);
            });
        }
    }

    /// Takes no new connections.
    pub(crate) fn close_door(&self) {
        for endpoint in &self.endpoints {
            endpoint.set_server_config(None);
        }
    }

    /// Ends what is left, and sees that the last words leave.
    pub(crate) async fn close(&self) {
        for endpoint in &self.endpoints {
            endpoint.close(VarInt::from_u32(H3_NO_ERROR), b"");
        }
        let idle = async {
            for endpoint in &self.endpoints {
                endpoint.wait_idle().await;
            }
        };
        let _ = timeout(LAST_WORDS, idle).await;
    }
}

/// RFC 9114 section 8.1.
const H3_NO_ERROR: u32 = 0x100;

/// Tokens in NEW_TOKEN frames that a connection brings: as many as tickets, one for each connection
/// that it may begin.
const TOKENS: u32 = 2;

/// Bytes in which spent tokens are noted, a bit each.
const SPENT_TOKENS: usize = 4 << 20;

/// For the connections' last packets.
const LAST_WORDS: Duration = Duration::from_millis(500);
