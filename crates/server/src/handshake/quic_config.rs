//! HTTP/3 beside TCP: the same port over UDP, one quinn endpoint a worker.
//!
//! A request is early until its connection's handshake is complete. The flight's claim is settled
//! before TLS accepts early data at all ([`accept`]), and each request passes the gate as over TCP
//! ([`request`]).

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use firstflight_quic::{AddressTokens, ServerCrypto, SpentTokens, Steering};
use firstflight_tls::AcceptorConfig;
use quinn::{Incoming, ServerConfig, ValidationTokenConfig, VarInt, crypto};

use crate::handshake::initials::InitialPackets;
use crate::listen::handshake_limit::HandshakePermit;

use crate::ServerError;
use crate::handshake::tickets;
use crate::handshake::tickets::TicketRing;
use crate::listen::{quic_endpoint, udp_socket};

pub(crate) use crate::listen::udp::QuicPorts;

/// What connections are told, as one configuration has it.
pub(crate) struct QuicConfig {
    pub(crate) crypto: Arc<ServerCrypto>,
    /// With cryptography that refuses early data.
    pub(crate) config: ServerConfig,
}

/// Address tokens, and which of them are spent. They outlive configurations.
pub(crate) struct QuicTokens {
    pub(crate) tokens: AddressTokens,
    spent: Arc<SpentTokens>,
}

/// Binds a port's sockets, inside a tokio runtime.
///
/// # Errors
/// [`ServerError::UdpInUse`], [`ServerError::AddressForbidden`] or [`ServerError::Listen`].
pub(crate) fn bind(address: SocketAddr) -> Result<Vec<UdpSocket>, ServerError> {
    udp_socket::bind(address, steering())
}

/// One worker a worker thread.
fn steering() -> Steering {
    let workers = tokio::runtime::Handle::current().metrics().num_workers();
    Steering::new(u8::try_from(workers).unwrap_or(u8::MAX))
}

impl QuicTokens {
    /// Sealed under the ring's keys.
    pub(crate) fn new(ring: &TicketRing) -> Self {
        Self {
            tokens: AddressTokens::new(ring.keys().clone(), tickets::now),
            spent: Arc::new(SpentTokens::new(SPENT_TOKENS, tickets::now)),
        }
    }
}

impl QuicConfig {
    /// What a configuration tells connections.
    ///
    /// # Errors
    /// [`ServerError::Tls`].
    pub(crate) fn new(
        tls: AcceptorConfig,
        tokens: &QuicTokens,
        ring: &TicketRing,
        settings: &firstflight_config::ServerConfig,
    ) -> Result<Self, ServerError> {
        let (http3, limits) = (&settings.http3, &settings.limits);
        // What a client remembers of HTTP/3's settings beside the transport's.
        let bound_to = limits.header_size.to_be_bytes();
        let crypto = ServerCrypto::with_settings(tls, &bound_to)?;
        let refusing = crypto.for_connection(Box::new(|_| false), None);
        let mut config = ServerConfig::new(refusing, Arc::new(tokens.tokens.clone()));
        config.transport_config(Arc::new(quic_endpoint::transport(http3, limits)));
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
    pub(crate) fn server_config(&self, crypto: Arc<dyn crypto::ServerConfig>) -> ServerConfig {
        let mut config = self.config.clone();
        config.crypto = crypto;
        config
    }
}

/// A connection that begins.
pub(crate) struct NewConnection {
    pub(crate) incoming: Incoming,
    pub(crate) handshake_permit: HandshakePermit,
    pub(crate) initials: Option<Arc<InitialPackets>>,
    /// The port it came to.
    pub(crate) port: u16,
}

/// Closes a connection, and sees that its client is told though the congestion window is full.
pub(crate) fn close(connection: &quinn::Connection, code: VarInt, reason: &[u8]) {
    firstflight_quic::make_room_for_close(connection.congestion_state());
    connection.close(code, reason);
}

/// RFC 9114 section 8.1.
pub(crate) const H3_NO_ERROR: u32 = 0x100;

/// QuicTokens in NEW_TOKEN frames that a connection brings: as many as tickets, one for each connection
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
