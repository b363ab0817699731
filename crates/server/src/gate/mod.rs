//! The gate with a clock and a policy: whose is a flight, and why early data was refused.

pub(crate) mod shared_register;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use firstflight_config::EarlyDataSettings;
use firstflight_replay::{
    ClaimKey, ClaimOutcome, Flight, FlightOffer, Gate, GateConfig, HandoffQuery, HandoffReply,
    Refusal, RegisterSnapshot, RegisterStatistics, SharedConfig, SharedRefusal, SpendOutcome,
    StoreReply, TicketEpochs, Unknown,
};
use firstflight_store::{Claimant, Store};
use firstflight_telemetry::metrics::RefusedReason;
use firstflight_tls::{Handshake, OfferedFlight, SteadyClock};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tracing::warn;

use crate::context::monotonic;
use crate::gate::shared_register::SharedRegister;

/// Decides over early data for the whole server.
pub(crate) struct EarlyDataGate {
    gate: Gate,
    /// The register of the whole cluster. With it the gate and its own register stand idle.
    shared: Option<SharedRegister>,
    /// Which tickets bring early data.
    epochs: Arc<TicketEpochs>,
    /// The way to the process that has the register now.
    successor: ArcSwapOption<Successor>,
    began: Instant,
    claimants: AtomicU64,
    /// Whether the store did not take the last record.
    is_store_away: AtomicBool,
}

/// The way to the process that has the register now.
#[derive(Clone)]
pub(crate) struct Successor(mpsc::UnboundedSender<SuccessorRequest>);

/// A question for that process.
pub(crate) struct SuccessorRequest {
    pub(crate) question: HandoffQuery,
    /// Gone, if nobody waits for it.
    pub(crate) reply: oneshot::Sender<HandoffReply>,
}

impl Successor {
    pub(crate) fn new(requests: mpsc::UnboundedSender<SuccessorRequest>) -> Self {
        Self(requests)
    }

    /// What the other process says. `None`: it has gone, or the register is ours again.
    pub(crate) async fn ask(&self, question: HandoffQuery) -> Option<HandoffReply> {
        let (reply, response) = oneshot::channel();
        self.0.send(SuccessorRequest { question, reply }).ok()?;
        response.await.ok()
    }

    /// Waits until the register is ours again.
    pub(crate) async fn gone(&self) {
        self.0.closed().await;
    }
}

/// What came of claiming a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameClaim {
    /// Nobody had it.
    Won,
    /// Somebody has it.
    Taken,
    /// Nobody can say, in the words of the access log.
    Unknown(&'static str),
}

/// What has to be known of a connection before TLS is given its ClientHello.
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    /// The ticket epoch.
    epoch: u32,
    /// Names the connection in the store.
    claimant: Claimant,
}

/// A flight whose early data was refused, and which the register does not know yet. Before the
/// first request of its connection runs it has to be spent: [`EarlyDataGate::spend`].
#[derive(Clone, Copy)]
pub(crate) struct Unspent {
    offered: OfferedFlight,
    arrival: Arrival,
    heard_at: HeardAt,
}

/// A moment just before TLS was given a ClientHello, by both clocks.
#[derive(Clone, Copy)]
pub(crate) struct HeardAt {
    /// By the gate's own clock, which only goes forward.
    own: Duration,
    /// By [`SteadyClock`], in microseconds since 1970.
    unix_micros: i64,
}

impl EarlyDataGate {
    /// `epochs`: a new one, which the tickets carry that are issued from now on; tickets are good
    /// for `ticket_lifetime`.
    pub(crate) fn new(
        settings: &EarlyDataSettings,
        epochs: Arc<TicketEpochs>,
        ticket_lifetime: Duration,
        store: Option<(Store, SharedConfig)>,
    ) -> Self {
        let capacity = settings.register_capacity;
        let config = GateConfig {
            freshness: settings.freshness,
            capacity: if store.is_some() { 0 } else { capacity },
            ticket_lifetime,
            ..GateConfig::default()
        };
        Self {
            gate: Gate::new(config, epochs.clone()),
            shared: store.map(|store| SharedRegister::new(store.0, store.1, capacity)),
            epochs,
            successor: ArcSwapOption::empty(),
            began: Instant::now(),
            claimants: AtomicU64::new(RandomState::new().hash_one(())),
            is_store_away: AtomicBool::new(false),
        }
    }

    /// Why TLS should not even look for early data on a new connection, if so. `enabled`: whether
    /// the configuration wants any.
    pub(crate) fn admission(&self, enabled: bool) -> Result<(), Refused> {
        match self.shared.as_ref().and_then(SharedRegister::resting) {
            _ if !enabled => Err(Refused::SwitchedOff),
            Some(why) => Err(Refused::Shared(SharedRefusal::Store(why))),
            None => Ok(()),
        }
    }

    /// Call it before TLS is given a ClientHello.
    pub(crate) fn arrival(&self) -> Arrival {
        let claimant = Claimant::new(self.claimants.fetch_add(1, Ordering::Relaxed));
        Arrival { epoch: self.epochs.current(), claimant }
    }

    /// A moment to give [`EarlyDataGate::claim`]: now, or when the last bytes came
    /// ([`firstflight_tls::Accepting::received_at`]).
    pub(crate) fn heard_at(&self, unix_micros: Option<i64>) -> HeardAt {
        let (now, own) = (SteadyClock::unix_micros(), self.now());
        let unix_micros = unix_micros.unwrap_or(now);
        // Nothing, if the clock was set back meanwhile. Another ticket epoch has started then.
        HeardAt { own: own.saturating_sub(micros(now - unix_micros)), unix_micros }
    }

    /// Settles the claim of a flight whose early data TLS would accept, and with it whether it
    /// should. What is not known within the store's budget is refused.
    ///
    /// `redeemed`: the flight's ticket could be used once only, and this was the time; so nobody
    /// else has the flight.
    pub(crate) async fn claim(
        &self,
        facts: &Handshake,
        (arrival, heard_at): (Arrival, HeardAt),
        redeemed: bool,
    ) -> Result<Flight, Refused> {
        let flight = Unspent::of(facts, arrival, heard_at)?;
        let Some(shared) = &self.shared else { return self.claim_here(&flight).await };
        let offer = flight.by_unix_time();
        let response = match redeemed {
            true => StoreReply::Won,
            false => shared.claim(&offer, arrival.claimant, || self.now()).await,
        };
        let now = micros(SteadyClock::unix_micros());
        shared.gate().settle(&offer, response, now).map_err(Refused::Shared)
    }

    async fn claim_here(&self, flight: &Unspent) -> Result<Flight, Refused> {
        let offer = flight.by_own_clock();
        for _ in 0..MAX_HANDOVER_ATTEMPTS {
            match self.gate.claim(&offer, self.now()) {
                Err(Refusal::HandedOver) => {}
                settled => return settled.map_err(Refused::Gate),
            }
            let question = HandoffQuery::Flight(self.in_common(flight));
            if let Some(HandoffReply::Flight(response)) = self.ask(question).await {
                return response.map(|won| offer.settled(won)).map_err(Refused::Gate);
            }
        }
        Err(Refused::Gate(Refusal::HandedOver))
    }

    /// The same at once, where no store has to be asked. [`Refusal::HandedOver`]: nothing is
    /// recorded yet, and nothing of the flight may run before [`EarlyDataGate::claim`] has settled
    /// it.
    pub(crate) fn claim_at_once(
        &self,
        facts: &Handshake,
        arrival: Arrival,
        heard_at: HeardAt,
    ) -> Result<Flight, Refused> {
        let offer = Unspent::of(facts, arrival, heard_at)?.by_own_clock();
        self.gate.claim(&offer, self.now()).map_err(Refused::Gate)
    }

    /// Records a flight whose early data was refused, so that no copy of it is accepted later, and
    /// says whether the requests of its connection may run. Call it when the handshake is complete.
    ///
    /// A store that does not respond is tried again for [`RECORD_TIMEOUT`], unless that has been in
    /// vain before. `None`: the flight is not recorded, and this node does not know whether a copy
    /// has run, or will run, on another node.
    pub(crate) async fn spend(&self, flight: &Unspent) -> Option<SpendOutcome> {
        let attempts = async {
            let mut pause = FIRST_PAUSE;
            loop {
                match self.try_to_spend(flight).await {
                    Some(spent) => return Some(spent),
                    // Others have waited for it in vain, and it has not come back since.
                    None if self.is_store_away.load(Ordering::Relaxed) => return None,
                    None => sleep(pause).await,
                }
                pause = (2 * pause).min(MAX_PAUSE);
            }
        };
        let spent = timeout(RECORD_TIMEOUT, attempts).await.ok().flatten();
        self.is_store_away.store(spent.is_none(), Ordering::Relaxed);
        spent
    }

    async fn try_to_spend(&self, flight: &Unspent) -> Option<SpendOutcome> {
        if let Some(shared) = &self.shared {
            let claimant = flight.arrival.claimant;
            return shared.spend(&flight.by_unix_time(), claimant, || self.now()).await;
        }
        let mut spent = self.gate.spend(&flight.by_own_clock(), self.now());
        if spent == SpendOutcome::HandedOver
            && let Some(HandoffReply::Spent(theirs)) =
                self.ask(HandoffQuery::Spend(self.in_common(flight))).await
        {
            spent = theirs;
        }
        (spent != SpendOutcome::HandedOver).then_some(spent)
    }

    /// Claims a name, an idempotency key or a nonce, for so long.
    pub(crate) async fn claim_name(&self, name: ClaimKey, life: Duration) -> NameClaim {
        if let Some(shared) = &self.shared {
            return match shared.claim_name(name, life).await {
                StoreReply::Won => NameClaim::Won,
                StoreReply::Lost => NameClaim::Taken,
                StoreReply::Unknown(why) => NameClaim::Unknown(store_reason(why).name()),
            };
        }
        let mut claim = self.gate.claim_name(name, life, self.now());
        for _ in 0..MAX_HANDOVER_ATTEMPTS {
            if claim != ClaimOutcome::Closed {
                break;
            }
            claim = match self.ask(HandoffQuery::Name(name, life)).await {
                Some(HandoffReply::Name(claim)) => claim,
                _ => self.gate.claim_name(name, life, self.now()),
            };
        }
        match claim {
            ClaimOutcome::Won => NameClaim::Won,
            ClaimOutcome::Lost | ClaimOutcome::Barred => NameClaim::Taken,
            ClaimOutcome::Full => NameClaim::Unknown("register_full"),
            ClaimOutcome::Closed => NameClaim::Unknown("handed_over"),
        }
    }

    /// Gives a name back that was won: what it was claimed for has certainly not happened.
    pub(crate) async fn release_name(&self, name: ClaimKey) {
        match &self.shared {
            Some(shared) => shared.release_name(name).await,
            None if self.gate.release_name(name, self.now()) => {}
            None => drop(self.ask(HandoffQuery::Release(name)).await),
        }
    }

    /// Closes the gate for `successor`, and says all that it knows. `None`: it has a successor,
    /// who has claimed since what is not known here.
    pub(crate) fn close(&self, successor: Successor) -> Option<RegisterSnapshot> {
        // First the way to it, then the closing: who finds the gate closed finds the way.
        let before =
            self.successor.compare_and_swap(&None::<Arc<Successor>>, Some(successor.into()));
        before.is_none().then(|| self.gate.hand_off(monotonic(), self.now()))
    }

    /// Whether another process has the register.
    pub(crate) fn has_successor(&self) -> bool {
        self.successor.load().is_some()
    }

    /// Waits until no other process has the register.
    pub(crate) async fn without_successor(&self) {
        if let Some(successor) = self.successor.load_full() {
            successor.gone().await;
        }
    }

    /// Opens it again, as there is no successor after all.
    pub(crate) fn reopen(&self) {
        self.gate.reopen();
        self.successor.store(None);
    }

    /// Takes over what another process's gate knew.
    pub(crate) fn take_over(&self, inheritance: &RegisterSnapshot) {
        self.gate.restore(inheritance, monotonic(), self.now());
    }

    /// Answers a process that has handed its register over.
    pub(crate) fn response(&self, question: &HandoffQuery) -> HandoffReply {
        question.execute(&self.gate, monotonic(), self.now())
    }

    async fn ask(&self, question: HandoffQuery) -> Option<HandoffReply> {
        let successor = self.successor.load_full()?;
        successor.ask(question).await
    }

    /// The flight by the clock that the next process reads too.
    fn in_common(&self, flight: &Unspent) -> FlightOffer {
        let passed = self.now().saturating_sub(flight.heard_at.own);
        flight.offer(monotonic().saturating_sub(passed))
    }

    /// Why no flight could be accepted now, as far as one can know before it comes.
    pub(crate) fn closed(&self) -> Option<RefusedReason> {
        match &self.shared {
            Some(shared) => shared.resting().map(store_reason),
            None => self.gate.is_full().then_some(RefusedReason::RegisterFull),
        }
    }

    /// Counters of the register in this process.
    pub(crate) fn statistics(&self) -> RegisterStatistics {
        self.gate.statistics()
    }

    /// The register of the whole cluster, if there is one.
    pub(crate) fn shared(&self) -> Option<&SharedRegister> {
        self.shared.as_ref()
    }

    /// No early data on tickets issued before now: there have been flights that left no record.
    pub(crate) fn start_epoch(&self) {
        self.gate.start_epoch();
    }

    /// Follows a machine's clock that was set. Tickets that were issued before bring no early data
    /// any more: their ages are measured by another clock from now on.
    pub(crate) fn watch_clock(&self) {
        let step = SteadyClock::system_clock_offset_micros();
        if step.unsigned_abs() <= MAX_STEP.as_micros() as u64 {
            return;
        }
        self.gate.start_epoch();
        SteadyClock::follow_system_clock();
        let seconds = step as f64 / 1e6;
        warn!(
            "the machine's clock was set by {seconds:.1} s; tickets issued before bring no early data"
        );
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }
}

impl Unspent {
    /// The flight that a ClientHello offered early data with.
    ///
    /// # Errors
    /// [`Refused::Unseen`]: it offered none, so there is none to accept.
    fn of(facts: &Handshake, arrival: Arrival, heard_at: HeardAt) -> Result<Self, Refused> {
        let offered = facts.offered_flight.ok_or(Refused::Unseen)?;
        Ok(Self { offered, arrival, heard_at })
    }

    /// What is still to be recorded of a connection without early data. `refused`: why its early
    /// data was refused by this server; `redeemed`: its ticket is used up, so no copy is accepted.
    pub(crate) fn left_by(
        facts: &Handshake,
        (arrival, heard_at): (Arrival, HeardAt),
        refused: Option<Refused>,
        redeemed: bool,
    ) -> Option<Self> {
        match redeemed || refused.is_some_and(Refused::is_recorded) {
            true => None,
            false => Self::of(facts, arrival, heard_at).ok(),
        }
    }

    fn by_own_clock(&self) -> FlightOffer {
        self.offer(self.heard_at.own)
    }

    fn by_unix_time(&self) -> FlightOffer {
        self.offer(micros(self.heard_at.unix_micros))
    }

    fn offer(&self, seen_at: Duration) -> FlightOffer {
        let OfferedFlight { digest, ticket_age_skew } = self.offered;
        // A ticket that does not open here may open elsewhere, or later. Its client's clock is
        // taken to be right.
        let skew = ticket_age_skew.unwrap_or(0);
        FlightOffer::new(ClaimKey::of_flight(&digest), skew, seen_at, self.arrival.epoch)
    }
}

/// Why early data is refused by TLS on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// By configuration.
    SwitchedOff,
    /// By the gate with a register of its own.
    Gate(Refusal),
    /// By the rules of the shared register.
    Shared(SharedRefusal),
    /// Over QUIC with a shared register: the flight that quinn reads is not the one that was
    /// claimed, or none was seen.
    Unseen,
}

impl Refused {
    /// Whether the flight has left a record, or can be accepted nowhere any more.
    fn is_recorded(self) -> bool {
        match self {
            Self::Gate(refusal) => refusal != Refusal::HandedOver,
            Self::Shared(SharedRefusal::TicketAge) => true,
            Self::Shared(SharedRefusal::Store(_)) | Self::SwitchedOff | Self::Unseen => false,
        }
    }

    /// As metrics and the access log have it.
    pub(crate) fn reason(self) -> RefusedReason {
        match self {
            Self::SwitchedOff => RefusedReason::Disabled,
            Self::Gate(Refusal::TicketEpoch) => RefusedReason::TicketEpoch,
            Self::Gate(Refusal::RegisterFull) => RefusedReason::RegisterFull,
            Self::Gate(Refusal::TicketAge) => RefusedReason::Age,
            Self::Gate(Refusal::RefusedBefore) => RefusedReason::RefusedBefore,
            Self::Gate(Refusal::HandedOver) => RefusedReason::HandedOver,
            Self::Unseen => RefusedReason::Unseen,
            Self::Shared(SharedRefusal::TicketAge) => RefusedReason::Age,
            Self::Shared(SharedRefusal::Store(why)) => store_reason(why),
        }
    }
}

/// How often a gate is asked that is being handed over, or back.
const MAX_HANDOVER_ATTEMPTS: usize = 3;

/// Why the store's word is not to be had.
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

fn micros(unix: i64) -> Duration {
    Duration::from_micros(u64::try_from(unix).unwrap_or(0))
}

/// How long the requests of a refused flight wait for its record, before they get 425:
/// for a failover of the store, and shorter than clients wait for a response.
const RECORD_TIMEOUT: Duration = Duration::from_secs(5);

/// Between attempts to record a flight.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// Less than the gate's clock margin, more than clocks are slewed by between two looks.
const MAX_STEP: Duration = Duration::from_secs(2);
