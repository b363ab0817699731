//! The servers of a pool, without sockets: which one gets a request, and how results change them.

use std::time::Instant;

use http::StatusCode;
use serde::Serialize;

use crate::balance::{self, Candidate, Pick};
use crate::health::Health;
use crate::retry::Budget;
use crate::retry::{self, Failure, Repeatable, RetryDecision};
use crate::{Balance, PoolConfig, ServerHealth};

/// Counters of a server's requests since the start, by result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RequestTotals {
    /// Attempts.
    pub requests: u64,
    /// Responses by the first digit of their status, from 1 to 5.
    pub responses: [u64; 5],
    /// No connection.
    pub connect_failed: u64,
    /// Failures on a reused connection that had been closed.
    pub stale: u64,
    /// No response, or an invalid one.
    pub broken: u64,
    /// Refused by the server without processing (HTTP/2).
    pub refused: u64,
    /// Timeouts of the response head.
    pub timeouts: u64,
    /// Response bodies that ended early.
    pub bodies_broken: u64,
    /// Response bodies that stalled.
    pub bodies_stalled: u64,
    /// Requests that the client aborted, and responses that it did not read to the end.
    pub abandoned: u64,
}

/// The servers, by their index in [`PoolConfig::servers`].
pub(crate) struct ServerList {
    balance: Balance,
    /// Maximum number of requests to each server.
    max_requests: usize,
    max_attempts: u32,
    members: Vec<ServerState>,
    budget: Budget,
    next_server: usize,
    /// Retries, and those that the budget denied.
    pub(crate) retries: u64,
    pub(crate) retries_denied: u64,
}

/// One server.
pub(crate) struct ServerState {
    pub(crate) health: Health,
    pub(crate) in_flight: usize,
    pub(crate) totals: RequestTotals,
}

/// The attempts of one request so far.
#[derive(Default)]
pub(crate) struct AttemptHistory {
    /// Servers on which the request has failed.
    tried: Vec<usize>,
    /// Failed attempts, not counting stale connections.
    attempts: u32,
    /// Whether an attempt failed on a stale connection, or was refused by the only server.
    stale: bool,
}

impl AttemptHistory {
    /// Returns whether some servers do not get the request again.
    pub(crate) fn excludes_servers(&self) -> bool {
        !self.tried.is_empty()
    }
}

/// The health of a server before and after an event.
pub(crate) type Change = (ServerHealth, ServerHealth);

/// How a response's body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyEnd {
    /// The body is complete.
    Complete,
    /// The server ended it early.
    Broken,
    /// It stalled.
    Stalled,
    /// The client did not read it to the end.
    Abandoned,
}

impl ServerList {
    pub(crate) fn new(config: &PoolConfig, now: Instant) -> Self {
        let member = |_| ServerState {
            health: Health::new(config, now),
            in_flight: 0,
            totals: RequestTotals::default(),
        };
        Self {
            balance: config.balance,
            max_requests: config.requests,
            max_attempts: config.retry.tries,
            members: config.servers.iter().map(member).collect(),
            budget: Budget::new(&config.retry),
            next_server: 0,
            retries: 0,
            retries_denied: 0,
        }
    }

    pub(crate) fn members(&self) -> &[ServerState] {
        &self.members
    }

    /// Continues a server's counters.
    pub(crate) fn continue_totals(&mut self, index: usize, totals: RequestTotals) {
        self.members[index].totals = totals;
    }

    /// Counts a new request for the retry budget.
    pub(crate) fn count_request(&mut self) {
        self.budget.deposit();
    }

    /// Chooses a server and counts the request as in flight until [`ServerList::end`].
    pub(crate) fn pick(&mut self, history: &AttemptHistory, now: Instant) -> Pick {
        let candidates: Vec<_> = (self.members.iter().enumerate())
            .map(|(index, member)| Candidate {
                state: member.health.state(now),
                in_flight: member.in_flight,
                on_trial: member.health.is_on_trial(),
                full: member.in_flight >= self.max_requests,
                tried: history.tried.contains(&index),
            })
            .collect();
        let pick = balance::pick(self.balance, &candidates, self.next_server);
        if let Pick::Server(index) = pick {
            // Behind the chosen server: the successor of an unusable server gets no extra turns.
            self.next_server = index + 1;
            let member = &mut self.members[index];
            member.in_flight += 1;
            member.health.started(now);
            member.totals.requests += 1;
        }
        pick
    }

    /// Returns when the first ejection ends, which happens without an event.
    pub(crate) fn next_trial(&self, now: Instant) -> Option<Instant> {
        self.members.iter().filter_map(|member| member.health.next_trial(now)).min()
    }

    /// A request on a server, chosen at `picked`, has ended, with or without success.
    pub(crate) fn end(&mut self, index: usize, picked: Instant) {
        let member = &mut self.members[index];
        member.in_flight -= 1;
        member.health.ended(picked);
    }

    /// A response head was received.
    pub(crate) fn responded(&mut self, index: usize, status: StatusCode, now: Instant) -> Change {
        let class = usize::from(status.as_u16() / 100).clamp(1, 5) - 1;
        self.members[index].totals.responses[class] += 1;
        self.update_health(index, now, |health| health.succeeded(now))
    }

    /// A request has failed. Its server was chosen at `picked`.
    pub(crate) fn failed(
        &mut self,
        index: usize,
        picked: Instant,
        failure: Failure,
        now: Instant,
    ) -> Change {
        let totals = &mut self.members[index].totals;
        *match failure {
            Failure::Connect => &mut totals.connect_failed,
            Failure::Stale => &mut totals.stale,
            Failure::Broken => &mut totals.broken,
            Failure::Refused => &mut totals.refused,
            Failure::Timeout => &mut totals.timeouts,
            Failure::Client => &mut totals.abandoned,
        } += 1;
        self.update_health(index, now, |health| match failure {
            // Not evidence against the server.
            Failure::Stale | Failure::Refused | Failure::Client => {}
            Failure::Connect | Failure::Broken | Failure::Timeout => health.failed(picked, now),
        })
    }

    /// The body of a response has ended. Its server was chosen at `picked`.
    pub(crate) fn body_ended(
        &mut self,
        index: usize,
        picked: Instant,
        end: BodyEnd,
        now: Instant,
    ) -> Change {
        let totals = &mut self.members[index].totals;
        match end {
            BodyEnd::Complete => {}
            BodyEnd::Broken => totals.bodies_broken += 1,
            BodyEnd::Stalled => totals.bodies_stalled += 1,
            BodyEnd::Abandoned => totals.abandoned += 1,
        }
        self.update_health(index, now, |health| match end {
            BodyEnd::Complete | BodyEnd::Abandoned => {}
            BodyEnd::Broken | BodyEnd::Stalled => health.failed(picked, now),
        })
    }

    /// A health check has ended.
    pub(crate) fn checked(&mut self, index: usize, healthy: bool, now: Instant) -> Change {
        self.update_health(index, now, |health| health.checked(healthy, now))
    }

    /// Decides whether a request that failed on a server is sent again. `unsent`: see
    /// [`retry::decide`].
    pub(crate) fn decide_retry(
        &mut self,
        history: &mut AttemptHistory,
        index: usize,
        failure: Failure,
        unsent: bool,
        repeatable: Repeatable,
        now: Instant,
    ) -> RetryDecision {
        let was_stale = history.stale;
        if failure == Failure::Stale && !was_stale {
            history.stale = true;
        } else {
            history.tried.push(index);
            history.attempts += 1;
        }
        let attempts = history.attempts;
        let mut decision =
            retry::decide(failure, unsent, repeatable, attempts, self.max_attempts, was_stale);
        if decision == RetryDecision::Elsewhere && !self.has_untried_server(history, now) {
            decision = match failure {
                // It may concern only the connection, as a GOAWAY does (RFC 9113 section 6.8).
                Failure::Refused if !was_stale => {
                    history.stale = true;
                    history.tried.retain(|tried| *tried != index);
                    RetryDecision::Fresh
                }
                _ => RetryDecision::No,
            };
        }
        let is_free = failure == Failure::Stale && decision == RetryDecision::Fresh;
        if decision != RetryDecision::No && !is_free && !self.budget.withdraw() {
            self.retries_denied += 1;
            return RetryDecision::No;
        }
        self.retries += u64::from(decision != RetryDecision::No);
        decision
    }

    /// Returns whether a server that is not down has not been tried.
    fn has_untried_server(&self, history: &AttemptHistory, now: Instant) -> bool {
        let mut members = self.members.iter().enumerate();
        members.any(|(index, member)| {
            !history.tried.contains(&index) && member.health.state(now) != ServerHealth::Down
        })
    }

    fn update_health(
        &mut self,
        index: usize,
        now: Instant,
        event: impl FnOnce(&mut Health),
    ) -> Change {
        let health = &mut self.members[index].health;
        let before = health.state(now);
        event(health);
        (before, health.state(now))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::RetryRule;

    fn server_list(servers: usize, retry: RetryRule, now: Instant) -> ServerList {
        let servers = vec!["http://localhost:1".parse().unwrap(); servers];
        ServerList::new(&PoolConfig { retry, ..PoolConfig::new(servers) }, now)
    }

    /// Sends a request with its retries. Dead servers refuse the connection. Returns the number of
    /// attempts, and whether the last one succeeded.
    fn send(server_list: &mut ServerList, dead: &[bool], now: Instant) -> (u32, bool) {
        let mut history = AttemptHistory::default();
        server_list.count_request();
        for sent in 1.. {
            let Pick::Server(index) = server_list.pick(&history, now) else {
                return (sent - 1, false);
            };
            server_list.end(index, now);
            if !dead[index] {
                server_list.responded(index, StatusCode::OK, now);
                return (sent, true);
            }
            server_list.failed(index, now, Failure::Connect, now);
            let (failure, repeatable) = (Failure::Connect, Repeatable::Never);
            let decision =
                server_list.decide_retry(&mut history, index, failure, true, repeatable, now);
            if decision == RetryDecision::No {
                return (sent, false);
            }
        }
        unreachable!("a request has few tries")
    }

    proptest! {
        #[test]
        fn no_request_is_lost_while_one_of_two_servers_lives(
            events in prop::collection::vec((0usize..3, 0u64..2000), 1..300),
        ) {
            let mut now = Instant::now();
            let mut server_list = server_list(2, RetryRule { burst: 300, ..RetryRule::default() }, now);
            for (dead_server, wait) in events {
                now += Duration::from_millis(wait);
                let dead = [dead_server == 0, dead_server == 1];
                prop_assert!(send(&mut server_list, &dead, now).1, "{dead:?}");
            }
            prop_assert!(server_list.members().iter().all(|member| member.in_flight == 0));
        }

        #[test]
        fn retries_to_a_dead_pool_stay_within_the_budget(
            requests in 1u32..400,
            percent in 0u32..50,
            burst in 0u32..20,
        ) {
            let now = Instant::now();
            let mut server_list = server_list(3, RetryRule { tries: 3, percent, burst }, now);
            let sent: u32 = (0..requests).map(|_| send(&mut server_list, &[true; 3], now).0).sum();
            prop_assert!(sent <= requests + burst + requests * percent / 100);
        }
    }

    #[test]
    fn a_dead_server_is_retried_seldom() {
        let now = Instant::now();
        let mut server_list = server_list(2, RetryRule::default(), now);
        for second in 0..60 {
            (0..100).for_each(|_| {
                assert!(send(&mut server_list, &[true, false], now + Duration::from_secs(second)).1)
            });
        }
        // Three failures eject the server; trials follow after 1, 2, 4, 8, 16 and 32 s.
        assert!(
            server_list.members()[0].totals.requests <= 3 + 6,
            "{:?}",
            server_list.members()[0].totals
        );
    }

    #[test]
    fn a_stream_from_before_an_ejection_is_no_trial() {
        let start = Instant::now();
        let mut server_list = server_list(2, RetryRule::default(), start);
        let history = AttemptHistory::default();
        let Pick::Server(index) = server_list.pick(&history, start) else { panic!("no server") };
        for _ in 0..3 {
            server_list.failed(index, start, Failure::Connect, start);
        }
        // The stream from before the ejection continues.
        server_list.balance = Balance::RoundRobin;
        let trial = start + Duration::from_secs(1);
        for _ in 0..2 {
            let picked = [(); 4].map(|()| server_list.pick(&history, trial));
            let trials = picked.iter().filter(|pick| **pick == Pick::Server(index));
            assert_eq!(trials.count(), 1, "{picked:?}");
            server_list.body_ended(index, start, BodyEnd::Stalled, trial);
            assert_eq!(server_list.members[index].health.state(trial), ServerHealth::Trial);
            // The trial ends without a result, as when its client aborts it.
            server_list.end(index, trial);
        }
    }

    #[test]
    fn round_robin_gives_usable_servers_the_same_share() {
        let now = Instant::now();
        let mut server_list = server_list(3, RetryRule::default(), now);
        server_list.balance = Balance::RoundRobin;
        for _ in 0..3 {
            server_list.failed(0, now, Failure::Connect, now);
        }
        for _ in 0..100 {
            send(&mut server_list, &[true, false, false], now);
        }
        let requests = |index: usize| server_list.members()[index].totals.requests;
        assert_eq!([0, 1, 2].map(requests), [0, 50, 50]);
    }

    #[test]
    fn a_retry_without_another_server_is_not_counted_and_costs_no_budget() {
        let now = Instant::now();
        let rule = RetryRule { tries: 3, percent: 0, burst: 1 };
        let mut server_list = server_list(2, rule, now);
        server_list.checked(0, false, now);
        assert_eq!(server_list.members()[0].health.state(now), ServerHealth::Down);
        assert_eq!(send(&mut server_list, &[true, true], now), (1, false));
        assert_eq!((server_list.retries, server_list.retries_denied), (0, 0));
        server_list.checked(0, true, now);
        assert_eq!(send(&mut server_list, &[true, true], now), (2, false));
        assert_eq!((server_list.retries, server_list.retries_denied), (1, 0));
        assert_eq!(send(&mut server_list, &[true, true], now), (1, false));
        assert_eq!((server_list.retries, server_list.retries_denied), (1, 1));
    }

    #[test]
    fn rfc9113_8_7_the_only_server_gets_a_refused_request_once_more() {
        let now = Instant::now();
        for (failure, first) in [
            (Failure::Refused, RetryDecision::Fresh),
            (Failure::Broken, RetryDecision::No),
            (Failure::Connect, RetryDecision::No),
        ] {
            let mut server_list = server_list(1, RetryRule::default(), now);
            let mut history = AttemptHistory::default();
            let mut again = || {
                let Pick::Server(0) = server_list.pick(&history, now) else { panic!("no server") };
                let repeatable = Repeatable::Always;
                server_list.decide_retry(&mut history, 0, failure, false, repeatable, now)
            };
            assert_eq!(again(), first, "{failure:?}");
            if first == RetryDecision::Fresh {
                assert_eq!(again(), RetryDecision::No, "{failure:?}");
            }
            assert_eq!(server_list.retries, u64::from(first != RetryDecision::No), "{failure:?}");
        }
    }

    #[test]
    fn requests_above_the_limit_of_all_servers_wait() {
        let now = Instant::now();
        let servers = vec!["http://localhost:1".parse().unwrap(); 2];
        let config = PoolConfig { requests: 1, ..PoolConfig::new(servers) };
        let mut server_list = ServerList::new(&config, now);
        let history = AttemptHistory::default();
        let Pick::Server(first) = server_list.pick(&history, now) else { panic!("no server") };
        assert!(matches!(server_list.pick(&history, now), Pick::Server(other) if other != first));
        assert_eq!(server_list.pick(&history, now), Pick::Full);
        server_list.end(first, now);
        assert_eq!(server_list.pick(&history, now), Pick::Server(first));
    }
}
