//! Requests and their answers.

use super::{
    Active, BarredReason, Counters, Description, Early, Histograms, Method, Protocol, Snapshot,
    Status,
};
use crate::metrics::handshakes::TIMES;

/// Requests and their answers.
#[derive(Debug)]
pub struct Requests {
    /// Requests whose answer has ended.
    pub ended: Counters<(Protocol, Method, Status, Early)>,
    /// Requests that their route's rules did not let run.
    pub barred: Counters<BarredReason>,
    /// Requests whose answer has not ended.
    pub active: Active<Protocol>,
    /// From a request's head to the end of its answer.
    pub seconds: Histograms<(Protocol, Early)>,
}

impl Default for Requests {
    fn default() -> Self {
        Self {
            ended: Counters::sparse(&ENDED),
            barred: Counters::new(&BARRED),
            active: Active::new(&ACTIVE),
            seconds: Histograms::new(&SECONDS, TIMES),
        }
    }
}

impl Requests {
    pub(super) fn collect(&self, snapshot: &mut Snapshot) {
        snapshot.push(self.ended.family());
        snapshot.push(self.barred.family());
        snapshot.push(self.active.family());
        snapshot.push(self.seconds.family());
    }
}

static ENDED: Description = Description::counter(
    "firstflight_requests_total",
    "Requests whose answer has ended, or which got none.",
    "early says what became of those that came as early data.",
);
static BARRED: Description = Description::counter(
    "firstflight_requests_barred_total",
    "Requests that an idempotency key or a nonce kept from running a second time.",
    "key_used and nonce_used: clients that try again, or somebody who sends a request twice. \
     unknown: see the store and the register.",
);
static ACTIVE: Description = Description::gauge(
    "firstflight_requests_active",
    "Requests that wait for their answer's end now.",
    "Growing without more requests: an upstream that got slow.",
);
static SECONDS: Description = Description::histogram(
    "firstflight_request_seconds",
    "From a request's head to the end of its answer.",
    "Answers as large as the client's path allows are in it. held contains the hold.",
);
