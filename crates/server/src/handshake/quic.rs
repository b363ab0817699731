//! One connection over QUIC: its handshake, and which protocol is spoken.

use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;

use firstflight_telemetry::metrics::Transport;
use quinn::{ConnectionError, VarInt};
use tokio::sync::watch;
use tokio::time::timeout_at;

use crate::handler::response::Service;
use crate::handshake::quic_accept::{Accepted, accept};
use crate::handshake::quic_config::Beginning;
use crate::handshake::quic_config::Front;
use crate::http::connection::{Completion, Connection, Terms, stopped};
use crate::http::h3;
use crate::http::quic_ping_pong;
use crate::observe::connection_metrics::Visit;
use crate::observe::timeline::Timeline;
use crate::server::{Shared, Stop};

/// Serves one connection to its end.
///
/// # Errors
/// Why it ended before it was one.
pub(crate) async fn serve(
    server: Arc<Shared>,
    front: Arc<Front>,
    beginning: Beginning,
    mut stop: watch::Receiver<Stop>,
) -> Result<(), ConnectionError> {
    let visit = Visit::begin(&server.metrics, Transport::Quic);
    let generation = server.current();
    let deadline = visit.accepted_at() + generation.limits.header_timeout;
    let Beginning { incoming, handshaking, arrivals, port } = beginning;
    let client = incoming.remote_address();
    let local = SocketAddr::new(incoming.local_ip().unwrap_or(Ipv6Addr::UNSPECIFIED.into()), port);
    let arrivals = arrivals.as_deref();
    let accepting = accept(&server, (&front, &generation), arrivals, incoming);
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
    let terms = Terms {
        client,
        local,
        generation,
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
        drop(handshaking);
        if quic.close_reason().is_none() {
            completion.reached(&connection);
        }
        std::future::pending::<()>().await;
    };
    let served = async {
        match *connection.generation.service {
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
