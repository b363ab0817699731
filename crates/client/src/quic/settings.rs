use std::io;
use std::sync::Arc;
use std::time::Duration;

use firstflight_quic::ResetKey;
use quinn::congestion::CubicConfig;
use quinn::{Endpoint, EndpointConfig, IdleTimeout, TokioRuntime, TransportConfig, VarInt};

use super::socket::Watched;

/// Bytes that may be in flight before the first acknowledgement (RFC 9002 section 7.2).
const INITIAL_WINDOW: u64 = 14_720;

/// Bytes of a datagram that every path carries (RFC 9000 section 14); larger ones are found out
/// when the path is known. A first flight that does not arrive costs more than one that needs a
/// datagram more.
const INITIAL_MTU: u16 = 1_200;

/// Silence after which the path is taken for dead. A peer that is only slow acknowledges the pings.
const IDLE: Duration = Duration::from_secs(30);
const PING: Duration = Duration::from_secs(10);

/// What we tell a server about ourselves, and how we send.
pub(super) fn transport() -> Arc<TransportConfig> {
    let mut window = CubicConfig::default();
    window.initial_window(INITIAL_WINDOW);
    let mut transport = TransportConfig::default();
    transport
        .congestion_controller_factory(Arc::new(window))
        .initial_mtu(INITIAL_MTU)
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(IDLE.as_millis() as u32))))
        .keep_alive_interval(Some(PING))
        // A server opens no requests (RFC 9114 section 6.1), and we use no datagrams.
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(None);
    Arc::new(transport)
}

/// An endpoint for one connection. Its tasks run on the runtime that it is made on.
pub(super) fn endpoint(socket: Arc<Watched>) -> io::Result<Endpoint> {
    // For stateless resets (RFC 9000 section 10.3), which nobody expects of us.
    let mut key = [0; 32];
    getrandom::fill(&mut key).map_err(io::Error::other)?;
    let mut config = EndpointConfig::new(Arc::new(ResetKey::new(key)));
    // Version 1 alone: quinn would take drafts as well.
    config.supported_versions(vec![1]);
    Endpoint::new_with_abstract_socket(config, None, socket, Arc::new(TokioRuntime))
}
