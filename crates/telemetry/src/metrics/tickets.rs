//! Tickets, their keys and their ages.

use super::labels::LabelInfo;
use super::{Description, Family, Histograms, Series, SeriesValue, Snapshot};

/// Tickets that clients came with.
#[derive(Debug)]
pub struct Tickets {
    /// The ticket age stated less the one reckoned, of resumed TLS 1.3 sessions.
    pub age_skew: Histograms<()>,
}

impl Default for Tickets {
    fn default() -> Self {
        Self { age_skew: Histograms::new(&AGE_SKEW, SKEW_BOUNDS) }
    }
}

/// The ring's figures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TicketReading {
    /// Since when the current key has been current, in seconds since 1970.
    pub current_since: u64,
    /// Now, in seconds since 1970 by the clock that ages tickets.
    pub now: u64,
    /// How long a key is to be current, in seconds.
    pub period: u64,
    /// Keys in the ring: previous, current and next ones.
    pub keys: [u64; 3],
    /// Tickets sealed.
    pub sealed: u64,
    /// Tickets opened under a previous key, the current one, a next one, one that was replaced.
    pub opened: [u64; 4],
    /// Tickets under no key of the ring.
    pub unknown: u64,
    /// Tickets that name a key which did not seal them.
    pub forged: u64,
    /// Sessions of single-use tickets that could not be kept.
    pub sessions_lost: u64,
}

impl Tickets {
    pub(super) fn collect(&self, ring: &TicketReading, snapshot: &mut Snapshot) {
        snapshot.number(&KEY_AGE, ring.now.saturating_sub(ring.current_since) as f64);
        snapshot.number(&KEY_PERIOD, ring.period as f64);
        let keys = KEY.values.iter().zip(ring.keys);
        snapshot.numbers(
            &KEYS,
            LabelInfo { values: &KEY.values[..3], ..KEY },
            keys.map(|((name, _), count)| ((*name).into(), count as f64)),
        );
        snapshot.push(counter(&SEALED, Vec::new(), [(None, ring.sealed)]));
        let opened = KEY.values.iter().zip(ring.opened);
        let opened = opened.map(|((name, _), count)| (Some((KEY.name, *name)), count));
        snapshot.push(counter(&OPENED, vec![KEY], opened));
        let refused = [("unknown_key", ring.unknown), ("forged", ring.forged)];
        let refused = refused.map(|(name, count)| (Some((REASON.name, name)), count));
        snapshot.push(counter(&REFUSED, vec![REASON], refused));
        snapshot.push(self.age_skew.family());
        snapshot.push(counter(&LOST, Vec::new(), [(None, ring.sessions_lost)]));
    }
}

fn counter(
    description: &'static Description,
    labels: Vec<LabelInfo>,
    values: impl IntoIterator<Item = (Option<(&'static str, &'static str)>, u64)>,
) -> Family {
    let series = values.into_iter().map(|(label, count)| {
        let labels = label.map(|(name, value)| (name, value.into()));
        Series::new(labels.into_iter().collect(), SeriesValue::Count(count))
    });
    Family { description, labels, series: series.collect() }
}

/// Whole seconds are what TLS reckons in; the gate's window is 10 s, the library's 60 s.
const SKEW_BOUNDS: &[f64] = &[-60.0, -10.0, -5.0, -2.0, -1.0, 0.0, 1.0, 2.0, 5.0, 10.0, 60.0];

const KEY: LabelInfo = LabelInfo {
    name: "key",
    values: &[
        ("previous", "It was current, and opens what it sealed."),
        ("current", "It seals."),
        ("next", "It will seal; other nodes may do so already."),
        ("replaced", "The ring has it no more, and its last tickets still live."),
    ],
    meaning: "",
};
const REASON: LabelInfo = LabelInfo {
    name: "reason",
    values: &[
        ("unknown_key", "No key of the ring: rotated out, another cluster's, or no ticket at all."),
        ("forged", "It names a key of the ring, which did not seal it."),
    ],
    meaning: "",
};

static KEY_AGE: Description = Description::gauge(
    "firstflight_ticket_key_age_seconds",
    "How long the current ticket key has been current.",
    "Above the period by more than a little: nobody rotates. Without rotation the tickets of all \
     time fall with one stolen key.",
);
static KEY_PERIOD: Description = Description::gauge(
    "firstflight_ticket_key_period_seconds",
    "How long a ticket key is to be current.",
    "tickets.rotate_every, or the key file's own schedule.",
);
static KEYS: Description = Description::gauge(
    "firstflight_ticket_keys",
    "Keys in the ring whose tickets live.",
    "No next one shortly before a rotation: other nodes will not open tickets at once.",
);
static SEALED: Description = Description::counter(
    "firstflight_tickets_sealed_total",
    "Session tickets and address tokens sealed.",
    "Some per handshake: tls.tickets, and as many tokens over QUIC.",
);
static OPENED: Description = Description::counter(
    "firstflight_tickets_opened_total",
    "Session tickets and address tokens opened, by what their key is for now.",
    "next: another node rotates ahead of this one. replaced: clients from before the store had keys.",
);
static REFUSED: Description = Description::counter(
    "firstflight_tickets_refused_total",
    "Session tickets and address tokens that were not opened.",
    "unknown_key: clients come back later than keys live, or nodes do not share their keys. \
     forged: somebody tries.",
);
static AGE_SKEW: Description = Description::histogram(
    "firstflight_ticket_age_skew_seconds",
    "The age that a client states of its ticket less the one reckoned here (RFC 8446 section 8.3).",
    "Around 0. A whole fleet to one side: this node's clock was set, or nodes' clocks disagree. \
     Single ones on the negative side: slow paths, or flights that were held back.",
);
static LOST: Description = Description::counter(
    "firstflight_single_use_sessions_lost_total",
    "Sessions of single-use tickets that could not be kept in the store.",
    "Their clients make full handshakes. See the store.",
);
