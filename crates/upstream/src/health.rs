//! What is thought of one server: by questions to it, and by how its requests went.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::{EjectionRule, PoolConfig};

/// What is thought of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerHealth {
    /// It gets requests.
    Up,
    /// It was set aside, and the next request, one at a time, shows whether it is well again.
    Trial,
    /// It failed several requests, and is left alone unless there is no other.
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
    /// Whether checks have taken it out.
    down: bool,
    /// Checks in a row that speak against that.
    contrary_checks: u32,
    /// Requests in a row that failed.
    failures: u32,
    /// How often in a row it was set aside, and until when.
    ejections: u32,
    ejected_until: Option<Instant>,
    /// When its standing last changed by an event.
    changed: Instant,
}

impl Health {
    /// A server is well until it shows otherwise: a start does not wait for checks.
    pub(crate) fn new(config: &PoolConfig, now: Instant) -> Self {
        let (rise, fall) = config.check.as_ref().map_or((1, 1), |check| (check.rise, check.fall));
        Self {
            rule: config.aside,
            rise,
            fall,
            down: false,
            contrary_checks: 0,
            failures: 0,
            ejections: 0,
            ejected_until: None,
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

    /// When its standing last changed.
    pub(crate) fn since(&self, now: Instant) -> Instant {
        match (self.state(now), self.ejected_until) {
            (ServerHealth::Trial, Some(ejected_until)) => ejected_until,
            _ => self.changed,
        }
    }

    /// It has answered a request.
    pub(crate) fn succeeded(&mut self, now: Instant) {
        self.failures = 0;
        if self.ejected_until.take().is_some() {
            self.changed = now;
        }
    }

    /// A request failed by its fault.
    pub(crate) fn failed(&mut self, now: Instant) {
        let Some(rule) = self.rule else { return };
        let state = self.state(now);
        // What started before says nothing new.
        if state == ServerHealth::Ejected {
            return;
        }
        self.failures += 1;
        if state == ServerHealth::Trial || self.failures >= rule.after {
            // A server that was well for the longest time has paid for what was before.
            if self.ejected_until.is_none() && now.duration_since(self.changed) > rule.most {
                self.ejections = 0;
            }
            self.ejected_until = Some(now + length(&rule, self.ejections));
            self.ejections += 1;
            self.failures = 0;
            self.changed = now;
        }
    }

    /// A check has ended.
    pub(crate) fn checked(&mut self, healthy: bool, now: Instant) {
        if healthy != self.down {
            self.contrary_checks = 0;
            return;
        }
        self.contrary_checks += 1;
        let enough = if healthy { self.rise } else { self.fall };
        if self.contrary_checks >= enough {
            self.contrary_checks = 0;
            self.down = !healthy;
            self.changed = now;
            if healthy {
                // What it failed before it went down is forgotten with it.
                (self.failures, self.ejections, self.ejected_until) = (0, 0, None);
            }
        }
    }
}

/// Twice as long each time, up to the most.
fn length(rule: &EjectionRule, ejections: u32) -> Duration {
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
            check: Some(HealthCheck::new("/".parse().unwrap())),
            ..PoolConfig::new(Vec::new())
        }
    }

    #[test]
    fn failures_in_a_row_put_a_server_aside_for_a_growing_time() {
        let start = Instant::now();
        let mut health = Health::new(&config(), start);
        health.failed(start);
        health.failed(start);
        health.succeeded(start);
        health.failed(start);
        health.failed(start);
        assert_eq!(health.state(start), ServerHealth::Up);
        health.failed(start);
        assert_eq!(health.state(start), ServerHealth::Ejected);
        // Requests that started before change nothing.
        (0..10).for_each(|_| health.failed(start));
        let trial = start + SECOND;
        assert_eq!(health.state(trial), ServerHealth::Trial);
        assert_eq!(health.since(trial), trial);
        health.failed(trial);
        assert_eq!(health.state(trial + SECOND), ServerHealth::Ejected);
        assert_eq!(health.state(trial + 2 * SECOND), ServerHealth::Trial);
        health.succeeded(trial + 2 * SECOND);
        assert_eq!(health.state(trial + 2 * SECOND), ServerHealth::Up);
    }

    #[test]
    fn the_time_grows_to_the_most_and_falls_back_after_a_good_time() {
        let mut now = Instant::now();
        let mut health = Health::new(&config(), now);
        let mut aside = |now: Instant| {
            (0..3).for_each(|_| health.failed(now));
            let ejected_until = health.ejected_until.unwrap();
            health.succeeded(ejected_until);
            ejected_until
        };
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            let ejected_until = aside(now);
            assert_eq!(ejected_until - now, seconds * SECOND);
            now = ejected_until;
        }
        assert_eq!(aside(now + 61 * SECOND) - now, 62 * SECOND);
    }

    #[test]
    fn checks_take_out_and_bring_back_by_counts_in_a_row() {
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
        fn nobody_is_aside_for_longer_than_the_most(
            events in prop::collection::vec((any::<bool>(), 0u64..100_000), 1..200),
        ) {
            let mut now = Instant::now();
            let mut health = Health::new(&config(), now);
            for (healthy, wait) in events {
                now += Duration::from_millis(wait);
                if healthy { health.succeeded(now) } else { health.failed(now) }
                let most = config().aside.unwrap().most;
                prop_assert_ne!(health.state(now + most), ServerHealth::Ejected);
                if healthy {
                    prop_assert_eq!(health.state(now), ServerHealth::Up);
                }
            }
        }
    }
}
