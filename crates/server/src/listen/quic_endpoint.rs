//! What quinn is told: windows, sizes, timeouts, tokens.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use firstflight_config::{Http3Settings, Limits};
use firstflight_quic::{Burst, IdMark, Steering};
use firstflight_telemetry::metrics::Metrics;
use quinn::{
    Endpoint, EndpointConfig, IdleTimeout, Runtime, ServerConfig, TokioRuntime, TransportConfig,
    VarInt,
};

use crate::handshake::initials::InitialPackets;
use crate::listen::dispatch::DatagramDispatch;
use crate::listen::worker_socket::WorkerSocket;

/// The transport parameters and their like, the same on every connection: early data is bound to
/// them, so they change only with the configuration.
pub(crate) fn transport(settings: &Http3Settings, limits: &Limits) -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(limits.streams.into())
        .max_concurrent_uni_streams(UNI_STREAMS.into())
        .stream_receive_window(STREAM_WINDOW.into())
        .receive_window(CONNECTION_WINDOW.into())
        .send_window(SEND_WINDOW)
        // An idle client is told to go before it is taken for dead. And a client that only waits for
        // its response is silent for as long as the upstream may be.
        .max_idle_timeout(Some(
            IdleTimeout::try_from(limits.idle_timeout.max(limits.upstream_timeout) + GRACE)
                .unwrap_or_else(|_| IdleTimeout::from(VarInt::MAX)),
        ))
        .initial_mtu(settings.initial_mtu)
        .congestion_controller_factory(Arc::new(Burst::default()))
        // Nothing here speaks in datagrams.
        .datagram_receive_buffer_size(None);
    transport
}

/// An endpoint on one of a port's sockets, for the worker with this number. What comes in is sorted
/// and shown to `initials` first, where these are.
///
/// # Errors
/// The socket's.
pub(crate) fn open(
    socket: UdpSocket,
    server: ServerConfig,
    mut config: EndpointConfig,
    (steering, mark, worker): (Steering, &IdMark, u8),
    dispatch: Arc<DatagramDispatch>,
    initials: Option<Arc<InitialPackets>>,
    metrics: Arc<Metrics>,
) -> io::Result<Endpoint> {
    let mark = mark.clone();
    config.cid_generator(move || steering.marked_ids(worker, mark.clone()));
    let runtime = Arc::new(TokioRuntime);
    let socket = runtime.wrap_udp_socket(socket)?;
    let socket = Arc::new(WorkerSocket { socket, worker, dispatch, initials, metrics });
    Endpoint::new_with_abstract_socket(config, Some(server), socket, runtime)
}

/// For a client that was told to go.
const GRACE: Duration = Duration::from_secs(2);

/// Control and QPACK streams are three; the rest is for streams of types that nobody knows.
const UNI_STREAMS: u32 = 16;

/// What an upload may be ahead of its upstream. At 260 ms of round trip half a megabyte is 2 MB/s.
const STREAM_WINDOW: u32 = 512 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// What may wait for a client's acknowledgement, and is kept in memory so long.
const SEND_WINDOW: u64 = 1024 * 1024;
