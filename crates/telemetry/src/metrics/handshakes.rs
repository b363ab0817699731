//! What handshakes cost.

use super::{Description, HandshakeKind, Histograms, Snapshot, TlsVersion, Transport};

/// Handshakes and what they cost.
#[derive(Debug)]
pub struct Handshakes {
    /// From a connection's beginning to the client's Finished.
    pub seconds: Histograms<(TlsVersion, HandshakeKind, Transport)>,
    /// From a connection's beginning to the head of its first answer.
    pub first_answer: Histograms<(HandshakeKind, Transport)>,
}

impl Default for Handshakes {
    fn default() -> Self {
        Self {
            seconds: Histograms::new(&SECONDS, TIMES),
            first_answer: Histograms::new(&FIRST_ANSWER, TIMES),
        }
    }
}

impl Handshakes {
    pub(super) fn collect(&self, snapshot: &mut Snapshot) {
        snapshot.push(self.seconds.family());
        snapshot.push(self.first_answer.family());
    }
}

/// From what a local network takes to what a client stands.
pub(super) const TIMES: &[f64] = &[
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0,
];

static SECONDS: Description = Description::histogram(
    "firstflight_handshake_seconds",
    "From a connection's acceptance to the client's Finished.",
    "The client's round trip lies in it. An early one is not waited for: see the first answer.",
);
static FIRST_ANSWER: Description = Description::histogram(
    "firstflight_first_answer_seconds",
    "From a connection's acceptance to the head of its first answer.",
    "What 0-RTT is worth: early lies below resumed by a round trip. Clients that connect ahead of \
     need make the slow end of full and resumed longer.",
);
