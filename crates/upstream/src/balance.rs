//! Which server a request goes to.

use crate::{Balance, ServerHealth};

/// A server, as far as the choice goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) state: ServerHealth,
    /// Requests that are running there.
    pub(crate) in_flight: usize,
    /// Whether it may have no more.
    pub(crate) full: bool,
    /// Whether this request has failed there.
    pub(crate) tried: bool,
}

/// The choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pick {
    /// This one.
    Server(usize),
    /// None has room now.
    Full,
    /// There is none.
    Nobody,
}

/// Chooses. `next_server`: where counting starts, so that equals take turns.
///
/// Those that are set aside are chosen when there are no others, and never those that are down.
pub(crate) fn pick(balance: Balance, candidates: &[Candidate], next_server: usize) -> Pick {
    let healthy = |candidate: &Candidate| match candidate.state {
        ServerHealth::Up => true,
        ServerHealth::Trial => candidate.in_flight == 0,
        ServerHealth::Ejected | ServerHealth::Down => false,
    };
    let there = |candidate: &Candidate| candidate.state != ServerHealth::Down;
    match among(balance, candidates, next_server, healthy) {
        Pick::Nobody => among(balance, candidates, next_server, there),
        pick => pick,
    }
}

fn among(
    balance: Balance,
    candidates: &[Candidate],
    next_server: usize,
    eligible: impl Fn(&Candidate) -> bool,
) -> Pick {
    let count = candidates.len();
    let mut eligible = (0..count)
        .map(|step| (next_server % count + step) % count)
        .filter(|index| !candidates[*index].tried && eligible(&candidates[*index]))
        .peekable();
    if eligible.peek().is_none() {
        return Pick::Nobody;
    }
    let mut free = eligible.filter(|index| !candidates[*index].full);
    let chosen = match balance {
        Balance::RoundRobin => free.next(),
        // The first of several with the fewest.
        Balance::LeastRequests => free.min_by_key(|index| candidates[*index].in_flight),
    };
    chosen.map_or(Pick::Full, Pick::Server)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UP: Candidate =
        Candidate { state: ServerHealth::Up, in_flight: 0, full: false, tried: false };

    fn state(state: ServerHealth) -> Candidate {
        Candidate { state, ..UP }
    }

    #[test]
    fn the_fewest_requests_or_in_turn() {
        let busy = |in_flight| Candidate { in_flight, ..UP };
        let servers = [busy(2), busy(1), busy(1), busy(3)];
        let picks =
            |balance| [0, 1, 2, 3, 4].map(|next_server| pick(balance, &servers, next_server));
        assert_eq!(picks(Balance::LeastRequests), [1, 1, 2, 1, 1].map(Pick::Server));
        assert_eq!(picks(Balance::RoundRobin), [0, 1, 2, 3, 0].map(Pick::Server));
    }

    #[test]
    fn those_set_aside_only_where_there_is_no_other() {
        let aside = state(ServerHealth::Ejected);
        let down = state(ServerHealth::Down);
        let full = Candidate { full: true, ..UP };
        let tried = Candidate { tried: true, ..UP };
        let trial = state(ServerHealth::Trial);
        let busy_trial = Candidate { in_flight: 1, ..trial };
        for (servers, expected) in [
            (&[aside, UP][..], Pick::Server(1)),
            (&[aside, full], Pick::Full),
            (&[aside, aside], Pick::Server(0)),
            (&[down, aside], Pick::Server(1)),
            (&[down, down], Pick::Nobody),
            (&[tried, aside], Pick::Server(1)),
            (&[tried, down], Pick::Nobody),
            (&[trial, full], Pick::Server(0)),
            (&[busy_trial, UP], Pick::Server(1)),
            (&[], Pick::Nobody),
        ] {
            assert_eq!(pick(Balance::LeastRequests, servers, 0), expected, "{servers:?}");
        }
    }

    fn candidate() -> impl Strategy<Value = Candidate> {
        let state = prop::sample::select(vec![
            ServerHealth::Up,
            ServerHealth::Trial,
            ServerHealth::Ejected,
            ServerHealth::Down,
        ]);
        (state, 0usize..4, any::<bool>(), any::<bool>())
            .prop_map(|(state, in_flight, full, tried)| Candidate { state, in_flight, full, tried })
    }

    proptest! {
        #[test]
        fn nobody_who_is_down_full_or_tried_is_chosen_and_all_others_serve(
            servers in prop::collection::vec(candidate(), 0..6),
            next_server: usize,
            least: bool,
        ) {
            let balance = if least { Balance::LeastRequests } else { Balance::RoundRobin };
            let usable = |c: &Candidate| c.state != ServerHealth::Down && !c.tried;
            match pick(balance, &servers, next_server) {
                Pick::Server(index) => {
                    let chosen = servers[index];
                    prop_assert!(usable(&chosen) && !chosen.full);
                    let up = |c: &Candidate| usable(c) && c.state == ServerHealth::Up;
                    prop_assert!(chosen.state != ServerHealth::Ejected || !servers.iter().any(up));
                }
                Pick::Full => prop_assert!(servers.iter().any(|c| usable(c) && c.full)),
                Pick::Nobody => prop_assert!(!servers.iter().any(usable)),
            }
        }
    }
}
