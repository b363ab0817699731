//! What quinn is told: windows, sizes, timeouts, tokens.

use std::sync::Arc;
use std::time::Duration;

use firstflight_config::{Http3Settings, Limits};
use firstflight_quic::{AddressTokens, Burst, ServerCrypto, SpentTokens};
use firstflight_tls::AcceptorConfig;
use quinn::{IdleTimeout, ServerConfig, TransportConfig, ValidationTokenConfig, VarInt};

use crate::ServerError;
use crate::context::now;
use crate::handshake::tickets::TicketRing;
use crate::route::QuicConfig;

/// Address tokens, and which of them are spent. They outlive configurations.
pub(crate) struct QuicTokens {
    pub(crate) tokens: AddressTokens,
    spent: Arc<SpentTokens>,
}

impl QuicTokens {
    /// Sealed under the ring's keys.
    pub(crate) fn new(ring: &TicketRing) -> Self {
        Self {
            tokens: AddressTokens::new(ring.keys().clone(), now),
            spent: Arc::new(SpentTokens::new(SPENT_TOKENS, now)),
        }
    }
}

/// What a configuration tells connections.
///
/// # Errors
/// [`ServerError::Tls`].
pub(crate) fn quic_config(
    tls: AcceptorConfig,
    tokens: &QuicTokens,
    ring: &TicketRing,
    settings: &firstflight_config::ServerConfig,
) -> Result<QuicConfig, ServerError> {
    let (http3, limits) = (&settings.http3, &settings.limits);
    // What a client remembers of HTTP/3's settings beside the transport's.
    let bound_to = limits.header_size.to_be_bytes();
    let crypto = ServerCrypto::with_settings(tls, &bound_to)?;
    let refusing = crypto.for_connection(Box::new(|_| false), None);
    let mut config = ServerConfig::new(refusing, Arc::new(tokens.tokens.clone()));
    config.transport_config(Arc::new(transport(http3, limits)));
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
    Ok(QuicConfig { crypto, server: config })
}

/// The transport parameters and their like, the same on every connection: early data is bound to
/// them, so they change only with the configuration.
fn transport(settings: &Http3Settings, limits: &Limits) -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(limits.streams.into())
        .max_concurrent_uni_streams(UNI_STREAMS.into())
        .stream_receive_window(STREAM_WINDOW.into())
        .receive_window(CONNECTION_WINDOW.into())
        .send_window(SEND_WINDOW)
        // An idle client is told to go before it is taken for dead. And a client that only waits
        // for its response is silent for as long as the upstream may be.
        .max_idle_timeout(Some(
            IdleTimeout::try_from(limits.idle_timeout.max(limits.upstream_timeout) + CLOSE_GRACE)
                .unwrap_or_else(|_| IdleTimeout::from(VarInt::MAX)),
        ))
        .initial_mtu(settings.initial_mtu)
        .congestion_controller_factory(Arc::new(Burst::default()))
        // Nothing here speaks in datagrams.
        .datagram_receive_buffer_size(None);
    transport
}

/// Tokens in NEW_TOKEN frames that a connection brings: as many as tickets, one for each connection
/// that it may start.
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

/// For a client that was told to go.
const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// Control and QPACK streams are three; the rest is for streams of types that nobody knows.
const UNI_STREAMS: u32 = 16;

/// What an upload may be ahead of its upstream. At 260 ms of round trip half a megabyte is 2 MB/s.
const STREAM_WINDOW: u32 = 512 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// What may wait for a client's acknowledgement, and is kept in memory so long.
const SEND_WINDOW: u64 = 1024 * 1024;
