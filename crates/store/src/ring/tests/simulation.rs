//! Nodes with clocks that are off, on a store that loses replies, fails and loses data.

use std::sync::Arc;

use firstflight_tickets::{Opened, TicketKeys};
use proptest::prelude::*;

use super::memory::{Dice, Memory};
use super::*;

const LIFETIME: u64 = 90;

/// As far as a clock may be from the store's.
const CLOCK: u64 = 5;

#[derive(Debug, Clone)]
enum Event {
    /// An operator's rotation.
    Rotate(usize),
    /// A node starts again.
    Restart(usize),
    /// The store is away for some seconds.
    Away(u64),
    /// The store comes back empty.
    Flush,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => (0..NODES).prop_map(Event::Rotate),
        2 => (0..NODES).prop_map(Event::Restart),
        2 => (1u64..200).prop_map(Event::Away),
        1 => Just(Event::Flush),
    ]
}

struct Node {
    memory: Memory,
    ring: Arc<SharedRing<Memory>>,
    /// `None`: no ring has come from the store yet.
    keys: Option<TicketKeys>,
    clock: i64,
    failures: u32,
}

struct World {
    memory: Memory,
    file: TempDir,
    nodes: Vec<Node>,
    now: u64,
    dice: Dice,
}

/// Two calls of a node in a row may fail, the third does not; and one second more, because nodes
/// call in any order.
const TEST_TIMEOUT: u64 = 5;

/// Ticket, when it was sealed by the sealer's clock, and at which true second.
type Issued = (Vec<u8>, UnixTime, u64);

impl World {
    fn new(seed: u64, clocks: &[i64]) -> Self {
        let memory = Memory::new();
        memory.contents().dice = Dice(seed);
        let file = keys(ONE);
        let mut world =
            Self { memory, file, nodes: Vec::new(), now: START.0 + seed % 60, dice: Dice(!seed) };
        world.nodes = clocks.iter().map(|clock| world.node(*clock)).collect();
        world
    }

    fn node(&self, clock: i64) -> Node {
        let ring = ring_on(&self.memory, &self.file);
        Node { memory: ring.store().clone(), ring: Arc::new(ring), keys: None, clock, failures: 0 }
    }

    /// One true second: every node refreshes once, their calls in any order. A node's call may
    /// fail, with or without effect, but not in three seconds on end.
    async fn second(&mut self) {
        self.now += 1;
        self.memory.contents().now = self.now;
        let mut tasks = Vec::new();
        for node in &mut self.nodes {
            let fails = node.failures < 2 && self.dice.up_to(4) == 0;
            node.memory.fail(fails.then(|| (self.dice.up_to(8) as u32, self.dice.up_to(1) == 0)));
            let (ring, now) = (node.ring.clone(), node.time(self.now));
            tasks.push(tokio::spawn(async move { ring.refresh(now).await }));
        }
        for (node, task) in self.nodes.iter_mut().zip(tasks) {
            let now = node.time(self.now);
            match task.await.expect("no panic") {
                Ok(ring) => {
                    node.failures = 0;
                    match &node.keys {
                        Some(keys) => drop(keys.install(ring, now)),
                        None => node.keys = Some(TicketKeys::external(ring)),
                    }
                }
                Err(_) => node.failures += 1,
            }
        }
    }

    async fn add_master(&mut self, event: &Event) {
        match *event {
            Event::Rotate(at) => {
                let node = &self.nodes[at];
                node.memory.fail(None);
                let _ = node.ring.rotate(node.time(self.now)).await;
            }
            Event::Restart(at) => self.nodes[at] = self.node(self.nodes[at].clock),
            Event::Away(_) => self.memory.contents().down = true,
            Event::Flush => self.memory.contents().flush(),
        }
    }

    /// Whether a node may have drawn the next period's key and another not have read it yet.
    fn a_key_is_on_its_way(&self) -> bool {
        let first = self.nodes.iter().map(|node| node.time(self.now).0).max();
        first.is_some_and(|first| first % schedule().rotation().as_secs() < TEST_TIMEOUT)
    }

    fn issue(&self) -> Vec<Issued> {
        let sealers = self.nodes.iter().filter_map(|node| Some((node, node.keys.as_ref()?)));
        sealers
            .map(|(node, keys)| {
                let now = node.time(self.now);
                (keys.seal(b"session", 0, now), now, self.now)
            })
            .collect()
    }

    /// Each ticket opens on every node that has a ring, as long as it lives by that node's clock.
    fn check(&self, issued: &[Issued]) -> Result<(), TestCaseError> {
        for node in &self.nodes {
            let Some(keys) = &node.keys else { continue };
            let now = node.time(self.now);
            for (ticket, sealed_at, at) in issued {
                if now.0 < sealed_at.0 + LIFETIME {
                    let opened = matches!(keys.open(ticket, now), Opened::Ticket { .. });
                    prop_assert!(
                        opened,
                        "issued at {at}, not open at {}: {:?}",
                        self.now,
                        node.clock
                    );
                }
            }
        }
        Ok(())
    }

    fn sealing_keys(&self) -> BTreeSet<Vec<u8>> {
        let keys = self.nodes.iter().filter_map(|node| Some((node, node.keys.as_ref()?)));
        keys.map(|(node, keys)| keys.seal(b"", 0, node.time(self.now))[1..17].to_vec()).collect()
    }
}

impl Node {
    fn time(&self, now: u64) -> UnixTime {
        UnixTime(now.saturating_add_signed(self.clock))
    }
}

const NODES: usize = 3;

fn clocks() -> impl Strategy<Value = Vec<i64>> {
    let off = CLOCK as i64;
    prop::collection::vec(-off..=off, NODES)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10, ..ProptestConfig::default() })]

    /// In every case, except when a store and a node lose data at once, or a store fails
    /// away in the seconds in which a period starts, for all of that period: what one node seals,
    /// every other opens, at once and for the ticket's whole life.
    #[test]
    fn what_one_seals_all_open(
        seed: u64,
        clocks in clocks(),
        events in prop::collection::vec((0u64..90, event()), 0..6),
    ) {
        run(async {
            let mut world = World::new(seed, &clocks);
            // The first second of a cluster: all have to have come once.
            while world.nodes.iter().any(|node| node.keys.is_none()) {
                world.second().await;
            }
            for _ in 0..3 {
                world.second().await;
            }
            let mut issued: Vec<Issued> = Vec::new();
            for (pause, event) in events.iter().chain([&(100, Event::Rotate(0))]) {
                while matches!(event, Event::Away(_)) && world.a_key_is_on_its_way() {
                    world.second().await;
                }
                world.add_master(event).await;
                let away = if let Event::Away(seconds) = event { *seconds } else { 0 };
                // A store that has forgotten must have been told by one who has not, and a key that
                // one node has put there must have been read by all, each of which may fail twice.
                let pause = TEST_TIMEOUT + pause;
                for second in 0..away + pause {
                    if second == away {
                        world.memory.contents().down = false;
                    }
                    world.second().await;
                    issued.retain(|(_, _, at)| at + LIFETIME + 2 * CLOCK > world.now);
                    // Some tickets, so that the test does not take minutes: those of this second,
                    // and for their whole life those of every seventh.
                    let new = world.issue();
                    world.check(&new)?;
                    if world.now.is_multiple_of(7) {
                        issued.extend(new);
                    }
                    if world.now.is_multiple_of(5) {
                        world.check(&issued)?;
                    }
                }
            }
            Ok::<(), TestCaseError>(())
        })?;
    }

    /// Soon after any event, all nodes seal under one key.
    #[test]
    fn all_agree_in_the_end(
        seed: u64,
        clocks in clocks(),
        events in prop::collection::vec((0u64..3, event()), 0..8),
    ) {
        run(async {
            let mut world = World::new(seed, &clocks);
            for (pause, event) in &events {
                world.add_master(event).await;
                for _ in 0..*pause {
                    world.second().await;
                }
                world.memory.contents().down = false;
            }
            // A record that was lost without its line is missed within a minute.
            let mut same = 0;
            for _ in 0..90 {
                world.second().await;
                let all = world.nodes.iter().all(|node| node.keys.is_some());
                same = if all && world.sealing_keys().len() == 1 { same + 1 } else { 0 };
                // Clocks differ: at a change of keys two are in use.
                if same > 2 * CLOCK {
                    return Ok(());
                }
            }
            Err(TestCaseError::fail("they never agreed"))
        })?;
    }
}
