//! The health of one server, by its health checks and by the results of its requests.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::{EjectionRule, PoolConfig};

/// The health of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerHealth {
    /// It gets requests.
    Up,
    /// Its ejection is over. It gets one request at a time until one succeeds.
    Trial,
    /// Several requests failed. It gets requests only if there is no other server.
    Ejected,
    /// It fails its health checks and gets nothing.
    Down,
}

/// One server's health.
#[derive(Clone, Debug)]
pub(crate) struct Health {
    rule: Option<EjectionRule>,
    rise: u32,
    fall: u32,
    /// Whether health checks have failed.
    down: bool,
    /// Checks whose results contradict the current state.
    consecutive_contradicting_checks: u32,
    /// Consecutive failed requests.
    failures: u32,
    /// Consecutive ejections, and the end of the current one.
    ejections: u32,
    ejected_until: Option<Instant>,
    /// Requests in flight that started after the end of the ejection.
    trials: usize,
    /// When an event last changed the state.
    changed: Instant,
}

impl Health {
    /// A new server is up: requests do not wait for the first check.
    pub(crate) fn new(config: &PoolConfig, now: Instant) -> Self {
        let (rise, fall) =
            config.health_check.as_ref().map_or((1, 1), |check| (check.rise, check.fall));
        Self {
            rule: config.ejection,
            rise,
            fall,
            down: false,
            consecutive_contradicting_checks: 0,
            failures: 0,
            ejections: 0,
            ejected_until: None,
            trials: 0,
            changed: now,
        }
    }

    pub(crate) fn state(&self, now: Instant) -> ServerHealth {
        match self.ejected_until {
            _ if self.down => ServerHealth::Down,
            Some(ejected_until) if now < ejected_until => ServerHealth::Ejected,
            Some(_) => ServerHealth::Trial,
            None => ServerHealth::Up,
        }
    }

    /// Returns when the state last changed.
    pub(crate) fn since(&self, now: Instant) -> Instant {
        match (self.state(now), self.ejected_until) {
            (ServerHealth::Trial, Some(ejected_until)) => ejected_until,
            _ => self.changed,
        }
    }

    /// Returns when the server's ejection ends, if it is ejected.
    pub(crate) fn next_trial(&self, now: Instant) -> Option<Instant> {
        self.ejected_until.filter(|_| self.state(now) == ServerHealth::Ejected)
    }

    /// A request starts.
    pub(crate) fn started(&mut self, now: Instant) {
        if self.state(now) == ServerHealth::Trial {
            self.trials += 1;
        }
    }

    /// A request that started at `started` has ended.
    pub(crate) fn ended(&mut self, started: Instant) {
        if self.ejected_until.is_some_and(|ejected_until| started >= ejected_until) {
            self.trials = self.trials.saturating_sub(1);
        }
    }

    /// Returns whether a trial is running. Requests that started before the trial do not count: a
    /// tunnel may last for hours.
    pub(crate) fn is_on_trial(&self) -> bool {
        self.trials > 0
    }

    /// A request succeeded.
    pub(crate) fn succeeded(&mut self, now: Instant) {
        self.failures = 0;
        if self.ejected_until.is_some() {
            self.changed = now;
        }
        self.set_ejection(None);
    }

    /// A request that started at `started` failed because of the server.
    pub(crate) fn failed(&mut self, started: Instant, now: Instant) {
        let Some(rule) = self.rule else { return };
        // Requests from before the end of the ejection are no new evidence.
        if self.ejected_until.is_some_and(|ejected_until| started < ejected_until) {
            return;
        }
        self.failures += 1;
        if self.state(now) == ServerHealth::Trial || self.failures >= rule.after {
            // After a long healthy time, earlier ejections do not count.
            if self.ejected_until.is_none() && now.duration_since(self.changed) > rule.most {
                self.ejections = 0;
            }
            self.set_ejection(Some(now + ejection_duration(&rule, self.ejections)));
            self.ejections += 1;
            self.failures = 0;
            self.changed = now;
        }
    }

    /// A health check ended.
    pub(crate) fn checked(&mut self, healthy: bool, now: Instant) {
        if healthy != self.down {
            self.consecutive_contradicting_checks = 0;
            return;
        }
        self.consecutive_contradicting_checks += 1;
        let enough = if healthy { self.rise } else { self.fall };
        if self.consecutive_contradicting_checks >= enough {
            self.consecutive_contradicting_checks = 0;
            self.down = !healthy;
            self.changed = now;
            if healthy {
                // Earlier failures do not count any more.
                (self.failures, self.ejections) = (0, 0);
                self.set_ejection(None);
            }
        }
    }

    /// Starts or ends an ejection, and resets its trials.
    fn set_ejection(&mut self, until: Option<Instant>) {
        self.ejected_until = until;
        self.trials = 0;
    }
}

/// The duration of an ejection: twice as long each time, up to the maximum.
fn ejection_duration(rule: &EjectionRule, ejections: u32) -> Duration {
    rule.first.saturating_mul(1 << ejections.min(20)).min(rule.most)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::HealthCheck;

    const SECOND: Duration = Duration::from_secs(1);

    fn config() -> PoolConfig {
        PoolConfig {
            health_check: Some(HealthCheck::new("/".parse().unwrap())),
            ..PoolConfig::new(Vec::new())
        }
    }

    #[test]
    fn consecutive_failures_eject_a_server_for_a_growing_time() {
        let start = Instant::now();
        let mut health = Health::new(&config(), start);
        health.failed(start, start);
        health.failed(start, start);
        health.succeeded(start);
        health.failed(start, start);
        health.failed(start, start);
        assert_eq!(health.state(start), ServerHealth::Up);
        health.failed(start, start);
        assert_eq!(health.state(start), ServerHealth::Ejected);
        let trial = start + SECOND;
        // Requests that started before the trial change nothing, however late they fail.
        (0..10).for_each(|_| health.failed(start, start));
        (0..10).for_each(|_| health.failed(start, trial));
        assert_eq!(health.state(trial), ServerHealth::Trial);
        assert_eq!(health.since(trial), trial);
        health.failed(trial, trial);
        assert_eq!(health.state(trial + SECOND), ServerHealth::Ejected);
        assert_eq!(health.state(trial + 2 * SECOND), ServerHealth::Trial);
        health.succeeded(trial + 2 * SECOND);
        assert_eq!(health.state(trial + 2 * SECOND), ServerHealth::Up);
    }

    #[test]
    fn ejections_double_up_to_the_maximum_and_restart_after_a_healthy_time() {
        let mut now = Instant::now();
        let mut health = Health::new(&config(), now);
        let mut eject = |now: Instant| {
            (0..3).for_each(|_| health.failed(now, now));
            let ejected_until = health.ejected_until.unwrap();
            health.succeeded(ejected_until);
            ejected_until
        };
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            let ejected_until = eject(now);
            assert_eq!(ejected_until - now, seconds * SECOND);
            now = ejected_until;
        }
        assert_eq!(eject(now + 61 * SECOND) - now, 62 * SECOND);
    }

    #[test]
    fn checks_change_the_state_after_rise_or_fall_consecutive_results() {
        let now = Instant::now();
        let mut health = Health::new(&config(), now);
        for (healthy, state) in [
            (false, ServerHealth::Up),
            (false, ServerHealth::Up),
            (true, ServerHealth::Up),
            (false, ServerHealth::Up),
            (false, ServerHealth::Up),
            (false, ServerHealth::Down),
            (true, ServerHealth::Down),
            (false, ServerHealth::Down),
            (true, ServerHealth::Down),
            (true, ServerHealth::Up),
        ] {
            health.checked(healthy, now);
            assert_eq!(health.state(now), state);
        }
    }

    proptest! {
        #[test]
        fn no_ejection_is_longer_than_the_maximum(
            events in prop::collection::vec((any::<bool>(), 0u64..100_000), 1..200),
        ) {
            let mut now = Instant::now();
            let mut health = Health::new(&config(), now);
            for (healthy, wait) in events {
                now += Duration::from_millis(wait);
                if healthy { health.succeeded(now) } else { health.failed(now, now) }
                let max = config().ejection.unwrap().most;
                prop_assert_ne!(health.state(now + max), ServerHealth::Ejected);
                if healthy {
                    prop_assert_eq!(health.state(now), ServerHealth::Up);
                }
            }
        }
    }
}
