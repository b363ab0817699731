//! How long the suite runs, and what each row of its table tries.

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::Instant;

use crate::attacker::Schedule;
use crate::client::Transport;

/// What all cases go by.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Whether this is `make chaos`: all shifts, and copies for longer.
    pub(crate) long: bool,
    /// Where the table goes apart from standard output.
    pub(crate) results: Option<PathBuf>,
}

impl Plan {
    /// `FIRSTFLIGHT_ONCE=long`, and `CHAOS_RESULTS`: a directory.
    pub(crate) fn from_environment() -> Self {
        let long = match std::env::var("FIRSTFLIGHT_ONCE").as_deref() {
            Ok("long") => true,
            Ok("short") | Err(_) => false,
            Ok(other) => panic!("FIRSTFLIGHT_ONCE={other}: it is short or long"),
        };
        Self { long, results: std::env::var_os("CHAOS_RESULTS").map(PathBuf::from) }
    }

    /// By how many seconds more than their age tickets state: within freshness, beyond it, and
    /// beyond what TLS accepts.
    pub(crate) fn shifts(&self) -> &'static [i64] {
        match self.long {
            true => &[0, 12, 30, 50, 61, 70, 130, 3600, -12, -30, -50, -61, -70, -130, -3600],
            false => &[0, 12, 30, 70, -12, -30],
        }
    }

    /// The shift of flights that are refused for a switched setting: fresh, if it were not for
    /// that.
    pub(crate) fn fresh_shifts(&self) -> &'static [i64] {
        if self.long { &[5, 45, 90] } else { &[5] }
    }

    /// The shift of flights that were refused before a restart.
    pub(crate) fn restart_shifts(&self) -> &'static [i64] {
        if self.long { &[30, 90, 130] } else { &[30] }
    }

    /// Cases at a time: they wait for most of their time, but each has its own processes.
    pub(crate) fn side_by_side(&self, cases: usize) -> usize {
        if self.long { cases.min(48) } else { cases }
    }

    /// Whether copies are sent for so long.
    pub(crate) fn lasts(&self, time: Duration) -> bool {
        self.long || time < MAX_SHORT
    }

    /// When the last copies are sent of a flight that states its exact age then.
    pub(crate) fn end(&self, exact: Instant) -> Instant {
        match self.long {
            true => exact + Duration::from_secs(60),
            false => (exact + Duration::from_secs(15)).min(Instant::now() + MAX_SHORT),
        }
    }
}

/// How long a short run sends copies of one flight: long enough for those that are fresh again
/// after TLS has refused them for their age.
const MAX_SHORT: Duration = Duration::from_secs(66);

/// When the attacker sends copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attack {
    /// From the first moment on. A copy that is not fresh yet may leave a record at the server.
    Eager,
    /// Not before a copy is fresh.
    Patient,
}

/// One honest request under attack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    /// How it travels.
    pub(crate) transport: Transport,
    /// By how many seconds the stated age is more than the ticket's.
    pub(crate) shift: i64,
    /// When copies come.
    pub(crate) attack: Attack,
}

impl Attempt {
    /// One for each of these transports, by both kinds of attackers where that makes a difference.
    pub(crate) fn all(plan: &Plan, transports: &[Transport], shift: i64) -> Vec<Self> {
        let wait = u64::try_from(shift).unwrap_or(0).saturating_sub(EARLIEST.as_secs());
        let attacks: &[Attack] = match wait > 0 && plan.lasts(Duration::from_secs(wait)) {
            true => &[Attack::Eager, Attack::Patient],
            false => &[Attack::Eager],
        };
        let mut all = Vec::new();
        for &transport in transports {
            all.extend(attacks.iter().map(|&attack| Self { transport, shift, attack }));
        }
        all
    }

    /// When a copy of a request that is sent now states its exact age, unless that was before.
    pub(crate) fn exact(self) -> Instant {
        Instant::now() + Duration::from_secs(u64::try_from(self.shift).unwrap_or(0))
    }

    /// When copies are sent: until none can be fresh, and for a while longer.
    pub(crate) fn schedule(self, exact: Instant, plan: &Plan) -> Schedule {
        let now = Instant::now();
        let start = match self.attack {
            Attack::Eager => now,
            Attack::Patient => exact - EARLIEST,
        };
        Schedule { exact, start, end: plan.end(exact) }
    }
}

/// How long before its exact time a copy is fresh: `freshness`, less a second of rounding.
const EARLIEST: Duration = Duration::from_secs(9);
