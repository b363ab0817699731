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
            "Finished requests, with or without a response.",
            "`early` shows what happened to requests in early data.",
        ).sparse();
        rejected: Counters<RejectReason> = counter(
            "firstflight_requests_rejected_total",
            "Requests rejected by replay protection: an Idempotency-Key or a nonce.",
            "`key_used`, `nonce_used`: clients retry, or somebody replays requests. `unknown`: \
             check the store and the register.",
        );
        misdirected: Counters<Protocol> = counter(
            "firstflight_requests_misdirected_total",
            "Responses with status 421 (Misdirected Request, RFC 9110 section 15.5.20).",
            "Clients reuse a connection for a name that its certificate does not cover: check the \
             sites' names and certificates.",
        );
        active: Gauges<Protocol> = gauge(
            "firstflight_requests_active",
            "Requests in progress, until the end of their response.",
            "Growing without more requests: an upstream has become slow.",
        );
        seconds: Histograms<(Protocol, Early)> = histogram(
            "firstflight_request_seconds",
            "Time from the head of a request to the end of its response.",
            "Includes sending the response to the client, and for `held` the hold.",
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
            "Divided by `firstflight_connections_total`: the share of clients that want 0-RTT.",
        );
        accepted: Counters<Transport> = counter(
            "firstflight_early_data_accepted_total",
            "Connections whose early data was accepted.",
            "Divided by the offers: the acceptance rate. The refusals show why it falls.",
        );
        refused: Counters<(Transport, RefusedReason)> = counter(
            "firstflight_early_data_refused_total",
            "Connections whose early data was refused.",
            "Each costs the client one round trip. `session_not_resumed`: keys rotate too fast or \
             are not shared by all nodes. `ticket_used`: clients use a ticket twice, which `keys = \
             \"process\"` in `[tickets]` permits. `age`, `ticket_age_skew`: clocks or slow paths. \
             `store_*`: the store. `replayed`: an attacker, or a network that duplicates packets.",
        );
        held: Counters<HeldReason> = counter(
            "firstflight_early_requests_held_total",
            "Early requests that were not executed at once.",
            "`policy`: allow more routes to run early if that is safe.",
        );
        holding: Gauges<()> = gauge(
            "firstflight_early_requests_waiting",
            "Early requests that wait for the end of their handshake.",
            "Many for long: copies, which never complete their handshake, or bad networks.",
        );
        hold_seconds: Histograms<HoldEnd> = histogram(
            "firstflight_hold_seconds",
            "Duration of the hold of early requests, by what ended it.",
            "`handshake`: one round trip to the client. `timeout`, `disconnected`: copies, and \
             clients that gave up.",
            DURATION_BOUNDS,
        );
        too_early: Counters<TooEarlyBy> = counter(
            "firstflight_too_early_total",
            "Early requests refused with status 425 (Too Early, RFC 8470), by whom.",
            "`server`: a copy overtook the original, its nonce was used, its flight has no record, or \
             `early_data.when_not_allowed`. `upstream`: it refuses requests that this server executes \
             early, also if this server then sent them again; change the route's policy.",
        );
    }
}
