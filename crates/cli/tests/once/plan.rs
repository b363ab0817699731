//! How long the suite runs, and the attempts behind the rows of its table.

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::Instant;

use crate::attacker::Schedule;
use crate::client::Transport;

/// Settings of all cases.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Whether this is `make chaos`: all shifts, and copies for longer.
    pub(crate) long: bool,
    /// Where the table is written, apart from standard output.
    pub(crate) results: Option<PathBuf>,
}

impl Plan {
    /// Reads `FIRSTFLIGHT_ONCE=long`, and the directory `CHAOS_RESULTS`.
    pub(crate) fn from_environment() -> Self {
        let long = match std::env::var("FIRSTFLIGHT_ONCE").as_deref() {
            Ok("long") => true,
            Ok("short") | Err(_) => false,
            Ok(other) => panic!("FIRSTFLIGHT_ONCE={other}: must be short or long"),
        };
        Self { long, results: std::env::var_os("CHAOS_RESULTS").map(PathBuf::from) }
    }

    /// How many seconds tickets state more than their age: within freshness, beyond it, and beyond
    /// what TLS accepts.
    pub(crate) fn shifts(&self) -> &'static [i64] {
        match self.long {
            true => &[0, 12, 30, 50, 61, 70, 130, 3600, -12, -30, -50, -61, -70, -130, -3600],
            false => &[0, 12, 30, 70, -12, -30],
        }
    }

    /// Further shifts for punctured keys, whose tickets have no freshness window: up to most of
    /// their lifetime, and as far behind as a run lasts.
    pub(crate) fn far_shifts(&self) -> &'static [i64] {
        if self.long { &[] } else { &[3600, 36_000, -70] }
    }

    /// By how many seconds a server's clock is set.
    pub(crate) fn clock_steps(&self) -> &'static [i64] {
        &[3600, -3600]
    }

    /// The shift of flights that are refused because of a changed setting only.
    pub(crate) fn fresh_shifts(&self) -> &'static [i64] {
        if self.long { &[5, 45, 90] } else { &[5] }
    }

    /// The shift of flights that were refused before a restart.
    pub(crate) fn restart_shifts(&self) -> &'static [i64] {
        if self.long { &[30, 90, 130] } else { &[30] }
    }

    /// Number of concurrent cases: they mostly wait, but each has its own processes.
    pub(crate) fn concurrency(&self, cases: usize) -> usize {
        if self.long { cases.min(48) } else { cases }
    }

    /// Whether copies are sent for this time.
    pub(crate) fn lasts(&self, time: Duration) -> bool {
        self.long || time < MAX_SHORT
    }

    /// When the last copies are sent of a flight that states its exact age at `exact`.
    pub(crate) fn end(&self, exact: Instant) -> Instant {
        match self.long {
            true => exact + Duration::from_secs(60),
            false => (exact + Duration::from_secs(15)).min(Instant::now() + MAX_SHORT),
        }
    }
}

/// How long a short run sends copies of one flight: enough for those that become fresh after TLS
/// has refused them for their age.
const MAX_SHORT: Duration = Duration::from_secs(66);

/// When the attacker sends copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attack {
    /// From the first moment. A copy that is not fresh yet may leave a record at the server.
    Eager,
    /// Only when a copy is fresh.
    Patient,
}

/// One honest request under attack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    /// Its transport.
    pub(crate) transport: Transport,
    /// How many seconds the stated age is greater than the ticket's.
    pub(crate) shift: i64,
    /// When copies are sent.
    pub(crate) attack: Attack,
}

impl Attempt {
    /// One attempt for each transport, with both kinds of attacks where that makes a difference.
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

    /// When a copy of a request that is sent now states its exact age, but not in the past.
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
