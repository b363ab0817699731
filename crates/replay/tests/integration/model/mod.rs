//! A model of the shared register, checked over all interleavings: nodes, an attacker with copies
//! of a flight, late or lost messages, and a store that is emptied, restarted, failed over, set to
//! another time or configured to evict.
//!
//! The decisions are made by the crate's own code ([`firstflight_replay::SharedGate`],
//! `check_claims`, `Continuity`); the model is the environment. One flight is enough, because
//! flights share no record. The attacker delivers copies to any node at any time, even before the
//! original, and any number of times. The model counts how often the flight's request is executed:
//! as early data on any connection, or on the client's own connection after its early data was
//! refused. Time advances in ticks of 4 s. Freshness and clock margin are one tick each, so a
//! record ends 4.75 ticks after the flight's exact time, and a recording window lasts 6.75 or 7.75.
//! Within a tick, all orders of all steps are tried.
//!
//! *Executed at most once* has to hold in every reachable state. `omitted_rules.rs` shows that the
//! model can fail: it leaves out the rules one by one, and each time the explorer has to find a
//! flight that is executed twice.
//!
//! There are four exceptions, in which one execution is *excused*. For each, a test in
//! `omitted_rules.rs` shows that it occurs:
//!
//! - A copy was executed, and the original arrives, or can be recorded, only after the record has
//!   ended.
//! - A copy was executed, the store lost its record, and then the original is recorded as spent. A
//!   record in a young epoch says that no copy will be executed, not that none was.
//! - The original was recorded as spent long before it is fresh, and the store lost the record: the
//!   window that follows has passed by the time a copy is fresh.
//! - A copy was executed, and the original's node cannot reach the store until no node accepts a
//!   copy. A server that then executed the request ([`setting::UnrecordedRequest::Runs`]) would
//!   need this exception. `firstflight serve` responds with 425 instead
//!   ([`setting::UnrecordedRequest::TooEarly`]) and does not.
//!
//! A further exception is not in the model: another zone, which has its own register.
//!
//! There are three assumptions, all about events between two heartbeats. A store's clock that is
//! set back was ahead during at least one heartbeat of each connected node, and the change is
//! noticed by the next one before the next claim. A store that is configured to evict does so after
//! the next heartbeat, with a node connected. And a process does not lose and regain mastership
//! between two heartbeats.
//!
//! In `make test` each run has two faults, in any order and at any moment (one where clocks
//! disagree across a failover, with three nodes, and in most runs with the honest client's
//! connection): 4.3 million states, about a minute. `FIRSTFLIGHT_MODEL=deep` adds one more fault
//! and has many times as many states. With `--nocapture`, the tests print the number of states, and
//! the traces found without a rule.

mod all_rules;
mod node;
mod omitted_rules;
mod setting;
mod step;
mod store;
mod world;

use setting::Setting;
use stateright::{Model, Property};
use world::{Original, Step, World};

const AT_MOST_ONCE: &str = "executed at most once";
const NO_NEEDLESS_425: &str = "425 only if a copy's claim succeeded";

impl Model for Setting {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let mut clocks = vec![Vec::new()];
        for node in &self.nodes {
            let with = |others: &Vec<i64>, clock: &i64| {
                others.iter().chain([clock]).copied().collect::<Vec<_>>()
            };
            clocks = clocks
                .iter()
                .flat_map(|others| node.iter().map(move |clock| with(others, clock)))
                .collect();
        }
        clocks.iter().map(|clocks| World::new(self, clocks)).collect()
    }

    fn actions(&self, state: &World, actions: &mut Vec<Step>) {
        state.steps(self, actions);
    }

    fn next_state(&self, last: &World, step: Step) -> Option<World> {
        let mut next = last.clone();
        next.apply(self, step);
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(AT_MOST_ONCE, |_, world: &World| world.runs <= 1 + world.excused),
            Property::sometimes("runs early", |_, world: &World| world.runs == 1),
        ];
        if self.honest {
            properties.push(Property::always(NO_NEEDLESS_425, |_, world: &World| {
                world.original != Original::TooEarly || world.copy.claimed
            }));
        }
        if self.outcomes {
            properties.extend(outcome_properties());
        }
        properties
    }
}

/// Each outcome for the honest client and for the attacker's copies occurs.
fn outcome_properties() -> Vec<Property<Setting>> {
    vec![
        Property::sometimes("an original runs early", |_, world: &World| {
            world.original == Original::RanEarly
        }),
        Property::sometimes("a copy loses", |_, world: &World| {
            world.original == Original::RanEarly && world.copy.lost
        }),
        Property::sometimes("an original that a copy overtook gets 425", |_, world: &World| {
            world.original == Original::TooEarly && world.copy.ran
        }),
        Property::sometimes("a copy is refused", |_, world: &World| world.copy.refused),
        Property::sometimes("a claim counts again", |_, world: &World| {
            world.counted_again && world.runs == 1
        }),
        Property::sometimes("a refused request runs once it is recorded", |_, world: &World| {
            world.original == Original::RanLate && world.copy.claimed
        }),
        // The second attack of RFC 8446 section 8: the client sends its request again because it
        // was refused where the copy was not.
        Property::sometimes(
            "a refused request waits while a copy was executed",
            |_, world: &World| world.original == Original::Waiting && world.copy.ran,
        ),
    ]
}
