//! One connection over QUIC: its handshake, and which protocol is spoken.

use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;

use firstflight_telemetry::metrics::Transport;
use quinn::{ConnectionError, VarInt};
use tokio::sync::watch;
use tokio::time::timeout_at;

use crate::handler::response::Service;
use crate::handshake::quic_accept::{Accepted, accept};
use crate::handshake::quic_config::NewConnection;
use crate::handshake::quic_config::QuicPorts;
use crate::http::connection::{AcceptedConnection, Completion, Connection, stopped};
use crate::http::h3;
use crate::http::quic_ping_pong;
use crate::observe::connection_metrics::ConnectionMetrics;
use crate::observe::timeline::Timeline;
use crate::server::{Shared, Stop};

/// Serves one connection to its end.
///
/// # Errors
/// Why it ended before it was one.
pub(crate) async fn serve(
    server: Arc<Shared>,
    quic_ports: Arc<QuicPorts>,
    new_connection: NewConnection,
    mut stop: watch::Receiver<Stop>,
) -> Result<(), ConnectionError> {
    let visit = ConnectionMetrics::begin(&server.metrics, Transport::Quic);
    let snapshot = server.current();
    let deadline = visit.accepted_at() + snapshot.limits.header_timeout;
    let NewConnection { incoming, handshake_permit, initials, port } = new_connection;
    let client = incoming.remote_address();
    let local = SocketAddr::new(incoming.local_ip().unwrap_or(Ipv6Addr::UNSPECIFIED.into()), port);
    let initials = initials.as_deref();
    let accepting = accept(&server, (&quic_ports, &snapshot), initials, incoming);
    let accepted = tokio::select! {
        accepted = timeout_at(deadline.into(), accepting) => accepted,
        () = stopped(&mut stop, Stop::Now) => return Ok(()),
    };
    let Ok(accepted) = accepted else {
        visit.timed_out();
        return Err(ConnectionError::TimedOut);
    };
    let Some(accepted) = accepted? else {
        visit.has_no_handshake();
        return Ok(());
    };
    let Accepted { connecting, facts, flight, refused, claim, unspent } = accepted;
    let Ok((quic, handshake)) = connecting.into_0rtt() else {
        unreachable!("a server may always send before the client's Finished");
    };
    let (completion, complete) = Completion::new();
    let timeline = Timeline::new(visit.accepted_at(), claim);
    let alt_svc = None;
    let terms = AcceptedConnection {
        client,
        local,
        snapshot,
        timeline,
        visit,
        facts,
        refused,
        flight,
        unspent,
        alt_svc,
    };
    let connection = Arc::new(Connection::new(server, terms, complete));
    let handshake = async {
        // It says whether early data was accepted, which is a client's question; and ends as well
        // when the connection does.
        handshake.await;
        drop(handshake_permit);
        if quic.close_reason().is_none() {
            completion.reached(&connection);
        }
        std::future::pending::<()>().await;
    };
    let served = async {
        match *connection.snapshot.service {
            Service::PingPong => {
                quic_ping_pong::serve(&connection, &quic, deadline, &mut stop).await
            }
            _ => h3::serve(&connection, &quic, deadline, &mut stop).await,
        }
    };
    tokio::select! {
        biased;
        () = handshake => {}
        () = served => {}
    }
    // Nothing more is to be sent, or to be waited for.
    crate::handshake::quic_config::close(
        &quic,
        VarInt::from_u32(crate::handshake::quic_config::H3_NO_ERROR),
        b"",
    );
    Ok(())
}

/// Waits for the next stage of stopping; `finishing`: the connection comes to its end anyway.
pub(crate) async fn next_stop(stop: &mut watch::Receiver<Stop>, finishing: bool) -> Stop {
    stopped(stop, if finishing { Stop::Now } else { Stop::Leave }).await;
    *stop.borrow()
}
