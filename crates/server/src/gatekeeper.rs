//! The gate with a clock and a policy: whose is a flight, and why early data was refused.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use firstflight_config::EarlyDataSettings;
use firstflight_replay::{
    Answer, Claim, ClaimKey, Flight, Gate, GateConfig, Inheritance, Offer, Question, Refusal,
    RegisterStatistics, SharedConfig, SharedRefusal, Startup, StoreAnswer, Unknown,
};
use firstflight_store::Store;
use firstflight_telemetry::metrics::RefusedReason;
use firstflight_tls::{Handshake, SteadyClock};
use tracing::warn;

use crate::hand_over::{Heir, common};
use crate::shared_register::SharedRegister;

/// Decides over early data for the whole server.
pub(crate) struct Gatekeeper {
    gate: Gate,
    /// The register of the whole cluster. With it the gate and its own register stand idle.
    shared: Option<SharedRegister>,
    /// The way to the process that has the register now.
    heir: ArcSwapOption<Heir>,
    began: Instant,
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

/// A moment just before TLS was given a ClientHello, by both clocks.
#[derive(Clone, Copy)]
pub(crate) struct HeardAt {
    /// By the gatekeeper's own clock, which only goes forward.
    own: Duration,
    /// By [`SteadyClock`], in microseconds since 1970.
    unix_micros: i64,
}

impl Gatekeeper {
    pub(crate) fn new(
        settings: &EarlyDataSettings,
        keys_may_predate_start: bool,
        store: Option<(Store, SharedConfig)>,
    ) -> Self {
        let capacity = settings.register_capacity;
        let config = GateConfig {
            freshness: settings.freshness,
            capacity: if store.is_some() { 0 } else { capacity },
            startup: match keys_may_predate_start {
                true => Startup::KeysMayPredateStart,
                false => Startup::KeysAreNew,
            },
            ..GateConfig::default()
        };
        Self {
            gate: Gate::new(config, Duration::ZERO),
            shared: store.map(|store| SharedRegister::new(store.0, store.1, capacity)),
            heir: ArcSwapOption::empty(),
            began: Instant::now(),
        }
    }

    /// Why TLS should not even look for early data on a new connection, if so. `enabled`: whether
    /// the configuration wants any.
    ///
    /// A gate that is closed is no such reason: what it refuses it has to know, or a copy could run
    /// beside what the client sends again.
    pub(crate) fn admission(&self, enabled: bool) -> Result<(), Refused> {
        match self.shared.as_ref().and_then(SharedRegister::resting) {
            _ if !enabled => Err(Refused::SwitchedOff),
            Some(why) => Err(Refused::Shared(SharedRefusal::Store(why))),
            None => Ok(()),
        }
    }

    /// A moment to give [`Gatekeeper::claim`]: now, or when the last bytes came
    /// ([`firstflight_tls::Accepting::heard_at`]).
    pub(crate) fn heard_at(&self, unix_micros: Option<i64>) -> HeardAt {
        let (now, own) = (SteadyClock::unix_micros(), self.now());
        let unix_micros = unix_micros.unwrap_or(now);
        // Nothing, if the clock was set back meanwhile. The gate is closed then.
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
        heard_at: HeardAt,
        redeemed: bool,
    ) -> Result<Flight, Refused> {
        let Some(shared) = &self.shared else { return self.claim_here(facts, heard_at).await };
        let offer =
            Offer::new(&facts.client_random, facts.ticket_age_skew, micros(heard_at.unix_micros));
        let answer = match redeemed {
            true => StoreAnswer::Won,
            false => shared.claim(offer.key(), || self.now()).await,
        };
        let now = micros(SteadyClock::unix_micros());
        shared.gate().settle(&offer, answer, now).map_err(Refused::Shared)
    }

    async fn claim_here(&self, facts: &Handshake, heard_at: HeardAt) -> Result<Flight, Refused> {
        let (random, skew) = (&facts.client_random, facts.ticket_age_skew);
        let offer = Offer::new(random, skew, heard_at.own);
        for _ in 0..TRIES {
            match self.gate.claim(&offer, self.now()) {
                Err(Refusal::HandedOver) => {}
                settled => return settled.map_err(Refused::Gate),
            }
            let question = Question::Flight(Offer::new(random, skew, self.in_common(heard_at)));
            if let Some(Answer::Flight(answer)) = self.ask(question).await {
                return answer.map(|won| offer.settled(won)).map_err(Refused::Gate);
            }
        }
        Err(Refused::Gate(Refusal::HandedOver))
    }

    /// The same at once, where no store has to be asked. [`Refusal::HandedOver`]: nothing is recorded
    /// yet, and nothing of the flight may run before [`Gatekeeper::claim`] has settled it.
    pub(crate) fn claim_at_once(
        &self,
        facts: &Handshake,
        heard_at: HeardAt,
    ) -> Result<Flight, Refused> {
        let (random, skew) = (&facts.client_random, facts.ticket_age_skew);
        self.gate.claim(&Offer::new(random, skew, heard_at.own), self.now()).map_err(Refused::Gate)
    }

    /// Claims a name, an idempotency key or a nonce, for so long.
    pub(crate) async fn claim_name(&self, name: ClaimKey, life: Duration) -> NameClaim {
        if let Some(shared) = &self.shared {
            return match shared.claim_name(name, life).await {
                StoreAnswer::Won => NameClaim::Won,
                StoreAnswer::Lost => NameClaim::Taken,
                StoreAnswer::Unknown(why) => NameClaim::Unknown(store_reason(why).name()),
            };
        }
        let mut claim = self.gate.claim_name(name, life, self.now());
        for _ in 0..TRIES {
            if claim != Claim::Closed {
                break;
            }
            claim = match self.ask(Question::Name(name, life)).await {
                Some(Answer::Name(claim)) => claim,
                _ => self.gate.claim_name(name, life, self.now()),
            };
        }
        match claim {
            Claim::Won => NameClaim::Won,
            Claim::Lost | Claim::Barred => NameClaim::Taken,
            Claim::Full => NameClaim::Unknown("register_full"),
            Claim::Closed => NameClaim::Unknown("handed_over"),
        }
    }

    /// Gives a name back that was won: what it was claimed for has certainly not happened.
    pub(crate) async fn release_name(&self, name: ClaimKey) {
        match &self.shared {
            Some(shared) => shared.release_name(name).await,
            None if self.gate.release_name(name, self.now()) => {}
            None => drop(self.ask(Question::Release(name)).await),
        }
    }

    /// Closes the gate for `heir`, and says all that it knows. `terms`: by what TLS accepts
    /// flights here. `None`: it has an heir, who has claimed since what is not known here.
    pub(crate) fn close(&self, heir: Heir, terms: ClaimKey) -> Option<Inheritance> {
        // First the way to it, then the closing: who finds the gate closed finds the way.
        let before = self.heir.compare_and_swap(&None::<Arc<Heir>>, Some(heir.into()));
        before.is_none().then(|| self.gate.hand_over(terms, common(), self.now()))
    }

    /// Whether another process has the register.
    pub(crate) fn has_heir(&self) -> bool {
        self.heir.load().is_some()
    }

    /// Waits until no other process has the register.
    pub(crate) async fn without_heir(&self) {
        if let Some(heir) = self.heir.load_full() {
            heir.gone().await;
        }
    }

    /// Opens it again, as there is no heir after all.
    pub(crate) fn reopen(&self) {
        self.gate.reopen();
        self.heir.store(None);
    }

    /// Takes over what another process's gate knew.
    pub(crate) fn take_over(&self, inheritance: &Inheritance, terms: ClaimKey) {
        self.gate.take_over(inheritance, terms, common(), self.now());
    }

    /// Answers a process that has handed its register over.
    pub(crate) fn answer(&self, question: &Question) -> Answer {
        question.answer(&self.gate, common(), self.now())
    }

    async fn ask(&self, question: Question) -> Option<Answer> {
        let heir = self.heir.load_full()?;
        heir.ask(question).await
    }

    /// A moment by the clock that the next process reads too.
    fn in_common(&self, heard_at: HeardAt) -> Duration {
        common().saturating_sub(self.now().saturating_sub(heard_at.own))
    }

    /// Why no flight could be accepted now, as far as one can know before it comes.
    pub(crate) fn closed(&self) -> Option<RefusedReason> {
        match &self.shared {
            Some(shared) => shared.resting().map(store_reason),
            None => self.gate.closed(self.now()).map(|why| Refused::Gate(why).reason()),
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

    /// No early data for a recording window: there have been flights that left no record, and there
    /// may be more for `as_long`.
    pub(crate) fn claims_lost(&self, as_long: Duration) {
        self.gate.claims_lost_for(as_long, self.now());
    }

    /// Follows a machine's clock that was set. Set back, it makes flights fresh again for as long
    /// as the step was, so the gate closes first. A shared register compares the clocks by itself.
    pub(crate) fn watch_clock(&self) {
        let step = SteadyClock::step_micros();
        if step.unsigned_abs() <= MAX_STEP.as_micros() as u64 {
            return;
        }
        if step < 0 {
            self.gate.clock_set_back(Duration::from_micros(step.unsigned_abs()), self.now());
        }
        SteadyClock::follow_machine();
        let seconds = step as f64 / 1e6;
        match self.shared {
            None if step < 0 => {
                warn!("the machine's clock was set by {seconds:.1} s; no early data for a while");
            }
            _ => warn!("the machine's clock was set by {seconds:.1} s"),
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
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
    /// As metrics and the access log have it.
    pub(crate) fn reason(self) -> RefusedReason {
        match self {
            Self::SwitchedOff => RefusedReason::Disabled,
            Self::Gate(Refusal::StartupWindow) => RefusedReason::StartupWindow,
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
const TRIES: usize = 3;

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

/// Less than the gate's clock margin, more than clocks are slewed by between two looks.
const MAX_STEP: Duration = Duration::from_secs(2);
