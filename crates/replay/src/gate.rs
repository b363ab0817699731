//! The gate: which early request runs at once, which waits, and what becomes of it then.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::flight::{Flight, Standing};
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
    /// How long a handshake may take from the ClientHello on. Records live this much longer; a
    /// flight that takes longer than its record would is answered 425. Default 30 s.
    pub max_handshake: Duration,
    /// Records that the strike register holds: 2^20 by default, 38 MB when all are in use.
    /// A record lives about 96 s at a skew of 0, so this is some 10,000 early connections a
    /// second.
    pub capacity: usize,
    /// Whether a flight may have been executed before this gate began.
    pub startup: Startup,
}

impl GateConfig {
    /// How long nothing runs early after records may have been lost (RFC 8446 section 8.2):
    /// `max_skew + freshness + clock_margin + 1 s`, 76 s by default.
    ///
    /// Both ways to execute a flight twice across the loss end with it. A flight that ran after
    /// its handshake had a skew of `max_skew` at most, so its copies are fresh for no longer than
    /// `max_skew + freshness`. A flight of which a copy ran early had a skew of `freshness` at
    /// most, so TLS takes the original for no longer than `freshness + max_skew`. The second is
    /// for rounding: TLS counts skews in whole seconds.
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
            max_handshake: Duration::from_secs(30),
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
    /// after the process before has executed its last request.
    KeysMayPredateStart,
}

/// Whether TLS should take early data on a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Let TLS accept early data.
    Accept,
    /// Switch early data off for this connection.
    Refuse(Refusal),
}

/// Why early data is switched off for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Records may be missing: a start, a lost store, a wall clock set back.
    StartupWindow,
    /// The strike register is (nearly) full, or had to leave a flight unrecorded.
    RegisterFull,
}

/// What becomes of an early request now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Run it.
    Execute,
    /// Keep it until the handshake is complete, then ask [`Gate::handshake_complete`].
    Hold(HoldReason),
}

/// Why an early request is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HoldReason {
    /// The policy does not let this request run early.
    Policy,
    /// The ticket age is off by more than the freshness window (RFC 8446 section 8.3).
    TicketAge,
    /// Another connection claimed this flight (RFC 8446 section 8.2).
    Replayed,
    /// The strike register has no room, or had to leave a flight unrecorded.
    RegisterFull,
    /// Records may be missing: a start, a lost store, a wall clock set back.
    StartupWindow,
}

/// What becomes of a held request once its connection's handshake is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// Run it.
    Execute,
    /// Answer 425 (Too Early): the flight was, or may have been, executed already. The client
    /// decides whether to send a new request (RFC 8470 section 5.2).
    TooEarly,
}

/// Decides over early requests. Shared by all connections of a process.
///
/// For each connection: [`admission`](Self::admission) before its ClientHello is processed; once
/// TLS has accepted early data, one [`Flight`]; [`early_request`](Self::early_request) for each
/// request of which any byte came as early data, *also* if the handshake is complete by the time
/// that it is read; [`handshake_complete`](Self::handshake_complete) for each one held, when
/// (and only when) the client's Finished has been verified.
///
/// A request that ran because "the handshake is complete anyway" without passing here leaves no
/// record, and a copy of its flight would run again.
#[derive(Debug)]
pub struct Gate {
    config: GateConfig,
    register: StrikeRegister,
    /// Nothing runs early before this, as records may be missing.
    lost_until: AtomicI64,
    /// Nothing runs early before this, as a flight was executed without a record.
    blind_until: AtomicI64,
    /// The greatest difference between wall clock and monotonic clock since it was last set.
    wall_offset: AtomicI64,
}

impl Gate {
    /// A gate that begins at `now`. A `freshness` above `max_skew` means `max_skew`.
    pub fn new(config: GateConfig, now: Duration) -> Self {
        let config = GateConfig { freshness: config.freshness.min(config.max_skew), ..config };
        let gate = Self {
            config,
            register: StrikeRegister::new(config.capacity),
            lost_until: AtomicI64::new(i64::MIN),
            blind_until: AtomicI64::new(i64::MIN),
            wall_offset: AtomicI64::new(i64::MIN),
        };
        if config.startup == Startup::KeysMayPredateStart {
            gate.claims_lost(now);
        }
        gate
    }

    /// Whether TLS should accept early data on a connection whose ClientHello is about to be
    /// processed.
    ///
    /// A refusal costs the client the same one round trip as holding its request; and as it
    /// resends after the handshake, the flight itself is never executed (RFC 8446 section 8:
    /// after a start, refuse 0-RTT while the recording window reaches back before it).
    pub fn admission(&self, now: Duration) -> Admission {
        match self.closed(millis(now)) {
            Some(refusal) => Admission::Refuse(refusal),
            None if self.register.has_room(now) => Admission::Accept,
            None => Admission::Refuse(Refusal::RegisterFull),
        }
    }

    /// Decides over one request of `flight` that came, wholly or in part, as early data.
    ///
    /// `may_run_early` is the policy's word. It has to follow from nothing but the request
    /// itself, and stay the same as long as the gate lives: a request that ran after its
    /// handshake by policy leaves no record, because every copy of it is held by the same policy.
    pub fn early_request(
        &self,
        flight: &mut Flight,
        may_run_early: bool,
        now: Duration,
    ) -> Decision {
        if !may_run_early {
            return Decision::Hold(HoldReason::Policy);
        }
        match flight.standing {
            Standing::Owned => return Decision::Execute,
            Standing::Lost => return Decision::Hold(HoldReason::Replayed),
            Standing::Undecided => {}
        }
        let at = millis(now);
        if let Some(refusal) = self.closed(at) {
            return Decision::Hold(refusal.into());
        }
        if !self.may_claim_early(flight, at) {
            return Decision::Hold(HoldReason::TicketAge);
        }
        // Asked again under the key's lock: `settle` closes the gate before it executes a flight
        // that it cannot record.
        let permit = || self.closed(at).is_none();
        match self.register.claim_if(flight.key, self.expiry(flight), now, permit) {
            Some(Claim::Won) => {
                flight.standing = Standing::Owned;
                Decision::Execute
            }
            Some(Claim::Lost) => {
                flight.standing = Standing::Lost;
                Decision::Hold(HoldReason::Replayed)
            }
            Some(Claim::Full) => Decision::Hold(HoldReason::RegisterFull),
            None => {
                let refusal = self.closed(at).unwrap_or(Refusal::RegisterFull);
                Decision::Hold(refusal.into())
            }
        }
    }

    /// Settles a flight's claim before TLS answers its ClientHello, over QUIC: an early request may
    /// be lost on the way and sent again after the handshake, where nothing tells it from a new
    /// one. So no flight is accepted there that has no record, whether or not a request came with
    /// it. Call it once for each flight whose early data TLS would accept.
    ///
    /// `Err`: let TLS refuse early data, and drop the flight; it is executed nowhere. The record
    /// of its claim stays all the same, so that no copy runs early beside what the client sends
    /// again. `Ok` may be a claim that another connection has ([`Flight::claim_won`]): refusing
    /// would have the client send again what a copy has executed, so its requests, early or not,
    /// have to come to [`early_request`](Self::early_request), and then to their 425.
    pub fn claim_ahead(&self, flight: &mut Flight, now: Duration) -> Result<(), HoldReason> {
        let at = millis(now);
        let claim = self.register.claim(flight.key, self.expiry(flight), now);
        // Asked after the claim: who executes a flight without a record closes the gate first.
        match (claim, self.closed(at)) {
            (Claim::Lost, _) => {
                flight.standing = Standing::Lost;
                Ok(())
            }
            (_, Some(refusal)) => Err(refusal.into()),
            (Claim::Full, None) => Err(HoldReason::RegisterFull),
            (Claim::Won, None) if !self.may_claim_early(flight, at) => Err(HoldReason::TicketAge),
            (Claim::Won, None) => {
                flight.standing = Standing::Owned;
                Ok(())
            }
        }
    }

    /// Decides over a request that was held for `reason`, now that the handshake of its
    /// connection is complete. Call it once for each held request.
    pub fn handshake_complete(
        &self,
        flight: &mut Flight,
        reason: HoldReason,
        now: Duration,
    ) -> Release {
        match (reason, flight.standing) {
            // Copies are held by the same policy, and never complete.
            (HoldReason::Policy, _) => Release::Execute,
            (HoldReason::Replayed, _) | (_, Standing::Lost) => Release::TooEarly,
            (_, Standing::Owned) => Release::Execute,
            (_, Standing::Undecided) => self.settle(flight, now),
        }
    }

    /// Begins a recording window without early data, since records may have been lost: for a
    /// shared store's failover, restart or loss.
    pub fn claims_lost(&self, now: Duration) {
        self.lose_claims_for(millis(self.config.recording_window()), now);
    }

    /// Tells the gate the wall clock's time, `wall` since 1970. Read both clocks at once, and call
    /// it after TLS has processed the ClientHello, before the first early request of a flight.
    ///
    /// TLS measures ticket ages by the wall clock. Set back by an hour, it makes flights fresh
    /// again whose records are long gone; so a step back by more than `clock_margin` begins a
    /// recording window, longer by the step. Set forward, it makes an original stale at once, of
    /// which a copy that TLS took before the step is still fresh: that begins a recording window
    /// too. Returns whether it did, for a line in the log.
    pub fn observe_wall_clock(&self, wall: Duration, now: Duration) -> bool {
        let offset = millis(wall).saturating_sub(millis(now));
        let known = self.wall_offset.load(Ordering::SeqCst);
        let step = offset.saturating_sub(known);
        let is_small = step.saturating_abs() <= millis(self.config.clock_margin);
        if known == i64::MIN || is_small {
            // The greatest, so that small steps back add up.
            self.wall_offset.fetch_max(offset, Ordering::SeqCst);
            return false;
        }
        let window = millis(self.config.recording_window());
        self.lose_claims_for(window.saturating_add(step.min(0).saturating_neg()), now);
        // Only after the window stands: others who see the same step must not slip past it.
        let _ =
            self.wall_offset.compare_exchange(known, offset, Ordering::SeqCst, Ordering::SeqCst);
        true
    }

    /// The strike register's counters.
    pub fn statistics(&self) -> RegisterStatistics {
        self.register.statistics()
    }

    /// The settings in force.
    pub fn config(&self) -> &GateConfig {
        &self.config
    }

    /// Settles a flight that comes to its handshake's end without knowing about its claim.
    fn settle(&self, flight: &mut Flight, now: Duration) -> Release {
        let at = millis(now);
        if !self.records_reach_back(flight, at) {
            flight.standing = Standing::Lost;
            return Release::TooEarly;
        }
        let stale_at = self
            .stale_at(flight)
            .saturating_add(ROUNDING)
            .saturating_add(millis(self.config.clock_margin));
        let lost = if at > stale_at {
            // No copy can run early any more: to have looked is enough.
            self.register.contains(flight.key, now)
        } else {
            match self.register.claim(flight.key, self.expiry(flight), now) {
                Claim::Won => false,
                Claim::Lost => true,
                Claim::Full => {
                    self.blind_until.fetch_max(stale_at, Ordering::SeqCst);
                    // A copy may have claimed before it could see that the gate is closed.
                    self.register.claim(flight.key, self.expiry(flight), now) == Claim::Lost
                }
            }
        };
        flight.standing = if lost { Standing::Lost } else { Standing::Owned };
        if lost { Release::TooEarly } else { Release::Execute }
    }

    /// Whether a copy of `flight` that ran early must still have its record at `at`.
    ///
    /// Not so if copies may have run before records were lost, that is, if TLS refuses the flight
    /// before the window after the loss is over; nor if the handshake outlasted the record; nor
    /// for a skew that TLS does not let through.
    fn records_reach_back(&self, flight: &Flight, at: i64) -> bool {
        let refused_at = self.refused_at(flight);
        let skew = i64::from(flight.skew_seconds).saturating_mul(1000).saturating_abs();
        skew <= millis(self.config.max_skew)
            && refused_at >= self.lost_until.load(Ordering::SeqCst)
            && at <= refused_at.saturating_add(millis(self.config.max_handshake))
    }

    /// Whether the skew of `flight` lies within the freshness window, at its ClientHello and at
    /// `at` (RFC 8446 section 8.3).
    fn may_claim_early(&self, flight: &Flight, at: i64) -> bool {
        let skew = i64::from(flight.skew_seconds).saturating_mul(1000);
        skew <= millis(self.config.freshness) && at <= self.stale_at(flight)
    }

    /// When the flight's skew falls below the freshness window. Every copy of it gives the same
    /// moment, but for rounding: a copy that comes a second later has a skew one second lower.
    fn stale_at(&self, flight: &Flight) -> i64 {
        zero_skew_at(flight).saturating_add(millis(self.config.freshness))
    }

    /// When TLS begins to refuse every copy of the flight.
    fn refused_at(&self, flight: &Flight) -> i64 {
        zero_skew_at(flight).saturating_add(millis(self.config.max_skew))
    }

    /// When a record of the flight may go: no copy gets past TLS, and none that did is still in
    /// its handshake. Not sooner when the flight is merely stale, since the honest original may
    /// come after that, held up by who sent the copy.
    fn expiry(&self, flight: &Flight) -> Duration {
        let at = self
            .refused_at(flight)
            .saturating_add(ROUNDING)
            .saturating_add(millis(self.config.max_handshake))
            .saturating_add(millis(self.config.clock_margin));
        Duration::from_millis(u64::try_from(at).unwrap_or(0))
    }

    /// Why nothing may run early at `at`, if so.
    fn closed(&self, at: i64) -> Option<Refusal> {
        if at < self.lost_until.load(Ordering::SeqCst) {
            Some(Refusal::StartupWindow)
        } else if at < self.blind_until.load(Ordering::SeqCst) {
            Some(Refusal::RegisterFull)
        } else {
            None
        }
    }

    fn lose_claims_for(&self, window: i64, now: Duration) {
        self.lost_until.fetch_max(millis(now).saturating_add(window), Ordering::SeqCst);
    }
}

impl From<Refusal> for HoldReason {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::StartupWindow => Self::StartupWindow,
            Refusal::RegisterFull => Self::RegisterFull,
        }
    }
}

/// When the flight's skew is zero: the one moment that all its copies have in common.
fn zero_skew_at(flight: &Flight) -> i64 {
    millis(flight.seen_at).saturating_add(i64::from(flight.skew_seconds).saturating_mul(1000))
}

/// Whole milliseconds, signed: moments before the start occur, as skews are negative too.
fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Milliseconds by which two copies may differ, as TLS counts skews in whole seconds.
const ROUNDING: i64 = 1000;

#[cfg(test)]
#[path = "gate_model.rs"]
mod model;
