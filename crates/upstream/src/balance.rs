//! Chooses the server for a request.

use crate::{Balance, ServerHealth};

/// The state of a server that the choice depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) state: ServerHealth,
    /// Requests in flight on the server.
    pub(crate) in_flight: usize,
    /// Whether a trial is running.
    pub(crate) on_trial: bool,
    /// Whether it has the maximum number of requests.
    pub(crate) full: bool,
    /// Whether this request has failed on it.
    pub(crate) tried: bool,
}

/// The choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pick {
    /// The index of the server.
    Server(usize),
    /// All eligible servers are full.
    Full,
    /// There is no eligible server.
    NoServer,
}

/// Chooses a server. `next_server` is where counting starts, so that equal servers take turns.
///
/// Ejected servers are chosen only if there are no others; servers that are down are never chosen.
pub(crate) fn pick(balance: Balance, candidates: &[Candidate], next_server: usize) -> Pick {
    let healthy = |candidate: &Candidate| match candidate.state {
        ServerHealth::Up => true,
        ServerHealth::Trial => !candidate.on_trial,
        ServerHealth::Ejected | ServerHealth::Down => false,
    };
    let not_down = |candidate: &Candidate| candidate.state != ServerHealth::Down;
    match pick_among(balance, candidates, next_server, healthy) {
        Pick::NoServer => pick_among(balance, candidates, next_server, not_down),
        pick => pick,
    }
}

fn pick_among(
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
        return Pick::NoServer;
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

    const UP: Candidate = Candidate {
        state: ServerHealth::Up,
        in_flight: 0,
        on_trial: false,
        full: false,
        tried: false,
    };

    fn state(state: ServerHealth) -> Candidate {
        Candidate { state, ..UP }
    }

    #[test]
    fn least_requests_and_round_robin() {
        let busy = |in_flight| Candidate { in_flight, ..UP };
        let servers = [busy(2), busy(1), busy(1), busy(3)];
        let picks =
            |balance| [0, 1, 2, 3, 4].map(|next_server| pick(balance, &servers, next_server));
        assert_eq!(picks(Balance::LeastRequests), [1, 1, 2, 1, 1].map(Pick::Server));
        assert_eq!(picks(Balance::RoundRobin), [0, 1, 2, 3, 0].map(Pick::Server));
    }

    #[test]
    fn unhealthy_servers_are_chosen_only_if_there_is_no_other() {
        let ejected = state(ServerHealth::Ejected);
        let down = state(ServerHealth::Down);
        let full = Candidate { full: true, ..UP };
        let tried = Candidate { tried: true, ..UP };
        let trial = state(ServerHealth::Trial);
        let busy_trial = Candidate { on_trial: true, ..trial };
        let old_requests = Candidate { in_flight: 1, ..trial };
        for (servers, expected) in [
            (&[ejected, UP][..], Pick::Server(1)),
            (&[ejected, full], Pick::Full),
            (&[ejected, ejected], Pick::Server(0)),
            (&[down, ejected], Pick::Server(1)),
            (&[down, down], Pick::NoServer),
            (&[tried, ejected], Pick::Server(1)),
            (&[tried, down], Pick::NoServer),
            (&[trial, full], Pick::Server(0)),
            (&[busy_trial, UP], Pick::Server(1)),
            (&[old_requests, full], Pick::Server(0)),
            (&[], Pick::NoServer),
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
        (state, 0usize..4, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
            |(state, in_flight, on_trial, full, tried)| Candidate {
                state,
                in_flight,
                on_trial,
                full,
                tried,
            },
        )
    }

    proptest! {
        #[test]
        fn down_full_and_tried_servers_are_never_chosen(
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
                Pick::NoServer => prop_assert!(!servers.iter().any(usable)),
            }
        }
    }
}
