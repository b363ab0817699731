//! Early data: whether it is used, and why not.

use super::family::counted;
use super::{
    Active, Counters, HeldReason, Histograms, HoldEnd, RefusedReason, TooEarlyBy, Transport,
};
use crate::metrics::handshakes::TIMES;

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
        holding: Active<()> = gauge(
            "firstflight_early_requests_holding",
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
            TIMES,
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
