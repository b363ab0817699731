//! TLS over TCP up to the decision about early data. HTTP or ping-pong follows.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use firstflight_replay::SharedRefusal;
use firstflight_telemetry::metrics::RefusedReason;
use firstflight_tls::{
    self as tls, ACME_TLS_ALPN, Accepting, Handshake, TlsError, TlsStream, split_driver,
};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout_at;
use tracing::debug;

use crate::context::{ShutdownStage, wait_for_stage};
use crate::gate::{Arrival, EarlyDataRefusal, UnspentFlight};
use crate::handshake::{Handshakes, refusal};
use crate::http::connection::{AcceptedConnection, Connection, Negotiated};
use crate::http::socket::Socket;
use crate::http::{ServerContext, h1_h2, ping_pong};

/// A connection over TCP after the decision about early data. Its handshake may still be
/// incomplete.
pub(crate) struct OpenConnection {
    /// HTTP or ping-pong. Returns whether the connection ended cleanly.
    protocol: Pin<Box<dyn Future<Output = bool> + Send>>,
    socket: Socket,
}

impl OpenConnection {
    /// Serves the connection until it ends.
    pub(crate) async fn serve(self) {
        if self.protocol.await {
            self.socket.linger().await;
        }
    }
}

/// Performs the handshake up to the decision about early data. Returns `None` if the connection has
/// ended. Serving is a future of its own, so that the handshake's memory is released before it.
pub(crate) async fn open(
    handshakes: &Handshakes,
    tcp: TcpStream,
    origin: AcceptedConnection,
) -> Option<OpenConnection> {
    let shared = &handshakes.shared;
    let (client, accepted_at) = (origin.client, origin.metrics.accepted_at());
    let mut stop = shared.shutdown.subscribe();
    let limit = origin.snapshot.limits.header_timeout;
    let deadline = (accepted_at + limit).into();
    let socket = Socket::new(tcp, shared);
    let accepting = Box::pin(accept(handshakes, &origin, socket.clone()));
    let accepted = tokio::select! {
        accepted = timeout_at(deadline, accepting) => accepted,
        () = wait_for_stage(&mut stop, ShutdownStage::Abort) => return None,
    };
    socket.release_handshake_memory();
    let (mut stream, negotiated) = match accepted {
        Ok(Ok(accepted)) => accepted,
        Ok(Err(error)) => {
            debug!("{client}: {error}");
            socket.linger().await;
            return None;
        }
        Err(_) => {
            origin.metrics.note_timeout();
            debug!("{client}: no TLS handshake within {limit:?}");
            return None;
        }
    };
    stream.before_last_write(Socket::expect_shutdown);
    if negotiated.tls.alpn.as_deref() == Some(ACME_TLS_ALPN) {
        origin.metrics.expect_no_handshake();
        debug!("{client}: an authority has validated {:?}", negotiated.tls.server_name);
        // The validation ends with the handshake (RFC 8737 section 3).
        let _ = timeout_at(deadline, stream.shutdown()).await;
        socket.linger().await;
        return None;
    }
    let (connection, completion) = Connection::new(shared.clone(), origin, negotiated);
    if stream.is_complete() {
        completion.signal(&connection);
    }
    let protocol: Pin<Box<dyn Future<Output = bool> + Send>> = match connection.snapshot.sites {
        None => Box::pin(async move {
            ping_pong::serve_tcp(&connection, stream, &completion, accepted_at, stop).await
        }),
        Some(_) => {
            let (io, driver) = split_driver(stream);
            let socket = socket.clone();
            Box::pin(h1_h2::serve(connection, io, driver, socket, completion, accepted_at, stop))
        }
    };
    Some(OpenConnection { protocol, socket })
}

/// Accepts a connection. Nothing of the handshake is sent before the flight's claim is settled. If
/// the claim is unknown, TLS refuses early data: nothing of it is executed, and the client sends
/// its request again.
async fn accept(
    handshakes: &Handshakes,
    origin: &AcceptedConnection,
    socket: Socket,
) -> Result<(TlsStream<Socket>, Negotiated), TlsError> {
    let snapshot = &origin.snapshot;
    let gate = &handshakes.shared.gate;
    let arrival = gate.arrival();
    let refused = gate.admission(snapshot.early_data).err();
    let accepting = Accepting::new(&snapshot.acceptor, socket, refused.is_none())?;
    let shared = &handshakes.shared;
    let mut pending = PendingHandshake { shared, arrival, refused, accepting: Some(accepting) };
    let mut claim = None;
    let mut is_copy = false;
    let mut used = None;
    let (flight, facts) = loop {
        let state = pending.tls().advance().await?;
        match state {
            tls::AcceptState::NeedsSession(id) => {
                let ticket = handshakes.redeem(&id).await;
                if let Some(why) = ticket.withheld {
                    pending.refused = Some(EarlyDataRefusal::Shared(SharedRefusal::Store(why)));
                }
                pending.tls().provide_session(ticket.session);
            }
            tls::AcceptState::TicketUsed => {
                let facts = pending.tls().facts();
                let offer = UsedTicket { shared: &handshakes.shared, origin, facts };
                is_copy = offer.count_copy();
                used = (!is_copy).then_some(offer);
            }
            tls::AcceptState::Complete => break (None, pending.tls().facts()),
            tls::AcceptState::EarlyData => {
                let facts = pending.tls().facts();
                let received_at = gate.received_at(Some(pending.tls().received_at()));
                let requested_at = Instant::now();
                let claimed = gate.claim(&facts, (arrival, received_at)).await;
                claim = Some((requested_at, Instant::now()));
                match claimed {
                    Ok(flight) => break (Some(flight), facts),
                    Err(why) => {
                        if why.reason() == RefusedReason::RefusedBefore {
                            count_copy(shared, origin, &facts, RefusedReason::RefusedBefore);
                        }
                        pending.refused = Some(why);
                        pending.tls().refuse_early_data()?;
                    }
                }
            }
        }
    };
    is_copy |= used.as_ref().is_some_and(UsedTicket::count_copy);
    let refused = pending.refused;
    let unspent = match flight {
        Some(_) => None,
        None => UnspentFlight::needing_record(&facts, (arrival, gate.measured_at(&facts)), refused),
    };
    let refused = match is_copy {
        true => Some(RefusedReason::Replayed),
        false => refusal(&facts, refused),
    };
    let negotiated = Negotiated { tls: facts, flight, refused, claim, unspent };
    Ok((pending.complete(), negotiated))
}

/// A handshake until TLS accepts early data, or until its end if early data is refused. If it
/// fails, or is dropped because it takes too long, its flight is recorded if it
/// [must be](UnspentFlight::must_be_recorded).
struct PendingHandshake<'a> {
    shared: &'a Arc<ServerContext>,
    arrival: Arrival,
    /// Why this server refuses early data, if it does.
    refused: Option<EarlyDataRefusal>,
    /// `None` once the handshake is complete.
    accepting: Option<Accepting<Socket>>,
}

impl PendingHandshake<'_> {
    fn tls(&mut self) -> &mut Accepting<Socket> {
        self.accepting.as_mut().expect("the handshake is not complete")
    }

    fn complete(mut self) -> TlsStream<Socket> {
        self.accepting.take().expect("the handshake is not complete").into_stream()
    }
}

impl Drop for PendingHandshake<'_> {
    fn drop(&mut self) {
        let Some(accepting) = &self.accepting else { return };
        let facts = accepting.facts();
        let arrived = (self.arrival, self.shared.gate.measured_at(&facts));
        if let Some(flight) = UnspentFlight::needing_record(&facts, arrived, self.refused) {
            self.shared.spend_abandoned_in_background(flight);
        }
    }
}

/// Counts a copy of a flight at once, because it never completes its handshake, and each connection
/// once.
fn count_copy(
    shared: &ServerContext,
    origin: &AcceptedConnection,
    facts: &Handshake,
    reason: RefusedReason,
) {
    let metrics = &origin.metrics;
    if !metrics.is_offer_counted() {
        shared.observers.note_replay(facts, origin.client.ip(), metrics.transport());
        metrics.note_early_data(facts, None, Some(reason));
    }
}

/// An offer of early data on a ticket that was used before. It is counted if it is a copy, which is
/// checked again when it is dropped: a copy that arrives just after its original finds the ticket
/// used before the flight is recorded.
struct UsedTicket<'a> {
    shared: &'a ServerContext,
    origin: &'a AcceptedConnection,
    facts: Handshake,
}

impl UsedTicket<'_> {
    /// Counts the offer if it is a copy. Returns whether it is.
    fn count_copy(&self) -> bool {
        let is_copy = self.shared.gate.is_copy(&self.facts);
        if is_copy {
            count_copy(self.shared, self.origin, &self.facts, RefusedReason::Replayed);
        }
        is_copy
    }
}

impl Drop for UsedTicket<'_> {
    fn drop(&mut self) {
        self.count_copy();
    }
}
