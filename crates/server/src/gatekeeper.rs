//! The gate with a clock and a policy: what becomes of an early request, and why.

use std::time::{Duration, Instant};

use firstflight_config::{EarlyDataSettings, MAX_HANDSHAKE};
use firstflight_replay::{
    Acceptance, Admission, Decision, Flight, Gate, GateConfig, HoldReason, Refusal, Release,
    SharedConfig, SharedRefusal, Startup, StoreAnswer, Unknown,
};
use firstflight_store::Store;
use firstflight_tls::{Handshake, SteadyClock};
use tracing::warn;

use crate::shared_register::SharedRegister;

/// Decides over early data for the whole server.
pub(crate) struct Gatekeeper {
    gate: Gate,
    /// The register of the whole cluster. With it the gate's own is empty: each flight comes to
    /// the gate with its claim settled.
    shared: Option<SharedRegister>,
    began: Instant,
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
            max_handshake: MAX_HANDSHAKE,
            startup: match keys_may_predate_start {
                true => Startup::KeysMayPredateStart,
                false => Startup::KeysAreNew,
            },
            ..GateConfig::default()
        };
        let gate = Gate::new(config, Duration::ZERO);
        let began = Instant::now();
        gate.observe_wall_clock(micros(SteadyClock::unix_micros()), Duration::ZERO);
        Self {
            gate,
            shared: store.map(|store| SharedRegister::new(store.0, store.1, capacity)),
            began,
        }
    }

    /// Whether TLS should take early data on a new connection; if not, why. `enabled`: whether the
    /// configuration wants any.
    ///
    /// A start of this node, or a clock that was set, is nothing to a shared register: what it
    /// remembers lies in the store, and each claim compares the clocks.
    pub(crate) fn admission(&self, enabled: bool) -> Result<(), Refused> {
        match &self.shared {
            _ if !enabled => Err(Refused::SwitchedOff),
            Some(shared) => match shared.resting() {
                Some(why) => Err(Refused::Shared(SharedRefusal::Store(why))),
                None => Ok(()),
            },
            None => match self.gate.admission(self.now()) {
                Admission::Refuse(refusal) => Err(Refused::Gate(refusal)),
                Admission::Accept => Ok(()),
            },
        }
    }

    /// The flight of a connection whose early data TLS would accept, and whether it should. What
    /// is not known within the store's budget is refused.
    ///
    /// `heard_at`: [`firstflight_tls::Accepting::heard_at`]. `redeemed`: the flight's ticket could
    /// be used once only, and this was the time; so nobody else has the flight.
    pub(crate) async fn settle(
        &self,
        facts: &Handshake,
        heard_at: i64,
        redeemed: bool,
    ) -> Result<Flight, Refused> {
        let (random, skew) = (&facts.client_random, facts.ticket_age_skew);
        let Some(shared) = &self.shared else {
            return Ok(Flight::new(random, skew, self.now()));
        };
        let mut flight = Flight::new(random, skew, micros(heard_at));
        let answer = match redeemed {
            true => StoreAnswer::Won,
            false => shared.claim(flight.key(), || self.now()).await,
        };
        let now = micros(SteadyClock::unix_micros());
        match shared.gate().settle(&mut flight, answer, now) {
            Acceptance::Accept => Ok(flight),
            Acceptance::Refuse(why) => Err(Refused::Shared(why)),
        }
    }

    /// The same at once, where no store has to be asked: claims the flight, whether or not a
    /// request comes with it.
    pub(crate) fn settle_at_once(&self, facts: &Handshake) -> Result<Flight, Refused> {
        let mut flight = Flight::new(&facts.client_random, facts.ticket_age_skew, self.now());
        self.gate.claim_ahead(&mut flight, self.now()).map_err(Refused::Unclaimed)?;
        Ok(flight)
    }

    pub(crate) fn early_request(&self, flight: &mut Flight, may_run_early: bool) -> Decision {
        self.gate.early_request(flight, may_run_early, self.now())
    }

    pub(crate) fn handshake_complete(&self, flight: &mut Flight, reason: HoldReason) -> Release {
        self.gate.handshake_complete(flight, reason, self.now())
    }

    /// Follows a machine's clock that was set, after the gate has closed for it: ages measured
    /// before and after do not compare.
    pub(crate) fn watch_clock(&self) {
        let step = SteadyClock::step_micros();
        if step.unsigned_abs() <= MAX_STEP.as_micros() as u64 {
            return;
        }
        let now = self.now();
        self.gate.claims_lost(now);
        // Set back, the clock makes flights fresh again for as long as the step was.
        self.gate.observe_wall_clock(micros(SteadyClock::unix_micros() + step), now);
        SteadyClock::follow_machine();
        let seconds = step as f64 / 1e6;
        match self.shared {
            Some(_) => warn!("the machine's clock was set by {seconds:.1} s"),
            None => {
                warn!("the machine's clock was set by {seconds:.1} s; no early data for a while");
            }
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
        HoldReason::TicketAge => "ticket_age",
        HoldReason::Replayed => "replayed",
        HoldReason::RegisterFull => "register_full",
        HoldReason::StartupWindow => "startup_window",
    }
}

/// Why early data is refused by TLS on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// By configuration.
    SwitchedOff,
    /// By the gate with a register of its own.
    Gate(Refusal),
    /// By the same over QUIC, where the claim comes before acceptance.
    Unclaimed(HoldReason),
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
            Self::Unclaimed(reason) => reason_name(reason),
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
