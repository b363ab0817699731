//! The gate of one process: whose is a first flight, and may it be accepted at all.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::ClaimKey;
use crate::flight::{Flight, Offer};
use crate::inheritance::Inheritance;
use crate::register::{Claim, RegisterStatistics, StrikeRegister};

/// Settings of a [`Gate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateConfig {
    /// How far the ticket age that the client states may be off for its request to run early
    /// (RFC 8446 section 8.3). Default 10 s.
    pub freshness: Duration,
    /// What clocks may drift apart or be stepped unnoticed. Default 5 s.
    pub clock_margin: Duration,
    /// The skew beyond which TLS itself refuses early data. Default 60 s, BoringSSL's bound;
    /// a smaller value than the library's makes the gate unsound.
    pub max_skew: Duration,
    /// Records that the strike register holds: 2^20 by default, 38 MB when all are in use.
    /// A record lives about 66 s at a skew of 0, so this is some 15,000 early connections a
    /// second. The register of names ([`Gate::claim_name`]) is another, of the same size.
    pub capacity: usize,
    /// Whether a flight may have been executed before this gate began.
    pub startup: Startup,
}

impl GateConfig {
    /// How long nothing is accepted after records may have been lost (RFC 8446 section 8.2):
    /// `max_skew + freshness + clock_margin + 1 s`, 76 s by default.
    ///
    /// A flight that was settled before the loss had a skew of `max_skew` at most, so its copies
    /// are fresh for no longer than `max_skew + freshness`. The second is for rounding: TLS counts
    /// skews in whole seconds.
    pub fn recording_window(&self) -> Duration {
        self.max_skew
            .saturating_add(self.freshness)
            .saturating_add(self.clock_margin)
            .saturating_add(Duration::from_millis(ROUNDING as u64))
    }
}

impl Default for GateConfig {
    fn default() -> Self {
        Self {
            freshness: Duration::from_secs(10),
            clock_margin: Duration::from_secs(5),
            max_skew: Duration::from_secs(60),
            capacity: 1 << 20,
            startup: Startup::KeysMayPredateStart,
        }
    }
}

/// Whether tickets that are good now may have been used before the gate began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Startup {
    /// The ticket keys were made with this process: no flight can predate it.
    KeysAreNew,
    /// The ticket keys are shared or were kept: flights of the last minute may have been executed
    /// already, so the gate begins with a recording window without early data. Make the gate
    /// after the process before has settled its last flight.
    KeysMayPredateStart,
}

/// Why TLS is to refuse a flight's early data. It is then executed nowhere, and its client sends
/// its requests again by itself, after the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Records may be missing: a start, a lost store, a clock set back.
    StartupWindow,
    /// The strike register is full, or had to leave a flight unrecorded.
    RegisterFull,
    /// The ticket age is off by more than the freshness window (RFC 8446 section 8.3).
    TicketAge,
    /// The flight, or a copy of it, has been refused before: its client sends, or has sent, its
    /// requests again.
    RefusedBefore,
    /// The register is another process's now: ask that one ([`crate::Question`]). Nothing was
    /// recorded here.
    HandedOver,
}

/// Settles the claims of first flights. Shared by all connections of a process.
///
/// Each flight whose early data TLS would accept comes to [`claim`](Self::claim) once, before
/// anything of the handshake is sent. There is no other way to early data, and no flight passes it
/// without a record, whatever comes of it.
#[derive(Debug)]
pub struct Gate {
    config: GateConfig,
    register: StrikeRegister,
    /// Idempotency keys and nonces.
    names: StrikeRegister,
    /// Nothing is accepted before this, as flights may predate the start.
    begins_at: AtomicI64,
    /// Nothing is accepted before this, as records may be missing.
    lost_until: AtomicI64,
    /// Nothing is accepted before this, as a flight was refused without a record.
    blind_until: AtomicI64,
    /// No new name is taken before this, as there was no room for one that was taken over.
    names_blind_until: AtomicI64,
}

impl Gate {
    /// A gate that begins at `now`. A `freshness` above `max_skew` means `max_skew`.
    pub fn new(config: GateConfig, now: Duration) -> Self {
        let config = GateConfig { freshness: config.freshness.min(config.max_skew), ..config };
        let begins_at = match config.startup {
            Startup::KeysMayPredateStart => {
                millis(now).saturating_add(millis(config.recording_window()))
            }
            Startup::KeysAreNew => i64::MIN,
        };
        Self {
            config,
            register: StrikeRegister::new(config.capacity),
            names: StrikeRegister::with_unit(config.capacity, NAMES_UNIT),
            begins_at: AtomicI64::new(begins_at),
            lost_until: AtomicI64::new(i64::MIN),
            blind_until: AtomicI64::new(i64::MIN),
            names_blind_until: AtomicI64::new(i64::MIN),
        }
    }

    /// Settles a flight's claim. Call it once for each flight whose early data TLS would accept,
    /// before TLS answers its ClientHello.
    ///
    /// The flight that comes out may be one whose claim another connection has
    /// ([`Flight::won`]): to refuse it would have the client send again what a copy may have
    /// executed, so its requests come to the gate, and to their 425.
    ///
    /// # Errors
    /// Let TLS refuse early data. The flight leaves a record all the same, so that no copy is
    /// accepted beside what its client sends again. If there is no room even for that, nothing is
    /// accepted until the flight is stale.
    pub fn claim(&self, offer: &Offer, now: Duration) -> Result<Flight, Refusal> {
        let mut outcome = self.record(offer, now);
        if let (Claim::Full, _) = outcome {
            self.blind_until.fetch_max(self.stale_at(offer), Ordering::SeqCst);
            // A copy may have claimed before it could see that the gate is closed.
            outcome = self.record(offer, now);
        }
        match outcome {
            (Claim::Won, _) => Ok(offer.settled(true)),
            (Claim::Lost, _) => Ok(offer.settled(false)),
            (Claim::Barred, why) => Err(why),
            (Claim::Full, _) => Err(Refusal::RegisterFull),
            (Claim::Closed, _) => Err(Refusal::HandedOver),
        }
    }

    /// Claims a name: an idempotency key or a nonce, which is to be met once within `life`. Days
    /// are possible; a life may last 16 s longer. [`Claim::Won`]: nobody had it.
    /// [`Claim::Closed`]: ask the process that has the register now.
    pub fn claim_name(&self, name: ClaimKey, life: Duration, now: Duration) -> Claim {
        if millis(now) < self.names_blind_until.load(Ordering::SeqCst)
            && !self.names.contains(name, now)
        {
            return Claim::Full;
        }
        self.names.claim(name, now.saturating_add(life), now)
    }

    /// Gives a name back, since what it was claimed for has certainly not happened. `false`: it is
    /// not claimed here, or the process that has the register now has to know.
    pub fn release_name(&self, name: ClaimKey, now: Duration) -> bool {
        self.names.release(name, now)
    }

    /// Closes the gate, and says all that it knows. Nothing is recorded here any more: what comes
    /// at the same time is in the inheritance, or is [`Refusal::HandedOver`].
    ///
    /// `terms`: by what TLS accepts flights here. `common`: this moment by a clock that the next
    /// process reads too.
    pub fn hand_over(&self, terms: ClaimKey, common: Duration, now: Duration) -> Inheritance {
        // The registers first: a gate that closes for another reason meanwhile says so after them.
        let flights = self.register.close(now);
        let names = self.names.close(now);
        let until = [&self.begins_at, &self.lost_until, &self.blind_until];
        let until = until.map(|at| at.load(Ordering::SeqCst)).into_iter().max().unwrap_or(i64::MIN);
        let window = until.saturating_sub(millis(now)).max(0);
        let window = Duration::from_millis(u64::try_from(window).unwrap_or(0));
        Inheritance { closed_at: common, terms, window, flights, names }
    }

    /// Goes on, as nobody took over what was handed over.
    pub fn reopen(&self) {
        self.names.reopen();
        self.register.reopen();
    }

    /// Takes over what another process knew, so that its records hold here, and no window is needed
    /// for them. Call it before the first flight is accepted here, and when no other process holds
    /// what is taken over.
    ///
    /// What finds no room closes the gate for as long as its record would have been needed. And
    /// with other `terms` than the other process's there is a window: what TLS refused there by
    /// itself was sent again without a record, and TLS might accept a copy of it here.
    pub fn take_over(
        &self,
        inheritance: &Inheritance,
        terms: ClaimKey,
        common: Duration,
        now: Duration,
    ) {
        let passed = common.saturating_sub(inheritance.closed_at);
        let then = now.saturating_sub(passed);
        let until = millis(then).saturating_add(millis(inheritance.window));
        self.lost_until.fetch_max(until, Ordering::SeqCst);
        for (register, held, blind) in [
            (&self.register, &inheritance.flights, &self.blind_until),
            (&self.names, &inheritance.names, &self.names_blind_until),
        ] {
            let missed =
                held.iter().filter(|held| !register.take(held, then)).map(|held| held.left);
            if let Some(left) = missed.max() {
                let needed = millis(then).saturating_add(i64::from(left).saturating_mul(1000));
                blind.fetch_max(needed, Ordering::SeqCst);
            }
        }
        if terms != inheritance.terms {
            self.claims_lost(now);
        }
        self.begins_at.store(i64::MIN, Ordering::SeqCst);
    }

    /// Begins a recording window without early data, since records may have been lost: for a
    /// register or a policy of early data that was not there before.
    pub fn claims_lost(&self, now: Duration) {
        self.claims_lost_for(Duration::ZERO, now);
    }

    /// The same where records may go on to be lost for so long.
    pub fn claims_lost_for(&self, as_long: Duration, now: Duration) {
        self.lose_claims_for(self.config.recording_window().saturating_add(as_long), now);
    }

    /// The clock by which TLS measures ticket ages is about to be set back by `step`, which makes
    /// flights fresh again whose records are long gone: begins a recording window, longer by the
    /// step. Call it before ages are measured by the new time. A clock that is set forward makes
    /// flights stale, and needs no word.
    pub fn clock_set_back(&self, step: Duration, now: Duration) {
        self.lose_claims_for(self.config.recording_window().saturating_add(step), now);
    }

    /// Why no flight is accepted now, if so.
    pub fn closed(&self, now: Duration) -> Option<Refusal> {
        let at = millis(now);
        let lost_until = self.begins_at.load(Ordering::SeqCst);
        if at < lost_until.max(self.lost_until.load(Ordering::SeqCst)) {
            Some(Refusal::StartupWindow)
        } else if at < self.blind_until.load(Ordering::SeqCst) {
            Some(Refusal::RegisterFull)
        } else {
            None
        }
    }

    /// The strike register's counters.
    pub fn statistics(&self) -> RegisterStatistics {
        self.register.statistics()
    }

    /// The counters of the register of names.
    pub fn name_statistics(&self) -> RegisterStatistics {
        self.names.statistics()
    }

    /// The settings in force.
    pub fn config(&self) -> &GateConfig {
        &self.config
    }

    /// Records the flight, as claimed or as barred. With what speaks against it, if it is barred.
    fn record(&self, offer: &Offer, now: Duration) -> (Claim, Refusal) {
        let mut why = Refusal::RefusedBefore;
        // Asked under the key's lock: who cannot record a flight closes the gate first, and then
        // asks again.
        let may_win = || match self.objection(offer, now) {
            Some(objection) => {
                why = objection;
                false
            }
            None => true,
        };
        let claim = self.register.claim_if(offer.key, self.expiry(offer), now, may_win);
        (claim, why)
    }

    /// Why a flight that nobody has claimed may not be accepted, if so.
    fn objection(&self, offer: &Offer, now: Duration) -> Option<Refusal> {
        let skew = i64::from(offer.skew_seconds).saturating_mul(1000);
        let freshness = millis(self.config.freshness);
        let is_fresh =
            skew <= freshness && millis(now) <= zero_skew_at(offer).saturating_add(freshness);
        match self.closed(now) {
            None if !is_fresh => Some(Refusal::TicketAge),
            closed => closed,
        }
    }

    /// When no copy of the flight is fresh any more, with the margins.
    fn stale_at(&self, offer: &Offer) -> i64 {
        zero_skew_at(offer)
            .saturating_add(millis(self.config.freshness))
            .saturating_add(ROUNDING)
            .saturating_add(millis(self.config.clock_margin))
    }

    /// When a record of the flight may go: TLS refuses every copy by then. Not sooner when the
    /// flight is merely stale, since the honest original may come after that, held up by who sent
    /// the copy; refused, its client would send it again.
    fn expiry(&self, offer: &Offer) -> Duration {
        let at = zero_skew_at(offer)
            .saturating_add(millis(self.config.max_skew))
            .saturating_add(ROUNDING)
            .saturating_add(millis(self.config.clock_margin));
        Duration::from_millis(u64::try_from(at).unwrap_or(0))
    }

    fn lose_claims_for(&self, window: Duration, now: Duration) {
        let until = millis(now).saturating_add(millis(window));
        self.lost_until.fetch_max(until, Ordering::SeqCst);
    }
}

/// When the flight's skew is zero: the one moment that all its copies have in common, but for
/// rounding: a copy that comes a second later has a skew one second lower.
fn zero_skew_at(offer: &Offer) -> i64 {
    millis(offer.seen_at).saturating_add(i64::from(offer.skew_seconds).saturating_mul(1000))
}

/// Whole milliseconds, signed: moments before the start occur, as skews are negative too.
fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// What the lives of names are counted by, in seconds.
const NAMES_UNIT: u32 = 16;

/// Milliseconds by which two copies may differ, as TLS counts skews in whole seconds.
const ROUNDING: i64 = 1000;

#[cfg(test)]
#[path = "gate_model.rs"]
mod model;
