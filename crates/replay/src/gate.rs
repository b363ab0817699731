//! The gate of one process: settles claims, and decides which flights TLS has to refuse.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::ClaimKey;
use crate::epochs::TicketEpochs;
use crate::flight::{AGE_ROUNDING, Flight, FlightOffer, MAX_TICKET_LIFETIME};
use crate::register::{ClaimOutcome, RegisterStatistics, SnapshotRecord, StrikeRegister};
use crate::snapshot::{HandoffTime, RegisterSnapshot};

/// Settings of a [`Gate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateConfig {
    /// The greatest ticket-age skew of a flight whose requests may run early (RFC 8446 section 8.3).
    /// Default 10 s.
    pub freshness: Duration,
    /// How far clocks may drift apart or step unnoticed. Default 5 s.
    pub clock_margin: Duration,
    /// The skew beyond which TLS itself refuses early data. Default 60 s, as in BoringSSL.
    pub max_skew: Duration,
    /// Capacity of the strike register in records. Default 2^20, which takes 38 MB when full. A
    /// record lives about 66 s at a skew of 0, so this is enough for 15,900 early connections per
    /// second. Names ([`Gate::claim_name`]) have a second register of the same capacity.
    pub capacity: usize,
}

impl Default for GateConfig {
    fn default() -> Self {
        Self {
            freshness: Duration::from_secs(10),
            clock_margin: Duration::from_secs(5),
            max_skew: Duration::from_secs(60),
            capacity: 1 << 20,
        }
    }
}

/// Why TLS has to refuse a flight's early data. The client then sends its requests again by itself,
/// after the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The ticket was issued in another epoch ([`TicketEpochs`]).
    TicketEpoch,
    /// The strike register has no room for the flight.
    RegisterFull,
    /// The ticket age is off by more than the freshness window (RFC 8446 section 8.3).
    TicketAge,
    /// The flight or a copy of it was refused before, so the client sends its requests again, or
    /// has done so.
    RefusedBefore,
    /// Another process has the register now: send it a [`crate::HandoffQuery`]. Nothing was recorded
    /// here.
    HandedOver,
}

/// Whether requests may run on a connection whose early data TLS has refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpendOutcome {
    /// They may run: no copy of the flight will be accepted.
    Recorded,
    /// A copy of the flight was accepted and may have been executed: respond 425 (Too Early).
    Executed,
    /// Another process has the register now: send it a [`crate::HandoffQuery`].
    HandedOver,
}

/// Settles the claims of first flights. Shared by all connections of a process.
///
/// Call one method for every flight that offers early data with a ticket. If TLS would accept the
/// early data: [`claim`](Self::claim), before anything of the handshake is sent. If TLS refuses it:
/// [`spend`](Self::spend), before the connection's first request runs.
#[derive(Debug)]
pub struct Gate {
    config: GateConfig,
    register: StrikeRegister,
    /// Idempotency keys and nonces.
    names: StrikeRegister,
    /// Which tickets may bring early data.
    epochs: Arc<TicketEpochs>,
    /// Names that were claimed before this time, in milliseconds, may be missing.
    names_lost_at: AtomicI64,
}

impl Gate {
    /// Creates a gate with an empty register. A `freshness` above `max_skew` is reduced to
    /// `max_skew`. `epochs` has to be new too: the register has no records of flights on older
    /// tickets.
    pub fn new(config: GateConfig, epochs: Arc<TicketEpochs>) -> Self {
        let config = GateConfig { freshness: config.freshness.min(config.max_skew), ..config };
        Self {
            config,
            register: StrikeRegister::new(config.capacity),
            names: StrikeRegister::with_unit(config.capacity, NAMES_UNIT),
            epochs,
            names_lost_at: AtomicI64::new(i64::MIN),
        }
    }

    /// Settles a flight's claim. Call it once for each flight whose early data TLS would accept,
    /// before TLS responds to the ClientHello.
    ///
    /// Another connection may have won the claim ([`Flight::won`]). TLS must accept the early data
    /// even then: after a refusal the client would send again what a copy may have executed. Its
    /// requests get 425 instead.
    ///
    /// # Errors
    /// TLS has to refuse early data. No copy of the flight is accepted afterwards, because the flight
    /// is recorded or its ticket's epoch has ended; only [`Refusal::HandedOver`] records nothing.
    pub fn claim(&self, offer: &FlightOffer, now: Duration) -> Result<Flight, Refusal> {
        match self.record(offer, self.expiry(offer, now), now, true) {
            (ClaimOutcome::Won, _) => Ok(offer.settled(true)),
            (ClaimOutcome::Lost, _) => Ok(offer.settled(false)),
            (ClaimOutcome::Barred, refusal) => Err(refusal),
            (ClaimOutcome::Full, _) => Err(Refusal::RegisterFull),
            (ClaimOutcome::Closed, _) => Err(Refusal::HandedOver),
        }
    }

    /// Records a flight whose early data TLS has refused, for as long as a copy of it could be
    /// fresh. Call it when the handshake is complete, before the first request runs. So only
    /// completed handshakes take room in the register, and a sender of recorded ClientHellos cannot
    /// fill it.
    pub fn spend(&self, offer: &FlightOffer, now: Duration) -> SpendOutcome {
        match self.record(offer, self.stale_at(offer, now).max(now), now, false) {
            // If there was no room for a record, a new epoch keeps copies out.
            (ClaimOutcome::Barred | ClaimOutcome::Full, _) => SpendOutcome::Recorded,
            (ClaimOutcome::Won | ClaimOutcome::Lost, _) => SpendOutcome::Executed,
            (ClaimOutcome::Closed, _) => SpendOutcome::HandedOver,
        }
    }

    /// Whether the flight has a record, because it was received before. Records nothing.
    pub fn has_record(&self, offer: &FlightOffer, now: Duration) -> bool {
        self.register.contains(offer.key, now)
    }

    /// Claims a name (an idempotency key or a nonce), which can be won once within `lifetime`. The
    /// lifetime may be days, and may end up to 16 s late.
    ///
    /// Returns [`ClaimOutcome::Full`] if it is unknown whether the name was claimed before, and
    /// [`ClaimOutcome::Closed`] if another process has the register now: send it a
    /// [`crate::HandoffQuery`].
    pub fn claim_name(&self, name: ClaimKey, lifetime: Duration, now: Duration) -> ClaimOutcome {
        let may_be_missing = || {
            let lost_at = self.names_lost_at.load(Ordering::SeqCst);
            millis(now) < lost_at.saturating_add(millis(lifetime))
        };
        if may_be_missing() && !self.names.contains(name, now) {
            return ClaimOutcome::Full;
        }
        match self.names.claim(name, now.saturating_add(lifetime), now) {
            // Names were lost just before the claim.
            ClaimOutcome::Won if may_be_missing() => {
                self.names.release(name, now);
                ClaimOutcome::Full
            }
            claim => claim,
        }
    }

    /// Releases a claimed name, because the request was certainly not executed. Returns false if it
    /// is not claimed here, or if another process has the register now.
    pub fn release_name(&self, name: ClaimKey, now: Duration) -> bool {
        self.names.release(name, now)
    }

    /// Closes the gate and returns all its records. Nothing is recorded here any more: a concurrent
    /// claim is either in the snapshot or gets [`Refusal::HandedOver`]. `time` is the current time.
    pub fn hand_off(&self, time: HandoffTime) -> RegisterSnapshot {
        let flights = self.register.close(time.gate);
        let names = self.names.close(time.gate);
        // Read after closing: a flight that found no room meanwhile has started a new epoch.
        let epoch = self.epochs.current();
        RegisterSnapshot {
            closed_at: time.common,
            closed_at_ticket_time: time.tickets,
            freshness: self.config.freshness,
            names_lost: self.names_lost_ago(time.gate),
            epoch,
            flights,
            names,
        }
    }

    /// Reopens the gate, because the other process did not take the register.
    pub fn reopen(&self) {
        self.names.reopen();
        self.register.reopen();
    }

    /// Reopens the gate, because the other process has ended. Nobody knows what it has recorded by itself,
    /// so a new epoch starts, and names that are unknown here are refused for their lifetime.
    pub fn take_back(&self, now: Duration) {
        self.epochs.start_next();
        self.lose_names(millis(now));
        self.reopen();
    }

    /// Restores the records of another process, so that its flights stay recorded and its tickets
    /// keep bringing early data. Call it before the first flight is accepted here, and only if no
    /// other process has the register. `time` is the current time.
    ///
    /// A flight that finds no room starts a new epoch. So does a clock step that the other process
    /// had not noticed, and so does a larger freshness here: refused flights' records would end
    /// before copies stop being fresh.
    pub fn restore(&self, snapshot: &RegisterSnapshot, time: HandoffTime) {
        let passed = time.common.saturating_sub(snapshot.closed_at);
        let closed_at = time.gate.saturating_sub(passed);
        let lacks_room = |register: &StrikeRegister, records: &[SnapshotRecord]| {
            let restored =
                records.iter().filter(|record| register.restore(record, closed_at)).count();
            restored < records.len()
        };
        let lacks_flights = lacks_room(&self.register, &snapshot.flights);
        let ticket_time = snapshot.closed_at_ticket_time.saturating_add(passed);
        self.epochs.resume(snapshot.epoch);
        if lacks_flights
            || time.tickets.abs_diff(ticket_time) > MAX_CLOCK_STEP
            || self.config.freshness > snapshot.freshness
        {
            self.epochs.start_next();
        }
        if let Some(ago) = snapshot.names_lost {
            self.lose_names(millis(closed_at).saturating_sub(millis(ago)));
        }
        if lacks_room(&self.names, &snapshot.names) {
            self.lose_names(millis(closed_at));
        }
    }

    /// Records a flight whose claim another process has settled, also if this gate is closed.
    pub(crate) fn restore_flight(&self, offer: &FlightOffer, now: Duration) {
        let lifetime = self.expiry(offer, now).saturating_sub(now);
        // If there is no room, the flight stays unrecorded, as after a restart: a new epoch starts
        // before this gate reopens.
        self.register.restore(&SnapshotRecord::claimed(offer.key, lifetime), now);
    }

    /// Records a name that is claimed in another process, also if this gate is closed.
    pub(crate) fn restore_name(&self, name: ClaimKey, lifetime: Duration, now: Duration) {
        // A recorded name keeps its expiry, even if it is claimed again.
        if !self.names.contains(name, now)
            && !self.names.restore(&SnapshotRecord::claimed(name, lifetime), now)
        {
            self.lose_names(millis(now));
        }
    }

    /// Releases a name that is released in another process, also if this gate is closed.
    pub(crate) fn restore_release(&self, name: ClaimKey, now: Duration) {
        self.names.restore_release(name, now);
    }

    /// Refuses each unknown name until its lifetime has passed since `at`, in milliseconds: names that
    /// were claimed before may be missing.
    fn lose_names(&self, at: i64) {
        self.names_lost_at.fetch_max(at, Ordering::SeqCst);
    }

    /// How long ago names were lost, if any were.
    fn names_lost_ago(&self, now: Duration) -> Option<Duration> {
        let at = self.names_lost_at.load(Ordering::SeqCst);
        let ago = millis(now).saturating_sub(at);
        (at != i64::MIN).then(|| Duration::from_millis(u64::try_from(ago).unwrap_or(0)))
    }

    /// Starts a new ticket epoch. Call it if flights may be missing in the register, or if the clock
    /// by which tickets age was set.
    pub fn start_epoch(&self) {
        self.epochs.start_next();
    }

    /// Whether there is no room for another flight.
    pub fn is_full(&self) -> bool {
        let statistics = self.register.statistics();
        statistics.entries >= statistics.capacity
    }

    /// The strike register's counters.
    pub fn statistics(&self) -> RegisterStatistics {
        self.register.statistics()
    }

    /// The settings.
    pub fn config(&self) -> &GateConfig {
        &self.config
    }

    /// Records the flight as claimed or barred, and returns the reason if it is barred.
    fn record(
        &self,
        offer: &FlightOffer,
        expires_at: Duration,
        now: Duration,
        may_win: bool,
    ) -> (ClaimOutcome, Refusal) {
        let mut refusal = Refusal::RefusedBefore;
        // The closure runs under the key's lock, so it sees a new epoch before any later claim of
        // the same key.
        let claim = self.register.claim_if(offer.key, expires_at, now, || {
            match self.refusal_reason(offer, now) {
                Some(reason) => {
                    refusal = reason;
                    false
                }
                None => may_win,
            }
        });
        match claim {
            // The flight stays without a record. A new epoch keeps its copies out, and those of all
            // refused flights, so their records are not needed any more: a client that states far too
            // large ages must not fill the register for as long as these are ahead.
            ClaimOutcome::Full if self.stale_at(offer, now) > now => {
                (self.register.drop_barred(offer.key, now, || self.epochs.start_next()), refusal)
            }
            claim => (claim, refusal),
        }
    }

    /// Why a flight without a record has to be refused, if so.
    fn refusal_reason(&self, offer: &FlightOffer, now: Duration) -> Option<Refusal> {
        if offer.used_up {
            return None;
        }
        let skew = i64::from(offer.skew_seconds).saturating_mul(1000);
        let freshness = millis(self.config.freshness);
        let is_fresh =
            skew <= freshness && millis(now) <= exact_at(offer).saturating_add(freshness);
        match offer.epoch == self.epochs.current() {
            false => Some(Refusal::TicketEpoch),
            true => (!is_fresh).then_some(Refusal::TicketAge),
        }
    }

    /// When no copy of the flight is fresh any more, including margins.
    fn stale_at(&self, offer: &FlightOffer, now: Duration) -> Duration {
        self.after_exact(offer, self.config.freshness, now)
    }

    /// When the record of a claimed flight may be dropped: when TLS refuses every copy.
    ///
    /// It must outlive the flight's freshness. An attacker could send a copy that runs early, and
    /// hold the original back until the record is dropped. TLS would refuse the stale original, its
    /// client would send it again, and the flight would run twice.
    fn expiry(&self, offer: &FlightOffer, now: Duration) -> Duration {
        self.after_exact(offer, self.config.max_skew, now)
    }

    /// The time `length` after the stated ticket age is exact, including margins, but not after any
    /// ticket has expired. The lifetime of tickets may change while the process runs.
    fn after_exact(&self, offer: &FlightOffer, length: Duration, now: Duration) -> Duration {
        let at = exact_at(offer)
            .min(millis(now).saturating_add(millis(MAX_TICKET_LIFETIME)))
            .saturating_add(millis(length))
            .saturating_add(millis(AGE_ROUNDING))
            .saturating_add(millis(self.config.clock_margin));
        Duration::from_millis(u64::try_from(at).unwrap_or(0))
    }
}

/// When the flight's stated ticket age is exact, in milliseconds; negative if before the start of
/// the clock. A copy that arrives a second later has a skew one second lower.
fn exact_at(offer: &FlightOffer) -> i64 {
    millis(offer.received_at).saturating_add(i64::from(offer.skew_seconds).saturating_mul(1000))
}

/// Whole milliseconds.
fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// The largest step of a clock that is ignored: less than [`GateConfig::clock_margin`], and more
/// than clocks are slewed between two checks.
pub const MAX_CLOCK_STEP: Duration = Duration::from_secs(2);

/// The time unit of the register of names, in seconds.
const NAMES_UNIT: u32 = 16;

#[cfg(test)]
#[path = "gate_model.rs"]
mod model;
