//! The server's gate: claims flights in this process's register, in a successor's, or in a store.

pub(crate) mod shared_register;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use firstflight_config::EarlyDataSettings;
use firstflight_replay::{
    ClaimKey, ClaimOutcome, Flight, FlightOffer, Gate, GateConfig, HandoffQuery, HandoffReply,
    HandoffTime, MAX_CLOCK_STEP, MAX_TICKET_LIFETIME, Refusal, RegisterSnapshot,
    RegisterStatistics, SharedConfig, SharedRefusal, SpendOutcome, StoreReply, TicketEpochs,
    Unknown,
};
use firstflight_store::{Claimant, Store};
use firstflight_telemetry::metrics::RefusedReason;
use firstflight_tls::{Handshake, MAX_TICKET_AGE_SKEW, OfferedFlight, SteadyClock};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tracing::warn;
use zeroize::Zeroizing;

use crate::context::monotonic;
use crate::gate::shared_register::SharedRegister;

/// Decides about early data for the whole server.
pub(crate) struct EarlyDataGate {
    gate: Gate,
    /// The strike register of the cluster. With it, the gate's own register is unused.
    shared: Option<SharedRegister>,
    /// Decides which tickets allow early data.
    epochs: Arc<TicketEpochs>,
    /// The process that has the register now, if it was handed over.
    successor: ArcSwapOption<Successor>,
    /// How often the register was taken back from a successor that has ended, with its records lost.
    lost_successors: AtomicU32,
    started_at: Instant,
    claimants: AtomicU64,
    /// Whether the store failed to take the last record.
    store_failed: AtomicBool,
    /// The number of flights that are being recorded although their clients have disconnected.
    abandoned: AtomicUsize,
}

/// Sends queries to the process that has the register now.
#[derive(Clone)]
pub(crate) struct Successor(mpsc::UnboundedSender<SuccessorRequest>);

/// A query for the successor. The reply's channel is closed if nobody waits for it any more.
pub(crate) enum SuccessorRequest {
    /// Executes a query about a flight or a name.
    Claim { query: HandoffQuery, reply: oneshot::Sender<HandoffReply> },
    /// Opens a punctured ticket
    /// ([`TicketOffer`](crate::handshake::tickets::punctured::TicketOffer)).
    Open { offer: Vec<u8>, reply: oneshot::Sender<SuccessorSession> },
}

/// The session of a punctured ticket, if the successor has opened it.
pub(crate) type SuccessorSession = Option<Zeroizing<Vec<u8>>>;

impl Successor {
    pub(crate) fn new(requests: mpsc::UnboundedSender<SuccessorRequest>) -> Self {
        Self(requests)
    }

    /// The successor's reply. Returns `None` if it has ended, or if the register belongs to this
    /// process again.
    pub(crate) async fn query(&self, query: HandoffQuery) -> Option<HandoffReply> {
        let (reply, response) = oneshot::channel();
        self.0.send(SuccessorRequest::Claim { query, reply }).ok()?;
        response.await.ok()
    }

    /// Has the successor open a punctured ticket. Returns `None` as [`query`](Self::query) does.
    async fn open(&self, offer: Vec<u8>) -> Option<SuccessorSession> {
        let (reply, response) = oneshot::channel();
        self.0.send(SuccessorRequest::Open { offer, reply }).ok()?;
        response.await.ok()
    }

    /// Waits until the register belongs to this process again.
    pub(crate) async fn closed(&self) {
        self.0.closed().await;
    }
}

/// The outcome of claiming a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameClaim {
    /// The name was free.
    Won,
    /// The name is taken.
    Taken,
    /// The outcome is unknown, with the reason for the access log.
    Unknown(&'static str),
}

/// Facts about a connection from before TLS receives its ClientHello.
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    /// The ticket epoch.
    epoch: u32,
    /// The number of lost successors.
    lost_successors: u32,
    /// Identifies the connection in the store.
    claimant: Claimant,
}

/// A flight whose early data was refused and which has no record yet. It has to be spent before the
/// connection's first request runs: [`EarlyDataGate::spend`].
#[derive(Clone, Copy)]
pub(crate) struct UnspentFlight {
    offered: OfferedFlight,
    arrival: Arrival,
    received_at: ReceivedAt,
    /// Whether this connection has used up its ticket.
    used_up: bool,
    /// Whether it was refused because the store did not reply.
    store_silent: bool,
}

/// The time just before TLS received a ClientHello, or when it measured the ticket's age, by both
/// clocks.
#[derive(Clone, Copy)]
pub(crate) struct ReceivedAt {
    /// By the gate's clock, which is monotonic.
    gate_time: Duration,
    /// By [`SteadyClock`], in microseconds since 1970.
    unix_micros: i64,
}

impl EarlyDataGate {
    /// A gate with these settings. `epochs`: a new epoch, which is written into tickets from now on.
    pub(crate) fn new(
        settings: &EarlyDataSettings,
        epochs: Arc<TicketEpochs>,
        store: Option<(Store, SharedConfig)>,
    ) -> Self {
        let capacity = settings.register_capacity;
        let config = GateConfig {
            freshness: settings.freshness,
            capacity: if store.is_some() { 0 } else { capacity },
            max_skew: MAX_TICKET_AGE_SKEW,
            ..GateConfig::default()
        };
        Self {
            gate: Gate::new(config, epochs.clone()),
            shared: store.map(|store| SharedRegister::new(store.0, store.1, capacity)),
            epochs,
            successor: ArcSwapOption::empty(),
            lost_successors: AtomicU32::new(0),
            started_at: Instant::now(),
            claimants: AtomicU64::new(RandomState::new().hash_one(())),
            store_failed: AtomicBool::new(false),
            abandoned: AtomicUsize::new(0),
        }
    }

    /// Checks whether TLS may accept early data on a new connection. `enabled`: whether the
    /// configuration enables early data.
    ///
    /// # Errors
    /// Why it must not.
    pub(crate) fn admission(&self, enabled: bool) -> Result<(), EarlyDataRefusal> {
        match self.shared.as_ref().and_then(SharedRegister::unavailable) {
            _ if !enabled => Err(EarlyDataRefusal::Disabled),
            Some(why) => Err(EarlyDataRefusal::Shared(SharedRefusal::Store(why))),
            None => Ok(()),
        }
    }

    /// The facts about a new connection. Call this before TLS receives its ClientHello.
    pub(crate) fn arrival(&self) -> Arrival {
        let claimant = Claimant::new(self.claimants.fetch_add(1, Ordering::Relaxed));
        let lost_successors = self.lost_successors.load(Ordering::SeqCst);
        Arrival { epoch: self.epochs.current(), lost_successors, claimant }
    }

    /// The time for [`EarlyDataGate::claim`]: now, or when the last bytes were received
    /// ([`firstflight_tls::Accepting::received_at`]).
    pub(crate) fn received_at(&self, unix_micros: Option<i64>) -> ReceivedAt {
        let (now, gate_time) = (SteadyClock::unix_micros(), self.now());
        let unix_micros = unix_micros.unwrap_or(now);
        // `micros` returns zero if the clock was set back meanwhile. A new ticket epoch has started
        // then.
        ReceivedAt { gate_time: gate_time.saturating_sub(micros(now - unix_micros)), unix_micros }
    }

    /// When TLS measured the age of the flight's ticket; now, if there is no flight. Records of
    /// refused flights need this time: parts of a ClientHello, and the end of the handshake, may come
    /// as late as the sender likes, and the clock may be set meanwhile.
    pub(crate) fn measured_at(&self, facts: &Handshake) -> ReceivedAt {
        self.received_at(facts.offered_flight.map(|flight| flight.measured_at))
    }

    /// Claims a flight whose early data TLS would accept. If the store does not reply within its
    /// budget, early data is refused.
    ///
    /// A flight whose single-use ticket was redeemed for this connection is claimed too: its client may be
    /// on another connection, which found no ticket, and send its request again there.
    pub(crate) async fn claim(
        &self,
        facts: &Handshake,
        (arrival, received_at): (Arrival, ReceivedAt),
    ) -> Result<Flight, EarlyDataRefusal> {
        let flight = UnspentFlight::from_handshake(facts, arrival, received_at)?;
        let Some(shared) = &self.shared else { return self.claim_locally(&flight).await };
        let offer = flight.offer_by_unix_time();
        let response = shared.claim(&offer, arrival.claimant, || self.now()).await;
        let now = micros(SteadyClock::unix_micros());
        shared.gate().settle(&offer, response, now).map_err(EarlyDataRefusal::Shared)
    }

    async fn claim_locally(&self, flight: &UnspentFlight) -> Result<Flight, EarlyDataRefusal> {
        for _ in 0..MAX_HANDOFF_ATTEMPTS {
            match self.claim_here(flight) {
                Err(Refusal::HandedOver) => {}
                settled => return settled.map_err(EarlyDataRefusal::Gate),
            }
            let query = HandoffQuery::Flight(self.offer_by_monotonic_clock(flight));
            if let Some(HandoffReply::Flight(response)) = self.query_successor(query).await {
                let settled = response.map(|won| flight.offer_by_gate_clock().settled(won));
                return settled.map_err(EarlyDataRefusal::Gate);
            }
        }
        Err(EarlyDataRefusal::Gate(Refusal::HandedOver))
    }

    fn claim_here(&self, flight: &UnspentFlight) -> Result<Flight, Refusal> {
        let claimed = self.gate.claim(&flight.offer_by_gate_clock(), self.now())?;
        // One of the lost records may be this flight's, even if its ticket was used up for this
        // connection. Counted before the gate was opened again, so read after the claim. A lost
        // claim stays one: a refused client would send again what the copy has executed.
        let lost_successors = self.lost_successors.load(Ordering::SeqCst);
        match claimed.won() && lost_successors != flight.arrival.lost_successors {
            true => Err(Refusal::TicketEpoch),
            false => Ok(claimed),
        }
    }

    /// Like [`claim`](Self::claim), but without waiting, if no store is configured. The flight ages
    /// from when TLS measured its ticket's age: over QUIC the first datagram may have come long
    /// before the rest of the ClientHello.
    ///
    /// [`Refusal::HandedOver`] means that nothing is recorded yet. Nothing of the flight may run
    /// before [`EarlyDataGate::claim`] has settled it.
    pub(crate) fn claim_at_once(
        &self,
        facts: &Handshake,
        arrival: Arrival,
    ) -> Result<Flight, EarlyDataRefusal> {
        let flight = UnspentFlight::from_handshake(facts, arrival, self.measured_at(facts))?;
        self.claim_here(&flight).map_err(EarlyDataRefusal::Gate)
    }

    /// Whether this flight, whose ticket was used before, has a record here: then it is a copy, or
    /// an original that a copy has overtaken. Not known after a handoff: the other process has the
    /// record then.
    pub(crate) fn is_copy(&self, facts: &Handshake) -> bool {
        let Some(offered) = facts.offered_flight else { return false };
        let key = ClaimKey::of_flight(&offered.digest);
        let now = self.now();
        self.gate.has_record(&FlightOffer::with_used_up_ticket(key, now), now)
    }

    /// Records a flight whose early data was refused, so that no copy of it is accepted later. Call
    /// this when the handshake is complete; the outcome decides whether the connection's requests
    /// may run.
    ///
    /// If the store does not reply, tries again for [`RECORD_TIMEOUT`], unless the previous flight
    /// already waited in vain. Returns `None` if the flight is not recorded: a copy may have run on
    /// another node, or may run later.
    pub(crate) async fn spend(&self, flight: &UnspentFlight) -> Option<SpendOutcome> {
        let attempts = async {
            let mut pause = MIN_RETRY_PAUSE;
            loop {
                match self.try_spend(flight).await {
                    Some(spent) => return Some(spent),
                    // Other flights have waited in vain, and the store has not replied since.
                    None if self.store_failed.load(Ordering::Relaxed) => return None,
                    None => sleep(pause).await,
                }
                pause = (2 * pause).min(MAX_RETRY_PAUSE);
            }
        };
        let spent = timeout(RECORD_TIMEOUT, attempts).await.ok().flatten();
        self.store_failed.store(spent.is_none(), Ordering::Relaxed);
        spent
    }

    /// Records a flight whose client has disconnected, as [`spend`](Self::spend) does. The client
    /// sends its request on another connection, and a copy of the flight must not run too.
    pub(crate) async fn spend_abandoned(&self, flight: UnspentFlight) {
        // Limited, because clients can disconnect as often as they like.
        if self.abandoned.fetch_add(1, Ordering::Relaxed) < MAX_ABANDONED {
            let _ = self.spend(&flight).await;
        }
        self.abandoned.fetch_sub(1, Ordering::Relaxed);
    }

    async fn try_spend(&self, flight: &UnspentFlight) -> Option<SpendOutcome> {
        if let Some(shared) = &self.shared {
            let has_exact_time = flight.offered.ticket_age_skew.is_some();
            let offer = match has_exact_time {
                true => flight.offer_by_unix_time(),
                false => {
                    // Other nodes may open the ticket for as long as it lives, and their tickets may
                    // live longer than this node's. This node's clock may be wrong, so the record's
                    // end is computed from the store's clock.
                    flight.offer(shared.store_time()?.saturating_add(MAX_TICKET_LIFETIME))
                }
            };
            let spent = shared.spend(&offer, flight.arrival.claimant, || self.now()).await;
            // In the same epoch, the clock has not been set since the flight arrived.
            let is_stale = || {
                has_exact_time
                    && shared.is_stale(&offer)
                    && flight.arrival.epoch == self.epochs.current()
            };
            return spent.or_else(|| is_stale().then_some(SpendOutcome::Recorded));
        }
        let mut spent = self.gate.spend(&flight.offer_by_gate_clock(), self.now());
        if spent == SpendOutcome::HandedOver
            && let Some(HandoffReply::Spent(remote)) = self
                .query_successor(HandoffQuery::Spend(self.offer_by_monotonic_clock(flight)))
                .await
        {
            spent = remote;
        }
        (spent != SpendOutcome::HandedOver).then_some(spent)
    }

    /// Claims a name (an idempotency key or a nonce) for `lifetime`.
    pub(crate) async fn claim_name(&self, name: ClaimKey, lifetime: Duration) -> NameClaim {
        if let Some(shared) = &self.shared {
            return match shared.claim_name(name, lifetime).await {
                StoreReply::Won => NameClaim::Won,
                StoreReply::Lost => NameClaim::Taken,
                StoreReply::Unknown(why) => NameClaim::Unknown(store_reason(why).name()),
            };
        }
        let mut claim = self.gate.claim_name(name, lifetime, self.now());
        for _ in 0..MAX_HANDOFF_ATTEMPTS {
            if claim != ClaimOutcome::Closed {
                break;
            }
            claim = match self.query_successor(HandoffQuery::Name(name, lifetime)).await {
                Some(HandoffReply::Name(claim)) => claim,
                _ => self.gate.claim_name(name, lifetime, self.now()),
            };
        }
        match claim {
            ClaimOutcome::Won => NameClaim::Won,
            ClaimOutcome::Lost | ClaimOutcome::Barred => NameClaim::Taken,
            ClaimOutcome::Full => NameClaim::Unknown("register_full"),
            ClaimOutcome::Closed => NameClaim::Unknown("handed_over"),
        }
    }

    /// Releases a claimed name because its request was certainly not executed.
    pub(crate) async fn release_name(&self, name: ClaimKey) {
        match &self.shared {
            Some(shared) => shared.release_name(name).await,
            None => {
                for _ in 0..MAX_HANDOFF_ATTEMPTS {
                    if self.gate.release_name(name, self.now())
                        || self.query_successor(HandoffQuery::Release(name)).await.is_some()
                    {
                        return;
                    }
                }
            }
        }
    }

    /// Closes the gate and returns its records for `successor`. Returns `None` if it was handed
    /// over before, since the successor's claims are not known here.
    pub(crate) fn hand_off(&self, successor: Successor) -> Option<RegisterSnapshot> {
        // Sets the successor first: a task that finds the gate closed needs it.
        let earlier =
            self.successor.compare_and_swap(&None::<Arc<Successor>>, Some(successor.into()));
        earlier.is_none().then(|| self.gate.hand_off(self.handoff_time()))
    }

    /// Whether another process has the register.
    pub(crate) fn has_successor(&self) -> bool {
        self.successor.load().is_some()
    }

    /// Waits until no other process has the register.
    pub(crate) async fn wait_for_register(&self) {
        if let Some(successor) = self.successor.load_full() {
            successor.closed().await;
        }
    }

    /// Opens the gate again after a failed handoff.
    pub(crate) fn reopen(&self) {
        self.gate.reopen();
        self.successor.store(None);
    }

    /// Opens the gate again after the successor has died.
    pub(crate) fn take_back(&self) {
        self.lost_successors.fetch_add(1, Ordering::SeqCst);
        self.gate.take_back(self.now());
        self.successor.store(None);
    }

    /// Takes over the records of another process's gate.
    pub(crate) fn take_over(&self, register: &RegisterSnapshot) {
        self.gate.restore(register, self.handoff_time());
    }

    /// Replies to a process that has handed over its register.
    pub(crate) fn reply_to(&self, query: &HandoffQuery) -> HandoffReply {
        query.execute(&self.gate, monotonic(), self.now())
    }

    /// Records a reply of the process that has the register, which may die.
    pub(crate) fn record_reply(&self, query: &HandoffQuery, reply: HandoffReply) {
        query.record(reply, &self.gate, monotonic(), self.now());
    }

    /// Opens a punctured ticket in the process that has the keys. Returns `None` if no other process has
    /// them any more.
    pub(crate) async fn open_at_successor(&self, offer: &[u8]) -> Option<SuccessorSession> {
        let successor = self.successor.load_full()?;
        successor.open(offer.to_vec()).await
    }

    async fn query_successor(&self, query: HandoffQuery) -> Option<HandoffReply> {
        let successor = self.successor.load_full()?;
        successor.query(query).await
    }

    /// The flight's offer by the machine's monotonic clock, which both processes read.
    fn offer_by_monotonic_clock(&self, flight: &UnspentFlight) -> FlightOffer {
        let elapsed = self.now().saturating_sub(flight.received_at.gate_time);
        flight.offer(monotonic().saturating_sub(elapsed))
    }

    /// Why no flight can be accepted at the moment, as far as that is known in advance.
    pub(crate) fn unavailable(&self) -> Option<RefusedReason> {
        match &self.shared {
            Some(shared) => shared.claim_problem().map(store_reason),
            None => self.gate.is_full().then_some(RefusedReason::RegisterFull),
        }
    }

    /// Counters of this process's register.
    pub(crate) fn statistics(&self) -> RegisterStatistics {
        self.gate.statistics()
    }

    /// The cluster's strike register, if there is one.
    pub(crate) fn shared(&self) -> Option<&SharedRegister> {
        self.shared.as_ref()
    }

    /// Follows a change of the machine's clock. Earlier tickets bring no early data from then on,
    /// because their ages were measured by another clock.
    ///
    /// Freshness depends on ages that only grow. So tickets are issued and aged by the machine's
    /// clock as it was at the start, advanced by the monotonic clock. A clock that is set is
    /// noticed within a second. A successor that starts before that compares its clock with this
    /// one ([`Gate::restore`]).
    ///
    /// `punctured`: whether tickets are used up when they are opened. Then their early data depends
    /// neither on an epoch nor on this clock.
    pub(crate) fn watch_clock(&self, punctured: bool) {
        let step = SteadyClock::system_clock_offset_micros();
        let ignored = ignored_step(self.shared.as_ref().map(|shared| shared.gate().config()));
        if step.unsigned_abs() <= ignored.as_micros() as u64 {
            return;
        }
        self.gate.start_epoch();
        SteadyClock::follow_system_clock();
        // Other threads may have issued tickets of that epoch by the old clock.
        self.gate.start_epoch();
        let seconds = step as f64 / 1e6;
        let effect = match punctured {
            true => "tickets keep their early data",
            false => "tickets issued before bring no early data",
        };
        warn!("the machine's clock was set by {seconds:.1} s; {effect}");
    }

    fn handoff_time(&self) -> HandoffTime {
        HandoffTime {
            gate: self.now(),
            common: monotonic(),
            tickets: micros(SteadyClock::unix_micros()),
        }
    }

    fn now(&self) -> Duration {
        self.started_at.elapsed()
    }
}

impl UnspentFlight {
    /// The flight of a ClientHello that offered early data.
    ///
    /// # Errors
    /// [`EarlyDataRefusal::NotClaimed`]: it offered none.
    fn from_handshake(
        facts: &Handshake,
        arrival: Arrival,
        received_at: ReceivedAt,
    ) -> Result<Self, EarlyDataRefusal> {
        let offered = facts.offered_flight.ok_or(EarlyDataRefusal::NotClaimed)?;
        let used_up = facts.ticket_used_up;
        Ok(Self { offered, arrival, received_at, used_up, store_silent: false })
    }

    /// Whether the flight is recorded even if its client disconnects without another request: the
    /// claim that should have recorded it had no reply in time. After other refusals, the flight is
    /// recorded at the end of the handshake, which the sender of a copy never reaches.
    pub(crate) fn must_be_recorded(&self) -> bool {
        self.store_silent
    }

    /// The flight that has to be spent on a connection without early data. `refused`: why this
    /// server refused early data. Returns `None` if no copy can be accepted any more.
    pub(crate) fn needing_record(
        facts: &Handshake,
        (arrival, received_at): (Arrival, ReceivedAt),
        refused: Option<EarlyDataRefusal>,
    ) -> Option<Self> {
        match facts.ticket_used_up || refused.is_some_and(EarlyDataRefusal::is_recorded) {
            true => None,
            false => {
                let store_silent = matches!(
                    refused,
                    Some(EarlyDataRefusal::Shared(SharedRefusal::Store(
                        Unknown::Slow | Unknown::Absent
                    )))
                );
                let flight = Self::from_handshake(facts, arrival, received_at).ok()?;
                Some(Self { store_silent, ..flight })
            }
        }
    }

    fn offer_by_gate_clock(&self) -> FlightOffer {
        self.offer(self.received_at.gate_time)
    }

    fn offer_by_unix_time(&self) -> FlightOffer {
        self.offer(micros(self.received_at.unix_micros))
    }

    fn offer(&self, seen_at: Duration) -> FlightOffer {
        let OfferedFlight { digest, ticket_age_skew, .. } = self.offered;
        // The exact time of a ticket that cannot be opened here is not known. In a store, `try_spend`
        // takes another time for it. Without one, only tickets of this process bring early data.
        let skew = ticket_age_skew.unwrap_or(0);
        let key = ClaimKey::of_flight(&digest);
        match self.used_up {
            true => FlightOffer::with_used_up_ticket(key, seen_at),
            false => FlightOffer::new(key, skew, seen_at, self.arrival.epoch),
        }
    }
}

/// Why early data is refused on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EarlyDataRefusal {
    /// The configuration disables early data.
    Disabled,
    /// The gate refused it by this process's register.
    Gate(Refusal),
    /// The rules of the shared register refused it.
    Shared(SharedRefusal),
    /// Over QUIC with a shared register: quinn-proto processed another flight than the claimed one, or
    /// none was claimed.
    NotClaimed,
}

impl EarlyDataRefusal {
    /// Whether the flight has a record, or cannot be accepted anywhere any more.
    fn is_recorded(self) -> bool {
        match self {
            Self::Gate(refusal) => refusal != Refusal::HandedOver,
            Self::Shared(SharedRefusal::TicketAge) => true,
            Self::Shared(SharedRefusal::Store(_)) | Self::Disabled | Self::NotClaimed => false,
        }
    }

    /// The reason as metrics and the access log name it.
    pub(crate) fn reason(self) -> RefusedReason {
        match self {
            Self::Disabled => RefusedReason::Disabled,
            Self::Gate(Refusal::TicketEpoch) => RefusedReason::TicketEpoch,
            Self::Gate(Refusal::RegisterFull) => RefusedReason::RegisterFull,
            Self::Gate(Refusal::TicketAge) => RefusedReason::Age,
            Self::Gate(Refusal::RefusedBefore) => RefusedReason::RefusedBefore,
            Self::Gate(Refusal::HandedOver) => RefusedReason::HandedOver,
            Self::NotClaimed => RefusedReason::Unseen,
            Self::Shared(SharedRefusal::TicketAge) => RefusedReason::Age,
            Self::Shared(SharedRefusal::Store(why)) => store_reason(why),
        }
    }
}

/// Attempts to claim a flight while the register is being handed over or returned.
pub(crate) const MAX_HANDOFF_ATTEMPTS: usize = 3;

/// Why the store's reply is missing, as metrics and the access log name it.
pub(crate) fn store_reason(why: Unknown) -> RefusedReason {
    match why {
        Unknown::Absent => RefusedReason::StoreDown,
        Unknown::Slow => RefusedReason::StoreTimeout,
        Unknown::Refused => RefusedReason::StoreRefused,
        Unknown::Unreplicated => RefusedReason::StoreUnreplicated,
        Unknown::Window => RefusedReason::StoreWindow,
        Unknown::Clock => RefusedReason::StoreClock,
        Unknown::Evicting => RefusedReason::StoreEvicting,
    }
}

/// The largest step of the machine's clock that is ignored. With a store, ignored steps must stay
/// within the margin for the nodes' clocks.
fn ignored_step(shared: Option<&SharedConfig>) -> Duration {
    shared.map_or(MAX_CLOCK_STEP, |config| MAX_CLOCK_STEP.min(config.clock_margin / 2))
}

fn micros(unix: i64) -> Duration {
    Duration::from_micros(u64::try_from(unix).unwrap_or(0))
}

/// How long the requests of a refused flight wait for its record before they get 425: long enough
/// for a failover of the store, and shorter than clients wait for a response.
const RECORD_TIMEOUT: Duration = Duration::from_secs(5);

/// Limits the flights that are recorded at once although their clients have disconnected.
const MAX_ABANDONED: usize = 1024;

/// The pauses between attempts to record a flight.
const MIN_RETRY_PAUSE: Duration = Duration::from_millis(20);
const MAX_RETRY_PAUSE: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests;
