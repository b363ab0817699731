//! What handshakes cost.

use super::family::counted;
use super::{HandshakeKind, Histograms, TlsVersion, Transport};

counted! {
    /// Handshakes and what they cost.
    pub struct Handshakes {
        seconds: Histograms<(TlsVersion, HandshakeKind, Transport)> = histogram(
            "firstflight_handshake_seconds",
            "From a connection's acceptance to the client's Finished.",
            "The client's round trip lies in it. An early one is not waited for: see the first \
             response.",
            TIMES,
        );
        first_response: Histograms<(HandshakeKind, Transport)> = histogram(
            "firstflight_first_response_seconds",
            "From a connection's acceptance to the head of its first answer.",
            "What 0-RTT is worth: early lies below resumed by a round trip. Clients that connect \
             ahead of \
             need make the slow end of full and resumed longer.",
            TIMES,
        );
    }
}

/// From what a local network takes to what a client stands.
pub(super) const TIMES: &[f64] = &[
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0,
];
