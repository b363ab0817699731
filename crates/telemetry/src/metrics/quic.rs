//! QUIC's door.

use super::{Counters, Description, Family, QuicRefusal, Series, Snapshot, Value};

/// QUIC's door.
#[derive(Debug)]
pub struct Quic {
    /// Connections that were turned away.
    pub turned_away: Counters<QuicRefusal>,
    /// Connections whose client had shown its address by a token.
    pub tokens: Counters<()>,
}

/// What is known of QUIC now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QuicReading {
    /// Handshakes in progress.
    pub handshakes: u64,
}

impl Default for Quic {
    fn default() -> Self {
        Self { turned_away: Counters::new(&TURNED_AWAY), tokens: Counters::new(&TOKENS) }
    }
}

impl Quic {
    /// `None`: there is no HTTP/3.
    pub(super) fn collect(&self, now: Option<&QuicReading>, snapshot: &mut Snapshot) {
        snapshot.push(self.turned_away.family());
        snapshot.push(self.tokens.family());
        let series = now.map(|now| Series::new(Vec::new(), Value::Number(now.handshakes as f64)));
        snapshot.push(Family {
            description: &HANDSHAKES,
            labels: Vec::new(),
            series: series.into_iter().collect(),
        });
    }
}

static TURNED_AWAY: Description = Description::counter(
    "firstflight_quic_turned_away_total",
    "Connections over QUIC that were not begun at their first packet.",
    "retry and rush growing fast: forged addresses, or a rush of new clients. See \
     http3.retry_above and http3.refuse_above.",
);
static TOKENS: Description = Description::counter(
    "firstflight_quic_tokens_accepted_total",
    "Connections over QUIC that showed their address by a token from an earlier one.",
    "Divided by connections over QUIC: how many have their whole answer in one round trip.",
);
static HANDSHAKES: Description = Description::gauge(
    "firstflight_quic_handshakes_active",
    "Handshakes over QUIC in progress now.",
    "At http3.refuse_above first packets are ignored.",
);
