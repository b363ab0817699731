//! Metrics of requests and of early data.

use super::instruments::counted;
use super::{
    Counters, Early, Gauges, HeldReason, Histograms, HoldEnd, Method, Protocol, RefusedReason,
    RejectReason, Status, TooEarlyBy, Transport,
};
use crate::metrics::connections::DURATION_BOUNDS;

counted! {
    /// Requests and their responses.
    pub struct Requests {
        ended: Counters<(Protocol, Method, Status, Early)> = counter(
            "firstflight_requests_total",
            "Requests whose answer has ended, or which got none.",
            "early says what became of those that came as early data.",
        ).sparse();
        rejected: Counters<RejectReason> = counter(
            "firstflight_requests_rejected_total",
            "Requests that an idempotency key or a nonce kept from running a second time.",
            "key_used and nonce_used: clients that try again, or somebody who sends a request \
             twice. \
             unknown: see the store and the register.",
        );
        active: Gauges<Protocol> = gauge(
            "firstflight_requests_active",
            "Requests that wait for their answer's end now.",
            "Growing without more requests: an upstream that got slow.",
        );
        seconds: Histograms<(Protocol, Early)> = histogram(
            "firstflight_request_seconds",
            "From a request's head to the end of its answer.",
            "Answers as large as the client's path allows are in it. held contains the hold.",
            DURATION_BOUNDS,
        );
    }
}

counted! {
    /// Early data: offered, accepted, refused, held.
    pub struct EarlyData {
        offered: Counters<Transport> = counter(
            "firstflight_early_data_offered_total",
            "Connections whose ClientHello offered early data.",
            "Divided by firstflight_connections_total: the share of clients that want 0-RTT.",
        );
        accepted: Counters<Transport> = counter(
            "firstflight_early_data_accepted_total",
            "Connections whose early data was accepted: their flights are claimed and may run \
             early.",
            "Divided by the offers: the acceptance. Where it falls, the refusals say why.",
        );
        refused: Counters<(Transport, RefusedReason)> = counter(
            "firstflight_early_data_refused_total",
            "Connections that offered early data and have none that may run early.",
            "Refused clients lose a round trip and nothing else. Look at the reason that grows: \
             session_not_resumed means keys that are rotated too fast or not shared by all nodes, \
             age and \
             ticket_age_skew clocks or detours, store_* the store, replayed an attacker or a \
             broken network.",
        );
        held: Counters<HeldReason> = counter(
            "firstflight_early_requests_held_total",
            "Requests that came early and were not run at once.",
            "policy is your routes' own doing: let more of them run early if their responses allow \
             it.",
        );
        holding: Gauges<()> = gauge(
            "firstflight_early_requests_waiting",
            "Requests that wait for the end of their handshake now.",
            "Many that wait for long are copies, whose handshakes never end, or clients on bad \
             paths.",
        );
        hold_seconds: Histograms<HoldEnd> = histogram(
            "firstflight_hold_seconds",
            "How long early requests were held, by what ended it.",
            "A hold that ends by the handshake took the client's round trip. timeout and gone are \
             copies, \
             and clients that gave up.",
            DURATION_BOUNDS,
        );
        too_early: Counters<TooEarlyBy> = counter(
            "firstflight_too_early_total",
            "Answers 425 (Too Early, RFC 8470).",
            "By the server: an original that a copy overtook, or early_data.when_not_allowed. By \
             the \
             upstream: it refuses what this server lets run early; set the route's policy to \
             match.",
        );
    }
}
