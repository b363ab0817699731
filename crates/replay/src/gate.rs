//! The gate of one process: whose is a first flight, and may it be accepted at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::ClaimKey;
use crate::epochs::TicketEpochs;
use crate::flight::{Flight, Offer};
use crate::inheritance::Inheritance;
use crate::register::{Claim, Held, RegisterStatistics, StrikeRegister};

/// Settings of a [`Gate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateConfig {
    /// How far the ticket age that the client states may be off for its request to run early
    /// (RFC 8446 section 8.3). Default 10 s.
    pub freshness: Duration,
    /// What clocks may drift apart or be stepped unnoticed. Default 5 s.
    pub clock_margin: Duration,
    /// The skew beyond which TLS itself refuses early data. Default 60 s, BoringSSL's bound.
    pub max_skew: Duration,
    /// How long a ticket is good, which bounds the life of a record whatever age its client
    /// states. Default 36 h.
    pub ticket_lifetime: Duration,
    /// Records that the strike register holds: 2^20 by default, 38 MB when all are in use.
    /// A record lives about 66 s at a skew of 0, so this is some 15,000 early connections a
    /// second. The register of names ([`Gate::claim_name`]) is another, of the same size.
    pub capacity: usize,
}

impl Default for GateConfig {
    fn default() -> Self {
        Self {
            freshness: Duration::from_secs(10),
            clock_margin: Duration::from_secs(5),
            max_skew: Duration::from_secs(60),
            ticket_lifetime: Duration::from_secs(36 * 3600),
            capacity: 1 << 20,
        }
    }
}

/// Why TLS is to refuse a flight's early data. Its client sends its requests again by itself, after
/// the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The ticket was issued in another epoch ([`TicketEpochs`]).
    TicketEpoch,
    /// The strike register has no room for the flight.
    RegisterFull,
    /// The ticket age is off by more than the freshness window (RFC 8446 section 8.3).
    TicketAge,
    /// The flight, or a copy of it, has been refused before: its client sends, or has sent, its
    /// requests again.
    RefusedBefore,
    /// The register is another process's now: ask that one ([`crate::HandoffQuery`]). Nothing was
    /// recorded here.
    HandedOver,
}

/// Whether the requests of a connection may run whose early data TLS has refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Spent {
    /// They may: no copy of the flight will be accepted.
    Recorded,
    /// A copy of the flight was accepted, and may have been executed: answer 425 (Too Early).
    Executed,
    /// The register is another process's now: ask that one.
    HandedOver,
}

/// Settles the claims of first flights. Shared by all connections of a process.
///
/// Every flight that offers early data with a ticket comes here once, whatever becomes of it: to
/// [`claim`](Self::claim) if TLS would accept its early data, before anything of the handshake is
/// sent; to [`spend`](Self::spend) if TLS refuses it, before the first request of its connection
/// runs.
#[derive(Debug)]
pub struct Gate {
    config: GateConfig,
    register: StrikeRegister,
    /// Idempotency keys and nonces.
    names: StrikeRegister,
    /// Which tickets bring early data.
    epochs: Arc<TicketEpochs>,
    /// No new name is taken before this, as there was no room for one that was taken over.
    names_blind_until: AtomicI64,
}

impl Gate {
    /// A gate with an empty register. A `freshness` above `max_skew` means `max_skew`. `epochs`
    /// has to start with the register: it knows no flight on an older ticket.
    pub fn new(config: GateConfig, epochs: Arc<TicketEpochs>) -> Self {
        let config = GateConfig { freshness: config.freshness.min(config.max_skew), ..config };
        Self {
            config,
            register: StrikeRegister::new(config.capacity),
            names: StrikeRegister::with_unit(config.capacity, NAMES_UNIT),
            epochs,
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
    /// Let TLS refuse early data. No copy of the flight is accepted afterwards: it has left a
    /// record, or its ticket's epoch has ended. [`Refusal::HandedOver`] alone leaves nothing.
    pub fn claim(&self, offer: &Offer, now: Duration) -> Result<Flight, Refusal> {
        match self.record(offer, self.expiry(offer, now), now, true) {
            (Claim::Won, _) => Ok(offer.settled(true)),
            (Claim::Lost, _) => Ok(offer.settled(false)),
            (Claim::Barred, why) => Err(why),
            (Claim::Full, _) => Err(Refusal::RegisterFull),
            (Claim::Closed, _) => Err(Refusal::HandedOver),
        }
    }

    /// Records a flight whose early data TLS has refused, for as long as a copy of it could be
    /// fresh. Call it when the handshake is complete, before the first request runs. So it costs
    /// one record for each completed handshake, and nobody without tickets can fill the register.
    pub fn spend(&self, offer: &Offer, now: Duration) -> Spent {
        match self.record(offer, self.stale_at(offer, now).max(now), now, false) {
            // A new epoch keeps copies out where there was no room for a record.
            (Claim::Barred | Claim::Full, _) => Spent::Recorded,
            (Claim::Won | Claim::Lost, _) => Spent::Executed,
            (Claim::Closed, _) => Spent::HandedOver,
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
    /// `common`: this moment by a clock that the next process reads too.
    pub fn hand_over(&self, common: Duration, now: Duration) -> Inheritance {
        let flights = self.register.close(now);
        let names = self.names.close(now);
        // After the registers: a flight that found no room meanwhile has started a new epoch.
        let epoch = self.epochs.current();
        Inheritance { closed_at: common, epoch, flights, names }
    }

    /// Goes on, as nobody took over what was handed over.
    pub fn reopen(&self) {
        self.names.reopen();
        self.register.reopen();
    }

    /// Takes over what another process knew, so that its records hold here, and its tickets bring
    /// early data. Call it before the first flight is accepted here, and when no other process
    /// holds what is taken over.
    ///
    /// What finds no room here starts a new epoch.
    pub fn take_over(&self, inheritance: &Inheritance, common: Duration, now: Duration) {
        let passed = common.saturating_sub(inheritance.closed_at);
        let then = now.saturating_sub(passed);
        let missed = |register: &StrikeRegister, held: &[Held]| {
            held.iter().filter(|held| !register.take(held, then)).map(|held| held.left).max()
        };
        self.epochs.continue_with(inheritance.epoch);
        if missed(&self.register, &inheritance.flights).is_some() {
            self.epochs.start_next();
        }
        if let Some(left) = missed(&self.names, &inheritance.names) {
            let needed = millis(then).saturating_add(i64::from(left).saturating_mul(1000));
            self.names_blind_until.fetch_max(needed, Ordering::SeqCst);
        }
    }

    /// Starts a new ticket epoch, since flights may have been accepted or refused that are not
    /// recorded here, or because the clock by which tickets age has been set.
    pub fn start_epoch(&self) {
        self.epochs.start_next();
    }

    /// Whether there is no room for a further flight.
    pub fn is_full(&self) -> bool {
        let statistics = self.register.statistics();
        statistics.entries >= statistics.capacity
    }

    /// The strike register's counters.
    pub fn statistics(&self) -> RegisterStatistics {
        self.register.statistics()
    }

    /// The settings in force.
    pub fn config(&self) -> &GateConfig {
        &self.config
    }

    /// Records the flight, as claimed or as barred, and says why it is barred.
    fn record(
        &self,
        offer: &Offer,
        expires_at: Duration,
        now: Duration,
        may_win: bool,
    ) -> (Claim, Refusal) {
        let mut why = Refusal::RefusedBefore;
        // Called under the key's lock: a flight that cannot be recorded ends the epoch first, and
        // is then looked up again.
        let mut attempt = || {
            self.register.claim_if(offer.key, expires_at, now, || {
                match self.objection(offer, now) {
                    Some(objection) => {
                        why = objection;
                        false
                    }
                    None => may_win,
                }
            })
        };
        let mut claim = attempt();
        if claim == Claim::Full && self.stale_at(offer, now) > now {
            self.epochs.start_next();
            // A copy may have claimed before it could see that the epoch has ended.
            claim = attempt();
        }
        (claim, why)
    }

    /// Why a flight that nobody has claimed may not be accepted, if so.
    fn objection(&self, offer: &Offer, now: Duration) -> Option<Refusal> {
        let skew = i64::from(offer.skew_seconds).saturating_mul(1000);
        let freshness = millis(self.config.freshness);
        let is_fresh =
            skew <= freshness && millis(now) <= exact_at(offer).saturating_add(freshness);
        match offer.epoch == self.epochs.current() {
            false => Some(Refusal::TicketEpoch),
            true => (!is_fresh).then_some(Refusal::TicketAge),
        }
    }

    /// When no copy of the flight is fresh any more, with the margins.
    fn stale_at(&self, offer: &Offer, now: Duration) -> Duration {
        self.after_exact(offer, self.config.freshness, now)
    }

    /// When a record of a flight that TLS accepts may go: TLS refuses every copy by then. Not
    /// sooner when the flight is merely stale, since the honest original may come after that, held
    /// up by an attacker who sent a copy; refused, its client would send it again.
    fn expiry(&self, offer: &Offer, now: Duration) -> Duration {
        self.after_exact(offer, self.config.max_skew, now)
    }

    /// So long after the stated ticket age is exact, with the margins. A ticket that is dead by
    /// then is not accepted any more.
    fn after_exact(&self, offer: &Offer, length: Duration, now: Duration) -> Duration {
        let at = exact_at(offer)
            .min(millis(now).saturating_add(millis(self.config.ticket_lifetime)))
            .saturating_add(millis(length))
            .saturating_add(ROUNDING)
            .saturating_add(millis(self.config.clock_margin));
        Duration::from_millis(u64::try_from(at).unwrap_or(0))
    }
}

/// When the flight's stated ticket age is exact, which may be before the start. A copy that comes a
/// second later has a skew one second lower.
fn exact_at(offer: &Offer) -> i64 {
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
