//! Tickets, their keys and their ages.

use super::labels::LabelInfo;
use super::{Description, Family, Histograms, Series, SeriesValue, Snapshot};

/// Tickets that clients presented.
#[derive(Debug)]
pub struct Tickets {
    /// Ticket-age skew of resumed TLS 1.3 sessions.
    pub age_skew: Histograms<()>,
}

impl Default for Tickets {
    fn default() -> Self {
        Self { age_skew: Histograms::new(&AGE_SKEW, SKEW_BOUNDS) }
    }
}

/// State of the ticket ring.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TicketReading {
    /// Since when the current key has been current, in seconds since 1970.
    pub current_since: u64,
    /// Now, in seconds since 1970 by the clock that ages tickets.
    pub now: u64,
    /// How long a key is current, in seconds.
    pub period: u64,
    /// Keys in the ring: previous, current and next ones.
    pub keys: [u64; 3],
    /// Tickets sealed.
    pub sealed: u64,
    /// Tickets opened under a previous key, the current one, a next one, one that was replaced.
    pub opened: [u64; 4],
    /// Tickets of a key that is not in the ring.
    pub unknown: u64,
    /// Tickets that name a key which did not seal them.
    pub forged: u64,
    /// Sessions of single-use tickets that could not be stored.
    pub sessions_lost: u64,
    /// Punctured tickets, if this process issues them.
    pub punctured: Option<PuncturedReading>,
}

/// State of punctured tickets: each can be opened once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PuncturedReading {
    /// Issued, and neither used nor expired.
    pub outstanding: u64,
    /// Used.
    pub used: u64,
    /// Unused, and expired or given up because of the limit of memory.
    pub lost: [u64; 2],
    /// Memory of the keys, in bytes.
    pub bytes: u64,
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
        // Without punctured tickets, these metrics have no series.
        let punctured = ring.punctured.as_ref();
        snapshot.push(number(&OUTSTANDING, punctured.map(|tickets| tickets.outstanding)));
        let used = punctured.map(|tickets| (None, tickets.used));
        snapshot.push(counter(&USED, Vec::new(), used));
        let lost = punctured.into_iter().flat_map(|tickets| CAUSE.values.iter().zip(tickets.lost));
        let lost = lost.map(|((name, _), count)| (Some((CAUSE.name, *name)), count));
        snapshot.push(counter(&UNUSED, vec![CAUSE], lost));
        snapshot.push(number(&BYTES, punctured.map(|tickets| tickets.bytes)));
    }
}

fn number(description: &'static Description, value: Option<u64>) -> Family {
    let series = value.map(|value| Series::new(Vec::new(), SeriesValue::Number(value as f64)));
    Family { description, labels: Vec::new(), series: series.into_iter().collect() }
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

/// TLS compares whole seconds. The gate allows 10 s by default, the TLS library 60 s.
const SKEW_BOUNDS: &[f64] = &[-60.0, -10.0, -5.0, -2.0, -1.0, 0.0, 1.0, 2.0, 5.0, 10.0, 60.0];

const KEY: LabelInfo = LabelInfo {
    name: "key",
    values: &[
        ("previous", "It was current, and still opens its tickets."),
        ("current", "It seals new tickets."),
        ("next", "It will seal next; other nodes may seal with it already."),
        ("replaced", "It has left the ring, and its last tickets are still valid."),
    ],
    meaning: "",
};
const REASON: LabelInfo = LabelInfo {
    name: "reason",
    values: &[
        ("unknown_key", "Not a key of the ring: rotated out, of another cluster, or not a ticket."),
        ("forged", "It names a key of the ring that did not seal it."),
    ],
    meaning: "",
};

const CAUSE: LabelInfo = LabelInfo {
    name: "cause",
    values: &[
        ("expired", "Its client did not return in time."),
        ("memory", "The keys had reached their limit of memory."),
    ],
    meaning: "",
};

static KEY_AGE: Description = Description::gauge(
    "firstflight_ticket_key_age_seconds",
    "Time since the current ticket key became current.",
    "Well above the period: keys are not rotated, and one stolen key opens all tickets ever \
     issued.",
);
static KEY_PERIOD: Description = Description::gauge(
    "firstflight_ticket_key_period_seconds",
    "How long a ticket key is current.",
    "Set by `tickets.rotation` or the key file.",
);
static KEYS: Description = Description::gauge(
    "firstflight_ticket_keys",
    "Keys in the ring with valid tickets.",
    "No `next` key shortly before a rotation: other nodes will not open new tickets at once.",
);
static SEALED: Description = Description::counter(
    "firstflight_tickets_sealed_total",
    "Session tickets and address tokens sealed.",
    "Several per handshake: `tls.tickets`, and as many tokens over QUIC.",
);
static OPENED: Description = Description::counter(
    "firstflight_tickets_opened_total",
    "Session tickets and address tokens opened, by the state of their key.",
    "`next`: another node rotated first. `replaced`: tickets from before the keys were in the \
     store.",
);
static REFUSED: Description = Description::counter(
    "firstflight_tickets_refused_total",
    "Session tickets and address tokens that were not opened.",
    "`unknown_key`: clients return after their key has left the ring, or nodes do not share keys. \
     `forged`: an attack.",
);
static AGE_SKEW: Description = Description::histogram(
    "firstflight_ticket_age_skew_seconds",
    "Ticket age stated by the client minus the age computed here (RFC 8446 section 8.3).",
    "Normally around 0. All clients on one side: this node's clock was set, or nodes' clocks \
     differ. Single negative values: slow paths, or delayed flights.",
);
static LOST: Description = Description::counter(
    "firstflight_single_use_sessions_lost_total",
    "Sessions of single-use tickets that could not be stored.",
    "Their clients make full handshakes. Check the store.",
);
static OUTSTANDING: Description = Description::gauge(
    "firstflight_punctured_tickets_outstanding",
    "Punctured tickets that were issued, and neither used nor expired.",
    "Falls when clients return. Starts at 0 with each process, except after an upgrade.",
);
static USED: Description = Description::counter(
    "firstflight_punctured_tickets_used_total",
    "Punctured tickets used, whether early data was accepted or refused.",
    "Far below those that expire: clients return too late, or at another node.",
);
static UNUSED: Description = Description::counter(
    "firstflight_punctured_tickets_unused_total",
    "Punctured tickets whose keys were destroyed unused.",
    "`memory` growing: more tickets are outstanding than fit. Issue fewer (`tls.tickets`).",
);
static BYTES: Description = Description::gauge(
    "firstflight_punctured_keys_bytes",
    "Memory of the keys of punctured tickets.",
    "Beyond the limit of 256 MiB, the oldest tickets are given up.",
);
