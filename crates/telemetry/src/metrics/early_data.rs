//! Early data: whether it is used, and why not.

use super::{
    Active, Counters, Description, HeldReason, Histograms, HoldEnd, RefusedReason, Snapshot,
    TooEarlyBy, Transport,
};
use crate::metrics::handshakes::TIMES;

/// Early data: offered, accepted, refused, held.
#[derive(Debug)]
pub struct EarlyData {
    /// Connections whose ClientHello offered it.
    pub offered: Counters<Transport>,
    /// Those of them whose flight may run early.
    pub accepted: Counters<Transport>,
    /// The others.
    pub refused: Counters<(Transport, RefusedReason)>,
    /// Early requests that were not run at once.
    pub held: Counters<HeldReason>,
    /// Requests that wait now.
    pub holding: Active<()>,
    /// How long they waited, by what ended it.
    pub hold_seconds: Histograms<HoldEnd>,
    /// Answers 425.
    pub too_early: Counters<TooEarlyBy>,
}

impl Default for EarlyData {
    fn default() -> Self {
        Self {
            offered: Counters::new(&OFFERED),
            accepted: Counters::new(&ACCEPTED),
            refused: Counters::new(&REFUSED),
            held: Counters::new(&HELD),
            holding: Active::new(&HOLDING),
            hold_seconds: Histograms::new(&HOLD_SECONDS, TIMES),
            too_early: Counters::new(&TOO_EARLY),
        }
    }
}

impl EarlyData {
    pub(super) fn collect(&self, snapshot: &mut Snapshot) {
        snapshot.push(self.offered.family());
        snapshot.push(self.accepted.family());
        snapshot.push(self.refused.family());
        snapshot.push(self.held.family());
        snapshot.push(self.holding.family());
        snapshot.push(self.hold_seconds.family());
        snapshot.push(self.too_early.family());
    }
}

static OFFERED: Description = Description::counter(
    "firstflight_early_data_offered_total",
    "Connections whose ClientHello offered early data.",
    "Divided by firstflight_connections_total: the share of clients that want 0-RTT.",
);
static ACCEPTED: Description = Description::counter(
    "firstflight_early_data_accepted_total",
    "Connections whose early data was accepted: their flights are claimed and may run early.",
    "Divided by the offers: the acceptance. Where it falls, the refusals say why.",
);
static REFUSED: Description = Description::counter(
    "firstflight_early_data_refused_total",
    "Connections that offered early data and have none that may run early.",
    "Refused clients lose a round trip and nothing else. Look at the reason that grows: \
     session_not_resumed means keys that are rotated too fast or not shared by all nodes, age and \
     ticket_age_skew clocks or detours, store_* the store, replayed an attacker or a broken network.",
);
static HELD: Description = Description::counter(
    "firstflight_early_requests_held_total",
    "Requests that came early and were not run at once.",
    "policy is your routes' own doing: let more of them run early if their answers allow it.",
);
static HOLDING: Description = Description::gauge(
    "firstflight_early_requests_holding",
    "Requests that wait for the end of their handshake now.",
    "Many that wait for long are copies, whose handshakes never end, or clients on bad paths.",
);
static HOLD_SECONDS: Description = Description::histogram(
    "firstflight_hold_seconds",
    "How long early requests were held, by what ended it.",
    "A hold that ends by the handshake took the client's round trip. timeout and gone are copies, \
     and clients that gave up.",
);
static TOO_EARLY: Description = Description::counter(
    "firstflight_too_early_total",
    "Answers 425 (Too Early, RFC 8470).",
    "By the server: an original that a copy overtook, or early_data.when_not_allowed. By the \
     upstream: it refuses what this server lets run early; set the route's policy to match.",
);
