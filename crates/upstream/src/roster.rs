//! A pool's servers, as far as decisions go: who gets a request, and what is made of how it went.

use std::time::Instant;

use http::StatusCode;

use crate::balance::{self, Candidate, Pick};
use crate::budget::Budget;
use crate::health::Health;
use crate::retry::{self, Failure, RetryTerms};
use crate::status::Totals;
use crate::{Balance, PoolConfig, ServerHealth};

/// The servers, by their place in [`PoolConfig::servers`].
pub(crate) struct ServerList {
    balance: Balance,
    /// Requests at a time to each.
    room: usize,
    tries: u32,
    members: Vec<Member>,
    budget: Budget,
    turn: usize,
    /// Requests that were sent again, and those that the budget did not allow to be.
    pub(crate) retries: u64,
    pub(crate) retries_denied: u64,
}

/// One server.
pub(crate) struct Member {
    pub(crate) health: Health,
    pub(crate) in_flight: usize,
    pub(crate) totals: Totals,
}

/// How far one request has come.
#[derive(Default)]
pub(crate) struct RequestProgress {
    /// Where it has failed.
    tried: Vec<usize>,
    /// How often it failed, stale connections apart.
    tries: u32,
    /// Whether it has met a stale connection.
    stale: bool,
}

/// A server's standing before and after an event.
pub(crate) type Change = (ServerHealth, ServerHealth);

/// How a response's body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyEnd {
    /// It is there.
    Whole,
    /// The server broke it off.
    Broken,
    /// It stood still.
    Stalled,
    /// The client left.
    Abandoned,
}

impl ServerList {
    pub(crate) fn new(config: &PoolConfig, now: Instant) -> Self {
        let member = |_| Member {
            health: Health::new(config, now),
            in_flight: 0,
            totals: Totals::default(),
        };
        Self {
            balance: config.balance,
            room: config.requests,
            tries: config.retry.tries,
            members: config.servers.iter().map(member).collect(),
            budget: Budget::new(&config.retry),
            turn: 0,
            retries: 0,
            retries_denied: 0,
        }
    }

    pub(crate) fn members(&self) -> &[Member] {
        &self.members
    }

    /// A new request has come.
    pub(crate) fn begin(&mut self) {
        self.budget.deposit();
    }

    /// Chooses a server, on which the request runs from now on, until [`ServerList::end`].
    pub(crate) fn pick(&mut self, course: &RequestProgress, now: Instant) -> Pick {
        let candidates: Vec<_> = (self.members.iter().enumerate())
            .map(|(at, member)| Candidate {
                standing: member.health.standing(now),
                in_flight: member.in_flight,
                full: member.in_flight >= self.room,
                tried: course.tried.contains(&at),
            })
            .collect();
        let pick = balance::pick(self.balance, &candidates, self.turn);
        if let Pick::Server(at) = pick {
            self.turn = self.turn.wrapping_add(1);
            self.members[at].in_flight += 1;
            self.members[at].totals.requests += 1;
        }
        pick
    }

    /// A request on a server is over, one way or another.
    pub(crate) fn end(&mut self, at: usize) {
        self.members[at].in_flight -= 1;
    }

    /// The head of a response has come.
    pub(crate) fn answered(&mut self, at: usize, status: StatusCode, now: Instant) -> Change {
        let class = usize::from(status.as_u16() / 100).clamp(1, 5) - 1;
        self.members[at].totals.responses[class] += 1;
        self.judge(at, now, |health| health.succeeded(now))
    }

    /// A request has failed.
    pub(crate) fn failed(&mut self, at: usize, failure: Failure, now: Instant) -> Change {
        let totals = &mut self.members[at].totals;
        *match failure {
            Failure::Connect => &mut totals.connect_failed,
            Failure::Stale => &mut totals.stale,
            Failure::Broken => &mut totals.broken,
            Failure::Refused => &mut totals.refused,
            Failure::Timeout => &mut totals.timeouts,
            Failure::Client => &mut totals.abandoned,
        } += 1;
        self.judge(at, now, |health| match failure {
            // None of them says that the server is ill.
            Failure::Stale | Failure::Refused | Failure::Client => {}
            Failure::Connect | Failure::Broken | Failure::Timeout => health.failed(now),
        })
    }

    /// A response's body has ended.
    pub(crate) fn body_ended(&mut self, at: usize, ending: BodyEnd, now: Instant) -> Change {
        let totals = &mut self.members[at].totals;
        match ending {
            BodyEnd::Whole => {}
            BodyEnd::Broken => totals.bodies_broken += 1,
            BodyEnd::Stalled => totals.bodies_stalled += 1,
            BodyEnd::Abandoned => totals.abandoned += 1,
        }
        self.judge(at, now, |health| match ending {
            BodyEnd::Whole | BodyEnd::Abandoned => {}
            BodyEnd::Broken | BodyEnd::Stalled => health.failed(now),
        })
    }

    /// A health check has ended.
    pub(crate) fn checked(&mut self, at: usize, well: bool, now: Instant) -> Change {
        self.judge(at, now, |health| health.checked(well, now))
    }

    /// Whether a request that has failed at a server is sent again. `unsent`, `repeatable`: see
    /// [`retry::again`].
    pub(crate) fn again(
        &mut self,
        course: &mut RequestProgress,
        at: usize,
        failure: Failure,
        unsent: bool,
        repeatable: bool,
    ) -> RetryTerms {
        let met_before = course.stale;
        if failure == Failure::Stale && !met_before {
            course.stale = true;
        } else {
            course.tried.push(at);
            course.tries += 1;
        }
        let tries = course.tries;
        let again = retry::again(failure, unsent, repeatable, tries, self.tries, met_before);
        if again == RetryTerms::Elsewhere && !self.budget.withdraw() {
            self.retries_denied += 1;
            return RetryTerms::No;
        }
        self.retries += u64::from(again != RetryTerms::No);
        again
    }

    fn judge(&mut self, at: usize, now: Instant, event: impl FnOnce(&mut Health)) -> Change {
        let health = &mut self.members[at].health;
        let before = health.standing(now);
        event(health);
        (before, health.standing(now))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::RetryRule;

    fn roster(servers: usize, retry: RetryRule, now: Instant) -> ServerList {
        let servers = vec!["http://localhost:1".parse().unwrap(); servers];
        ServerList::new(&PoolConfig { retry, ..PoolConfig::new(servers) }, now)
    }

    /// Sends a request to the end. Who is dead refuses the connection. How often it was sent, and
    /// whether it was answered.
    fn send(roster: &mut ServerList, dead: &[bool], now: Instant) -> (u32, bool) {
        let mut course = RequestProgress::default();
        roster.begin();
        for sent in 1.. {
            let Pick::Server(at) = roster.pick(&course, now) else { return (sent - 1, false) };
            roster.end(at);
            if !dead[at] {
                roster.answered(at, StatusCode::OK, now);
                return (sent, true);
            }
            roster.failed(at, Failure::Connect, now);
            if roster.again(&mut course, at, Failure::Connect, true, false) == RetryTerms::No {
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
            let mut roster = roster(2, RetryRule { burst: 300, ..RetryRule::default() }, now);
            for (who, wait) in events {
                now += Duration::from_millis(wait);
                let dead = [who == 0, who == 1];
                prop_assert!(send(&mut roster, &dead, now).1, "{dead:?}");
            }
            prop_assert!(roster.members().iter().all(|member| member.in_flight == 0));
        }

        #[test]
        fn a_dead_pool_is_sent_its_share_more_and_no_multiple(
            requests in 1u32..400,
            percent in 0u32..50,
            burst in 0u32..20,
        ) {
            let now = Instant::now();
            let mut roster = roster(3, RetryRule { tries: 3, percent, burst }, now);
            let sent: u32 = (0..requests).map(|_| send(&mut roster, &[true; 3], now).0).sum();
            prop_assert!(sent <= requests + burst + requests * percent / 100);
        }
    }

    #[test]
    fn a_dead_server_is_asked_seldom() {
        let now = Instant::now();
        let mut roster = roster(2, RetryRule::default(), now);
        for second in 0..60 {
            (0..100).for_each(|_| {
                assert!(send(&mut roster, &[true, false], now + Duration::from_secs(second)).1)
            });
        }
        // Three to notice, then after 1, 2, 4, 8, 16 and 32 s once each: a trial is as long as it
        // takes, so a second more or less.
        assert!(roster.members()[0].totals.requests <= 3 + 6, "{:?}", roster.members()[0].totals);
    }

    #[test]
    fn requests_above_the_room_wait() {
        let now = Instant::now();
        let servers = vec!["http://localhost:1".parse().unwrap(); 2];
        let config = PoolConfig { requests: 1, ..PoolConfig::new(servers) };
        let mut roster = ServerList::new(&config, now);
        let course = RequestProgress::default();
        let Pick::Server(first) = roster.pick(&course, now) else { panic!("no server") };
        assert!(matches!(roster.pick(&course, now), Pick::Server(other) if other != first));
        assert_eq!(roster.pick(&course, now), Pick::Full);
        roster.end(first);
        assert_eq!(roster.pick(&course, now), Pick::Server(first));
    }
}
