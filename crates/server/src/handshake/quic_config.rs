//! The configuration of quinn-proto: windows, sizes, timeouts, tokens.

use std::sync::Arc;
use std::time::Duration;

use firstflight_config::{Http3Settings, Limits};
use firstflight_quic::{AddressTokens, Burst, ServerCrypto, SpentTokens};
use firstflight_tls::AcceptorConfig;
use quinn_proto::{
    IdleTimeout, MtuDiscoveryConfig, ServerConfig, TransportConfig, ValidationTokenConfig, VarInt,
};

use crate::ServerError;
use crate::context::now;
use crate::handshake::tickets::TicketRing;
use crate::route::QuicConfig;

/// Address tokens and the record of spent ones. They outlive configurations.
pub(crate) struct QuicTokens {
    pub(crate) tokens: AddressTokens,
    spent: Arc<SpentTokens>,
}

impl QuicTokens {
    /// Tokens sealed under the ring's keys.
    pub(crate) fn new(ring: &TicketRing) -> Self {
        Self {
            tokens: AddressTokens::new(ring.keys().clone(), now),
            spent: Arc::new(SpentTokens::new(SPENT_TOKENS_BYTES, now)),
        }
    }
}

/// The QUIC settings of a configuration.
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
    // A client remembers HTTP/3 settings together with the transport parameters.
    let bound_to = limits.header_size.to_be_bytes();
    let crypto = ServerCrypto::with_settings(tls, &bound_to)?;
    let refusing = crypto.for_connection(Box::new(|_| false), None);
    let mut config = ServerConfig::new(refusing, Arc::new(tokens.tokens.clone()));
    config.transport_config(Arc::new(transport(http3, limits)));
    let mut validation = ValidationTokenConfig::default();
    validation
        .lifetime(http3.token_lifetime.unwrap_or(ring.lifetime()))
        .log(tokens.spent.clone())
        .sent(TOKENS_PER_CONNECTION);
    config
        .validation_token_config(validation)
        .max_incoming(MAX_INCOMING)
        .incoming_buffer_size(MAX_INCOMING_BYTES)
        .incoming_buffer_size_total(MAX_TOTAL_INCOMING_BYTES);
    Ok(QuicConfig { crypto, server: config })
}

/// The transport parameters and other settings. They are the same for every connection and change
/// only with the configuration, because early data is bound to them.
fn transport(settings: &Http3Settings, limits: &Limits) -> TransportConfig {
    let mut mtu_discovery = MtuDiscoveryConfig::default();
    mtu_discovery.minimum_change(MIN_MTU_CHANGE);
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(limits.streams.into())
        .max_concurrent_uni_streams(MAX_UNI_STREAMS.into())
        .stream_receive_window(STREAM_WINDOW.into())
        .receive_window(CONNECTION_WINDOW.into())
        .send_window(SEND_WINDOW)
        // The server closes an idle connection before quinn-proto considers it dead. A client that waits
        // for a response is silent for as long as the upstream may take.
        .max_idle_timeout(Some(
            IdleTimeout::try_from(
                limits.idle_timeout.max(limits.upstream_timeout) + CLOSE_GRACE_PERIOD,
            )
            .unwrap_or_else(|_| IdleTimeout::from(VarInt::MAX)),
        ))
        .initial_mtu(settings.initial_mtu)
        .mtu_discovery_config(Some(mtu_discovery))
        .congestion_controller_factory(Arc::new(Burst::default()))
        // No DATAGRAM frames are used (RFC 9221).
        .datagram_receive_buffer_size(None);
    transport
}

/// NEW_TOKEN tokens for each connection. A client that spends one receives the next one.
const TOKENS_PER_CONNECTION: u32 = 1;

/// Path MTU discovery tries the largest size first, which most paths support, instead of four sizes
/// in as many round trips. A path that does not support it keeps the initial size for ten minutes.
const MIN_MTU_CHANGE: u16 = 200;

/// Connections on each worker that wait for the store. More are ignored; their clients retransmit.
const MAX_INCOMING: usize = 4096;

/// 0-RTT bytes buffered for each waiting connection, more than a client's initial window, and for
/// all of them together.
const MAX_INCOMING_BYTES: u64 = 64 * 1024;
const MAX_TOTAL_INCOMING_BYTES: u64 = 16 * 1024 * 1024;

/// Bytes of the record of spent tokens, one bit for each token.
const SPENT_TOKENS_BYTES: usize = 4 << 20;

/// How long an idle client has to react to the connection's close.
const CLOSE_GRACE_PERIOD: Duration = Duration::from_secs(2);

/// HTTP/3 needs three streams (control and QPACK). The others are for unknown stream types.
/// quinn-proto allocates all streams that a client may open when the connection starts.
const MAX_UNI_STREAMS: u32 = 8;

/// How far an upload may be ahead of its upstream. Half a megabyte at 260 ms of round trip is 2
/// MB/s.
const STREAM_WINDOW: u32 = 512 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// Unacknowledged bytes that are kept in memory for each connection.
const SEND_WINDOW: u64 = 1024 * 1024;
