//! From a first packet to a connection on which early data is decided.

use std::sync::{Arc, Mutex, PoisonError};

use firstflight_quic::{EarlyDataJudge, Handshake};
use firstflight_replay::Flight;
use quinn::{Connecting, ConnectionError, Incoming};

use super::Front;
use crate::accept::early_data;
use crate::gatekeeper::Refused;
use crate::server::Shared;

/// A connection on which early data is decided. Its handshake goes on.
pub(crate) struct Accepted {
    pub(crate) connecting: Connecting,
    /// What was negotiated.
    pub(crate) facts: Handshake,
    /// Its flight, if TLS accepted early data.
    pub(crate) flight: Option<Flight>,
    /// Why TLS accepted early data or not, as the access log has it.
    pub(crate) early_data: &'static str,
}

/// What the judge has decided.
#[derive(Default)]
struct Verdict {
    flight: Option<Flight>,
    refused: Option<Refused>,
}

/// Accepts a connection. The flight's claim is settled before TLS answers its ClientHello: over
/// QUIC what is lost of early data is sent again after the handshake, so a flight may not be
/// accepted that has no record.
///
/// # Errors
/// The handshake's.
pub(crate) async fn accept(
    server: &Arc<Shared>,
    front: &Front,
    incoming: Incoming,
) -> Result<Accepted, ConnectionError> {
    let verdict = Arc::new(Mutex::new(Verdict::default()));
    let judge = judge(server.clone(), verdict.clone());
    let config = front.server_config(front.crypto.for_connection(judge, None));
    let mut connecting = incoming.accept_with(Arc::new(config))?;
    let facts = connecting.handshake_data().await?;
    let facts = facts.downcast::<Handshake>().map_err(|_| ConnectionError::LocallyClosed)?;
    let Verdict { flight, refused } =
        std::mem::take(&mut *verdict.lock().unwrap_or_else(PoisonError::into_inner));
    let early_data = match refused {
        Some(refused) => refused.name(),
        None => early_data(&facts, None),
    };
    Ok(Accepted { connecting, facts: *facts, flight, early_data })
}

/// Claims the flight in this process's own register, while TLS asks.
fn judge(server: Arc<Shared>, verdict: Arc<Mutex<Verdict>>) -> EarlyDataJudge {
    Box::new(move |facts| {
        if server.gatekeeper.is_shared() {
            return false;
        }
        let settled = server.gatekeeper.settle_at_once(facts);
        let mut verdict = verdict.lock().unwrap_or_else(PoisonError::into_inner);
        match settled {
            Ok(flight) => verdict.flight = Some(flight),
            Err(why) => verdict.refused = Some(why),
        }
        verdict.flight.is_some()
    })
}
