//! The gate with a clock and a policy: what becomes of an early request, and why.

use std::time::{Duration, Instant};

use firstflight_replay::{
    Admission, Decision, Flight, Gate, GateConfig, HoldReason, Refusal, Release, Startup,
};
use firstflight_tls::{Handshake, SteadyClock};
use tracing::warn;

use crate::limits::MAX_HANDSHAKE;
use crate::{EarlyDataSettings, Policy, WhenNotAllowed};

/// Decides over early data for the whole server.
pub(crate) struct Gatekeeper {
    gate: Gate,
    began: Instant,
    enabled: bool,
    pub(crate) policy: Policy,
    pub(crate) when_not_allowed: WhenNotAllowed,
}

impl Gatekeeper {
    pub(crate) fn new(settings: &EarlyDataSettings, keys_may_predate_start: bool) -> Self {
        let config = GateConfig {
            freshness: settings.freshness,
            capacity: settings.register_capacity,
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
            began,
            enabled: settings.enabled,
            policy: settings.policy.clone(),
            when_not_allowed: settings.when_not_allowed,
        }
    }

    /// Whether TLS should take early data on a new connection; if the gate says no, why.
    pub(crate) fn admission(&self) -> Result<(), Option<Refusal>> {
        match (self.enabled, self.gate.admission(self.now())) {
            (false, _) => Err(None),
            (true, Admission::Refuse(refusal)) => Err(Some(refusal)),
            (true, Admission::Accept) => Ok(()),
        }
    }

    /// The flight of a connection on which TLS has just accepted early data.
    pub(crate) fn flight(&self, facts: &Handshake) -> Flight {
        Flight::new(&facts.client_random, facts.ticket_age_skew, self.now())
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
        warn!(
            "the machine's clock was set by {:.1} s; no early data for a while",
            step as f64 / 1e6
        );
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

/// A refusal as the access log has it.
pub(crate) fn refusal_name(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::StartupWindow => "startup_window",
        Refusal::RegisterFull => "register_full",
    }
}

fn micros(unix: i64) -> Duration {
    Duration::from_micros(u64::try_from(unix).unwrap_or(0))
}

/// Less than the gate's clock margin, more than clocks are slewed by between two looks.
const MAX_STEP: Duration = Duration::from_secs(2);
