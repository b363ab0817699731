//! TLS over TCP, up to early data accepted or refused; what follows is HTTP's or ping-pong's.

use std::time::Instant;

use firstflight_replay::SharedRefusal;
use firstflight_tls::{
    self as tls, ACME_TLS_ALPN, Accepting, OpenedTicket, TlsError, TlsStream, split_driver,
};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout_at;
use tracing::debug;

use crate::context::{Stop, stopped};
use crate::gate::{Refused, Unspent};
use crate::handshake::{Handshakes, refusal};
use crate::http::connection::{Connection, Negotiated, Origin};
use crate::http::stream::Socket;
use crate::http::{h1_h2, ping_pong};
use crate::route::Snapshot;

/// Serves one connection, from its ClientHello to its end.
pub(crate) async fn serve(handshakes: &Handshakes, tcp: TcpStream, origin: Origin) {
    let shared = &handshakes.shared;
    let (client, accepted_at) = (origin.client, origin.metrics.accepted_at());
    let mut stop = shared.shutdown.subscribe();
    let limit = origin.snapshot.limits.header_timeout;
    let deadline = (accepted_at + limit).into();
    let socket = Socket::new(tcp, shared);
    let accepting = accept(handshakes, &origin.snapshot, socket.clone());
    let accepted = tokio::select! {
        accepted = timeout_at(deadline, accepting) => accepted,
        () = stopped(&mut stop, Stop::Now) => return,
    };
    socket.has_handshake();
    let (mut stream, negotiated) = match accepted {
        Ok(Ok(accepted)) => accepted,
        Ok(Err(error)) => {
            debug!("{client}: {error}");
            return socket.linger().await;
        }
        Err(_) => {
            origin.metrics.timed_out();
            return debug!("{client}: no TLS handshake within {limit:?}");
        }
    };
    if negotiated.tls.alpn.as_deref() == Some(ACME_TLS_ALPN) {
        origin.metrics.has_no_handshake();
        debug!("{client}: an authority has validated {:?}", negotiated.tls.server_name);
        // Its handshake is all that there is to it (RFC 8737 section 3).
        let _ = timeout_at(deadline, stream.shutdown()).await;
        return socket.linger().await;
    }
    let (connection, completion) = Connection::new(shared.clone(), origin, negotiated);
    if stream.is_complete() {
        completion.reached(&connection);
    }
    let ended_well = match &connection.snapshot.sites {
        None => ping_pong::serve_tcp(&connection, stream, &completion, accepted_at, stop).await,
        Some(_) => {
            let (io, driver) = split_driver(stream);
            let socket = socket.clone();
            h1_h2::serve(&connection, io, driver, socket, completion, accepted_at, stop).await
        }
    };
    if ended_well {
        socket.linger().await;
    }
}

/// Accepts a connection. Nothing of the handshake is sent before the flight's claim is settled: a
/// flight whose claim is not known is then refused by TLS, so that nothing of it runs early, and
/// the client sends its request again by itself.
async fn accept(
    handshakes: &Handshakes,
    snapshot: &Snapshot,
    socket: Socket,
) -> Result<(TlsStream<Socket>, Negotiated), TlsError> {
    let gate = &handshakes.shared.gate;
    let arrival = gate.arrival();
    let mut refused = gate.admission(snapshot.early_data).err();
    let mut accepting = Accepting::new(&snapshot.acceptor, socket, refused.is_none())?;
    let (mut redeemed, mut claim) = (false, None);
    let mut heard_at = None;
    let (flight, facts) = loop {
        match accepting.advance().await? {
            tls::AcceptState::NeedsSession(id) => {
                let ticket = handshakes.ring.redeem(&id).await;
                if let Some(why) = ticket.withheld {
                    refused = Some(Refused::Shared(SharedRefusal::Store(why)));
                }
                // Who has taken a session out of the store has its flight for himself.
                redeemed = matches!(ticket.session, OpenedTicket::Session(_));
                accepting.provide_session(ticket.session);
            }
            tls::AcceptState::Complete => break (None, accepting.facts()),
            tls::AcceptState::EarlyData => {
                let facts = accepting.facts();
                let heard_at = *heard_at.insert(gate.heard_at(Some(accepting.received_at())));
                let began = Instant::now();
                let claimed = gate.claim(&facts, (arrival, heard_at), redeemed).await;
                claim = Some((began, Instant::now()));
                match claimed {
                    Ok(flight) => break (Some(flight), facts),
                    Err(why) => {
                        refused = Some(why);
                        accepting.refuse_early_data()?;
                    }
                }
            }
        }
    };
    let unspent = match flight {
        Some(_) => None,
        None => {
            // Later than the ClientHello came: the record lives a little longer for that.
            let heard_at = heard_at.unwrap_or_else(|| gate.heard_at(None));
            Unspent::left_by(&facts, (arrival, heard_at), refused, redeemed)
        }
    };
    let refused = refusal(&facts, refused);
    let negotiated = Negotiated { tls: facts, flight, refused, claim, unspent };
    Ok((accepting.into_stream(), negotiated))
}
