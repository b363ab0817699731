//! A model of the shared register, checked over all interleavings: nodes, an attacker with copies
//! of a flight, a store that is emptied, restarted, failed over, set to another time or told to
//! evict, and messages that come late or never.
//!
//! What decides here is the crate's own code ([`firstflight_replay::SharedGate`], `check_claims`,
//! `Continuity`); the model is what is around it. One flight is enough, since flights share no
//! record. The attacker delivers copies to any node at any time, the original too, and as often as
//! he likes. What is counted is how often the flight's request is executed: as early data, on any
//! connection, or on the client's own connection after its early data was refused. Time goes in
//! ticks of 4 s, of which freshness and clock margin are one each; so a record ends 4.75 of them
//! after the flight's exact time, and a recording window lasts 6.75 or 7.75. Within a tick, all
//! orders of all steps are tried.
//!
//! *Executed at most once* has to hold in every state that can be reached. That the model can fail
//! is shown by leaving out the rules one by one (`broken.rs`): for each, the explorer has to find
//! a flight that is executed twice.
//!
//! Four exceptions are left, in which one execution is *excused*. For each a test shows that it is
//! real (`broken.rs`):
//!
//! - A copy ran, and the original comes, or can be recorded, only after the record has ended.
//! - A copy ran, the store lost its record, and the original is recorded as spent after that. A
//!   record in a young epoch says that no copy will run, not that none did.
//! - The original was recorded as spent long before it is fresh, and the store lost the record: the
//!   window that follows is over by the time that a copy is fresh.
//! - A copy ran, and the original's node cannot reach the store until no node accepts a copy. A
//!   server that then executed the request ([`setting::AtClose::Runs`]) would need this exception.
//!   `firstflight serve` responds with 425 instead ([`setting::AtClose::TooEarly`]), without it.
//!
//! Another one is not in the model: another zone, which has another register.
//!
//! Three assumptions, all about what happens between two heartbeats: a store's clock that is set
//! back was ahead for at least one of each connected node, and is seen by the next before the next
//! claim; a store whose policy is set to evict does so after the next, with a node connected; and a
//! process does not lose the mastership and get it back within one.
//!
//! In `make test` two things go wrong in each run, in any order, at any moment (one where clocks
//! disagree across a failover, with three nodes, and nearly everywhere where the honest client's
//! connection comes too): 4.3 million states, about a minute. `FIRSTFLIGHT_MODEL=deep` lets one
//! more go wrong: many times as many. The states of either are printed with `--nocapture`, and so
//! is what the explorer finds without a rule.

mod broken;
mod node;
mod setting;
mod step;
mod store;
mod whole;
mod world;

use setting::Setting;
use stateright::{Model, Property};
use world::{Original, Step, World};

const AT_MOST_ONCE: &str = "executed at most once";
const NO_NEEDLESS_425: &str = "425 only if a copy's claim came out";

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
        next.take(self, step);
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
            properties.extend(of_honest_clients());
        }
        properties
    }
}

/// What the honest client sees, and what the attacker's copies come to.
fn of_honest_clients() -> Vec<Property<Setting>> {
    vec![
        Property::sometimes("an original runs early", |_, world: &World| {
            world.original == Original::RanEarly
        }),
        Property::sometimes("a copy loses", |_, world: &World| {
            world.original == Original::RanEarly && world.copy.lost
        }),
        Property::sometimes("an original that a copy overtook is told so", |_, world: &World| {
            world.original == Original::TooEarly && world.copy.ran
        }),
        Property::sometimes("a copy is refused", |_, world: &World| world.copy.refused),
        Property::sometimes("a claim counts again", |_, world: &World| {
            world.counted_again && world.runs == 1
        }),
        Property::sometimes("a refused request runs once it is recorded", |_, world: &World| {
            world.original == Original::RanLate && world.copy.claimed
        }),
        // The second of RFC 8446 section 8's attacks: the client sends its request again by
        // itself, because it was refused where the copy was not.
        Property::sometimes(
            "a refused request waits beside a copy that ran",
            |_, world: &World| world.original == Original::Waiting && world.copy.ran,
        ),
    ]
}
