//! What is thought of one server: by questions to it, and by how its requests went.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::{AsideRule, PoolConfig};

/// What is thought of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerHealth {
    /// It gets requests.
    Up,
    /// It was set aside, and the next request, one at a time, shows whether it is well again.
    Trial,
    /// It failed several requests, and is left alone unless there is no other.
    Aside,
    /// It fails its health checks and gets nothing.
    Down,
}

/// One server's health.
#[derive(Clone, Debug)]
pub(crate) struct Health {
    rule: Option<AsideRule>,
    rise: u32,
    fall: u32,
    /// Whether checks have taken it out.
    down: bool,
    /// Checks in a row that speak against that.
    against: u32,
    /// Requests in a row that failed.
    failures: u32,
    /// How often in a row it was set aside, and until when.
    times: u32,
    until: Option<Instant>,
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
            against: 0,
            failures: 0,
            times: 0,
            until: None,
            changed: now,
        }
    }

    pub(crate) fn standing(&self, now: Instant) -> ServerHealth {
        match self.until {
            _ if self.down => ServerHealth::Down,
            Some(until) if now < until => ServerHealth::Aside,
            Some(_) => ServerHealth::Trial,
            None => ServerHealth::Up,
        }
    }

    /// When its standing last changed.
    pub(crate) fn since(&self, now: Instant) -> Instant {
        match (self.standing(now), self.until) {
            (ServerHealth::Trial, Some(until)) => until,
            _ => self.changed,
        }
    }

    /// It has answered a request.
    pub(crate) fn succeeded(&mut self, now: Instant) {
        self.failures = 0;
        if self.until.take().is_some() {
            self.changed = now;
        }
    }

    /// A request failed by its fault.
    pub(crate) fn failed(&mut self, now: Instant) {
        let Some(rule) = self.rule else { return };
        let standing = self.standing(now);
        // What started before says nothing new.
        if standing == ServerHealth::Aside {
            return;
        }
        self.failures += 1;
        if standing == ServerHealth::Trial || self.failures >= rule.after {
            // A server that was well for the longest time has paid for what was before.
            if self.until.is_none() && now.duration_since(self.changed) > rule.most {
                self.times = 0;
            }
            self.until = Some(now + length(&rule, self.times));
            self.times += 1;
            self.failures = 0;
            self.changed = now;
        }
    }

    /// A check has ended.
    pub(crate) fn checked(&mut self, well: bool, now: Instant) {
        if well != self.down {
            self.against = 0;
            return;
        }
        self.against += 1;
        let enough = if well { self.rise } else { self.fall };
        if self.against >= enough {
            self.against = 0;
            self.down = !well;
            self.changed = now;
            if well {
                // What it failed before it went down is forgotten with it.
                (self.failures, self.times, self.until) = (0, 0, None);
            }
        }
    }
}

/// Twice as long each time, up to the most.
fn length(rule: &AsideRule, times: u32) -> Duration {
    rule.first.saturating_mul(1 << times.min(20)).min(rule.most)
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
        assert_eq!(health.standing(start), ServerHealth::Up);
        health.failed(start);
        assert_eq!(health.standing(start), ServerHealth::Aside);
        // Requests that started before change nothing.
        (0..10).for_each(|_| health.failed(start));
        let trial = start + SECOND;
        assert_eq!(health.standing(trial), ServerHealth::Trial);
        assert_eq!(health.since(trial), trial);
        health.failed(trial);
        assert_eq!(health.standing(trial + SECOND), ServerHealth::Aside);
        assert_eq!(health.standing(trial + 2 * SECOND), ServerHealth::Trial);
        health.succeeded(trial + 2 * SECOND);
        assert_eq!(health.standing(trial + 2 * SECOND), ServerHealth::Up);
    }

    #[test]
    fn the_time_grows_to_the_most_and_falls_back_after_a_good_time() {
        let mut now = Instant::now();
        let mut health = Health::new(&config(), now);
        let mut aside = |now: Instant| {
            (0..3).for_each(|_| health.failed(now));
            let until = health.until.unwrap();
            health.succeeded(until);
            until
        };
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            let until = aside(now);
            assert_eq!(until - now, seconds * SECOND);
            now = until;
        }
        assert_eq!(aside(now + 61 * SECOND) - now, 62 * SECOND);
    }

    #[test]
    fn checks_take_out_and_bring_back_by_counts_in_a_row() {
        let now = Instant::now();
        let mut health = Health::new(&config(), now);
        for (well, standing) in [
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
            health.checked(well, now);
            assert_eq!(health.standing(now), standing);
        }
    }

    proptest! {
        #[test]
        fn nobody_is_aside_for_longer_than_the_most(
            events in prop::collection::vec((any::<bool>(), 0u64..100_000), 1..200),
        ) {
            let mut now = Instant::now();
            let mut health = Health::new(&config(), now);
            for (well, wait) in events {
                now += Duration::from_millis(wait);
                if well { health.succeeded(now) } else { health.failed(now) }
                let most = config().aside.unwrap().most;
                prop_assert_ne!(health.standing(now + most), ServerHealth::Aside);
                if well {
                    prop_assert_eq!(health.standing(now), ServerHealth::Up);
                }
            }
        }
    }
}
