//! Requests and their responses.

use super::family::counted;
use super::{Active, BarredReason, Counters, Early, Histograms, Method, Protocol, Status};
use crate::metrics::handshakes::TIMES;

counted! {
    /// Requests and their responses.
    pub struct Requests {
        ended: Counters<(Protocol, Method, Status, Early)> = counter(
            "firstflight_requests_total",
            "Requests whose answer has ended, or which got none.",
            "early says what became of those that came as early data.",
        ).sparse();
        barred: Counters<BarredReason> = counter(
            "firstflight_requests_barred_total",
            "Requests that an idempotency key or a nonce kept from running a second time.",
            "key_used and nonce_used: clients that try again, or somebody who sends a request \
             twice. \
             unknown: see the store and the register.",
        );
        active: Active<Protocol> = gauge(
            "firstflight_requests_active",
            "Requests that wait for their answer's end now.",
            "Growing without more requests: an upstream that got slow.",
        );
        seconds: Histograms<(Protocol, Early)> = histogram(
            "firstflight_request_seconds",
            "From a request's head to the end of its answer.",
            "Answers as large as the client's path allows are in it. held contains the hold.",
            TIMES,
        );
    }
}
