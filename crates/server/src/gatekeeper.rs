//! The gate with a clock and a policy: whose is a flight, and why early data was refused.

use std::time::{Duration, Instant};

use firstflight_config::EarlyDataSettings;
use firstflight_replay::{
    Flight, Gate, GateConfig, HoldReason, Offer, Refusal, SharedConfig, SharedRefusal, Startup,
    StoreAnswer, Unknown,
};
use firstflight_store::Store;
use firstflight_tls::{Handshake, SteadyClock};
use tracing::warn;

use crate::shared_register::SharedRegister;

/// Decides over early data for the whole server.
pub(crate) struct Gatekeeper {
    gate: Gate,
    /// The register of the whole cluster. With it the gate and its own register stand idle.
    shared: Option<SharedRegister>,
    began: Instant,
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
        let Some(shared) = &self.shared else { return self.claim_at_once(facts, heard_at) };
        let offer =
            Offer::new(&facts.client_random, facts.ticket_age_skew, micros(heard_at.unix_micros));
        let answer = match redeemed {
            true => StoreAnswer::Won,
            false => shared.claim(offer.key(), || self.now()).await,
        };
        let now = micros(SteadyClock::unix_micros());
        shared.gate().settle(&offer, answer, now).map_err(Refused::Shared)
    }

    /// The same at once, where no store has to be asked.
    pub(crate) fn claim_at_once(
        &self,
        facts: &Handshake,
        heard_at: HeardAt,
    ) -> Result<Flight, Refused> {
        let offer = Offer::new(&facts.client_random, facts.ticket_age_skew, heard_at.own);
        self.gate.claim(&offer, self.now()).map_err(Refused::Gate)
    }

    /// No early data for a recording window: there have been flights that left no record.
    pub(crate) fn claims_lost(&self) {
        self.gate.claims_lost(self.now());
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

/// A hold reason as the access log has it.
pub(crate) fn reason_name(reason: HoldReason) -> &'static str {
    match reason {
        HoldReason::Policy => "policy",
        HoldReason::Replayed => "replayed",
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
    /// As the access log has it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::SwitchedOff => "disabled",
            Self::Gate(Refusal::StartupWindow) => "startup_window",
            Self::Gate(Refusal::RegisterFull) => "register_full",
            Self::Gate(Refusal::TicketAge) => "ticket_age",
            Self::Gate(Refusal::RefusedBefore) => "refused_before",
            Self::Gate(Refusal::HandedOver) => "handed_over",
            Self::Unseen => "unseen",
            Self::Shared(SharedRefusal::TicketAge) => "ticket_age",
            Self::Shared(SharedRefusal::Store(why)) => match why {
                Unknown::Absent => "store_absent",
                Unknown::Slow => "store_slow",
                Unknown::Refused => "store_refused",
                Unknown::Unreplicated => "store_unreplicated",
                Unknown::Window => "store_window",
                Unknown::Clock => "store_clock",
                Unknown::Evicting => "store_evicting",
            },
        }
    }
}

fn micros(unix: i64) -> Duration {
    Duration::from_micros(u64::try_from(unix).unwrap_or(0))
}

/// Less than the gate's clock margin, more than clocks are slewed by between two looks.
const MAX_STEP: Duration = Duration::from_secs(2);
