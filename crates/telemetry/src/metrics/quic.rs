//! QUIC's door.

use super::family::counted;
use super::{Counters, Description, Family, QuicRefusal, Series, Snapshot, Value};

counted! {
    /// QUIC's door.
    pub struct Quic {
        turned_away: Counters<QuicRefusal> = counter(
            "firstflight_quic_turned_away_total",
            "Connections over QUIC that were not begun at their first packet.",
            "retry and rush growing fast: forged addresses, or a rush of new clients. See \
             http3.retry_above and http3.refuse_above.",
        );
        tokens: Counters<()> = counter(
            "firstflight_quic_tokens_accepted_total",
            "Connections over QUIC that showed their address by a token from an earlier one.",
            "Divided by connections over QUIC: how many have their whole answer in one round trip.",
        );
    }
}

/// What is known of QUIC now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QuicReading {
    /// Handshakes in progress.
    pub handshakes: u64,
}

impl Quic {
    /// `None`: there is no HTTP/3.
    pub(super) fn collect(&self, now: Option<&QuicReading>, snapshot: &mut Snapshot) {
        self.counted(snapshot);
        let series = now.map(|now| Series::new(Vec::new(), Value::Number(now.handshakes as f64)));
        snapshot.push(Family {
            description: &HANDSHAKES,
            labels: Vec::new(),
            series: series.into_iter().collect(),
        });
    }
}

static HANDSHAKES: Description = Description::gauge(
    "firstflight_quic_handshakes_active",
    "Handshakes over QUIC in progress now.",
    "At http3.refuse_above first packets are ignored.",
);
