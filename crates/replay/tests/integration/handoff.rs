//! One process passes its register to the next. In any order of events, no flight and no name is
//! won twice, and no copy is accepted in addition to the requests that a refused client sends
//! again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use firstflight_replay::{
    ClaimKey, ClaimOutcome, EpochScope, FlightOffer, Gate, GateConfig, HandoffQuery, HandoffReply,
    HandoffTime, Refusal, RegisterSnapshot, SpendOutcome, TicketEpochs,
};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    Wait(u64),
    /// A flight arrives at the old process or at the new one, as original or copy.
    Flight {
        new: bool,
        flight: u8,
        honest: bool,
    },
    /// A request with a name arrives.
    Name {
        new: bool,
        name: u8,
    },
    /// The request with the name was certainly not executed.
    Release {
        new: bool,
        name: u8,
    },
    /// The old process closes its gate.
    Close,
    /// The new process has read the records of the old one.
    TakeOver,
    /// The new process has died without reading the records.
    DieBeforeTakeOver,
    /// The new process has died after it has served requests.
    DieAfterTakeOver,
}

/// The progress of the handoff.
enum Stage {
    Before,
    Closed(Vec<u8>),
    Done,
}

struct World {
    now: u64,
    capacity: usize,
    old: Gate,
    new: Gate,
    old_epochs: Arc<TicketEpochs>,
    new_epochs: Arc<TicketEpochs>,
    /// The epoch of all tickets.
    epoch: u32,
    stage: Stage,
    /// Steps that wait, because they arrived at the old process while no process had the register.
    waiting: Vec<Step>,
    sent: HashMap<u8, bool>,
    won: HashMap<u8, u32>,
    resent: HashMap<u8, u32>,
    /// Flights won at the new process, which the old one knows nothing of.
    won_by_new: HashSet<u8>,
    /// The owner of each claimed name: whether it is the new process, or `None` if it has died.
    name_owners: HashMap<u8, Option<bool>>,
}

/// How far the new process's clock is ahead of the old one's, in milliseconds.
const HEAD_START: u64 = 500_000;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A moment in a process. The clock that ages tickets was never set.
fn time(gate: Duration, common: Duration) -> HandoffTime {
    HandoffTime { gate, common, tickets: common + TICKET_TIME }
}

const TICKET_TIME: Duration = Duration::from_secs(1_000_000_000);

fn name(n: u8) -> ClaimKey {
    ClaimKey::from_name(&[b"test", &[n]])
}

fn epochs() -> Arc<TicketEpochs> {
    Arc::new(TicketEpochs::new(EpochScope::Process))
}

fn gate(capacity: usize, epochs: &Arc<TicketEpochs>) -> Gate {
    Gate::new(GateConfig { capacity, ..GateConfig::default() }, epochs.clone())
}

fn offer(name: [u8; 32], skew: i32, received_at: Duration, epochs: &TicketEpochs) -> FlightOffer {
    FlightOffer::new(ClaimKey::of_flight(&name), skew, received_at, epochs.current())
}

impl World {
    fn new(capacity: usize) -> Self {
        let (old_epochs, new_epochs) = (epochs(), epochs());
        Self {
            now: 0,
            capacity,
            old: gate(capacity, &old_epochs),
            new: gate(capacity, &new_epochs),
            epoch: old_epochs.current(),
            old_epochs,
            new_epochs,
            stage: Stage::Before,
            waiting: Vec::new(),
            sent: HashMap::new(),
            won: HashMap::new(),
            resent: HashMap::new(),
            won_by_new: HashSet::new(),
            name_owners: HashMap::new(),
        }
    }

    fn old_now(&self) -> Duration {
        ms(self.now)
    }

    fn new_now(&self) -> Duration {
        ms(HEAD_START + self.now)
    }

    /// The clock that both processes read.
    fn common(&self) -> Duration {
        ms(7_000_000 + self.now)
    }

    fn apply(&mut self, step: Step) {
        let reaches_new = matches!(self.stage, Stage::Done);
        match step {
            Step::Wait(millis) => self.now += millis,
            // The new process accepts connections once it has the register.
            Step::Flight { new: true, .. }
            | Step::Name { new: true, .. }
            | Step::Release { new: true, .. }
                if !reaches_new => {}
            Step::Flight { new, flight, honest } => self.flight(new, flight, honest),
            Step::Name { new, name } => self.name(new, name),
            Step::Release { new, name } => self.release(new, name),
            Step::Close if matches!(self.stage, Stage::Before) => {
                let snapshot = self.old.hand_off(time(self.old_now(), self.common()));
                self.stage = Stage::Closed(snapshot.to_bytes());
            }
            Step::TakeOver => {
                let Stage::Closed(bytes) = &self.stage else { return };
                let snapshot = RegisterSnapshot::parse(bytes).unwrap();
                self.new.restore(&snapshot, time(self.new_now(), self.common()));
                self.stage = Stage::Done;
                self.apply_waiting();
            }
            Step::DieBeforeTakeOver if matches!(self.stage, Stage::Closed(_)) => {
                self.old.reopen();
                self.stage = Stage::Before;
                self.apply_waiting();
            }
            Step::DieAfterTakeOver if reaches_new => {
                self.old.take_back(self.old_now());
                self.new_epochs = epochs();
                self.new = gate(self.capacity, &self.new_epochs);
                self.stage = Stage::Before;
                // As after a restart, a copy may have run there and the original's request runs
                // here. The same holds for flights that the old process claimed by queries, if it
                // had no room to record them.
                let (old, now, has_room) = (&self.old, self.old_now(), self.capacity > 6);
                let is_known = |flight: u8| {
                    let offer = offer([flight; 32], 0, now, &self.old_epochs);
                    has_room || old.has_record(&offer, now)
                };
                let won_by_new = std::mem::take(&mut self.won_by_new);
                self.won.retain(|flight, _| !won_by_new.contains(flight) && is_known(*flight));
                let names_of_new =
                    self.name_owners.values_mut().filter(|owner| **owner == Some(true));
                names_of_new.for_each(|owner| *owner = None);
            }
            Step::Close | Step::DieBeforeTakeOver | Step::DieAfterTakeOver => {}
        }
    }

    fn apply_waiting(&mut self) {
        for step in std::mem::take(&mut self.waiting) {
            self.apply(step);
        }
    }

    fn flight(&mut self, new: bool, flight: u8, honest: bool) {
        if honest && self.sent.insert(flight, true).is_some() {
            return;
        }
        // The stated age is exact `40 * flight` seconds after the start.
        let skew = i32::from(flight) * 40 - (self.now / 1000) as i32;
        let (gate, epochs, now) = match new {
            true => (&self.new, &self.new_epochs, self.new_now()),
            false => (&self.old, &self.old_epochs, self.old_now()),
        };
        let digest = [flight; 32];
        let local_offer = offer(digest, skew, now, epochs);
        let common_offer = offer(digest, skew, self.common(), epochs);
        let accepts = skew.abs() <= 60 && epochs.accepts(self.epoch);
        // A copy never completes its handshake, so it is never spent.
        if !accepts && !honest {
            return;
        }
        let (outcome, query) = match accepts {
            true => (
                HandoffReply::Flight(gate.claim(&local_offer, now).map(|flight| flight.won())),
                HandoffQuery::Flight(common_offer),
            ),
            false => (
                HandoffReply::Spent(gate.spend(&local_offer, now)),
                HandoffQuery::Spend(common_offer),
            ),
        };
        let outcome = match (outcome, &self.stage) {
            (
                HandoffReply::Flight(Err(Refusal::HandedOver))
                | HandoffReply::Spent(SpendOutcome::HandedOver),
                stage,
            ) => match stage {
                Stage::Done => self.query(&query),
                _ => {
                    self.waiting.push(Step::Flight { new, flight, honest });
                    if honest {
                        self.sent.remove(&flight);
                    }
                    return;
                }
            },
            (outcome, _) => outcome,
        };
        match outcome {
            HandoffReply::Flight(Ok(true)) => {
                *self.won.entry(flight).or_default() += 1;
                if new {
                    self.won_by_new.insert(flight);
                }
            }
            HandoffReply::Flight(Ok(false)) | HandoffReply::Spent(SpendOutcome::Executed) => {}
            HandoffReply::Flight(Err(_)) | HandoffReply::Spent(SpendOutcome::Recorded)
                if honest =>
            {
                // Later, the record of an executed copy has ended.
                if skew >= -60 {
                    *self.resent.entry(flight).or_default() += 1;
                }
            }
            HandoffReply::Flight(Err(_)) => {}
            other => panic!("{other:?}"),
        }
        let count = |counts: &HashMap<u8, u32>| counts.get(&flight).copied().unwrap_or(0);
        let (won, resent) = (count(&self.won), count(&self.resent));
        assert!(won <= 1, "flight {flight} won twice");
        assert!(won + resent <= 1, "flight {flight} won, and its client sent it again");
    }

    fn name(&mut self, new: bool, n: u8) {
        let lifetime = ms(1000 * 3600);
        let claim = match new {
            true => self.new.claim_name(name(n), lifetime, self.new_now()),
            false => self.old.claim_name(name(n), lifetime, self.old_now()),
        };
        let claim = match (claim, &self.stage) {
            (ClaimOutcome::Closed, Stage::Done) => {
                match self.query(&HandoffQuery::Name(name(n), lifetime)) {
                    HandoffReply::Name(claim) => claim,
                    other => panic!("{other:?}"),
                }
            }
            (ClaimOutcome::Closed, _) => return self.waiting.push(Step::Name { new, name: n }),
            (claim, _) => claim,
        };
        if claim == ClaimOutcome::Won {
            assert_eq!(self.name_owners.insert(n, Some(new)), None, "name {n} won twice");
        }
    }

    fn release(&mut self, new: bool, n: u8) {
        if self.name_owners.get(&n) != Some(&Some(new)) {
            return;
        }
        let is_released_here = match new {
            true => self.new.release_name(name(n), self.new_now()),
            false => self.old.release_name(name(n), self.old_now()),
        };
        match (is_released_here, &self.stage) {
            (true, _) => {}
            (false, Stage::Done) => {
                assert_eq!(self.query(&HandoffQuery::Release(name(n))), HandoffReply::Released)
            }
            (false, _) => return self.waiting.push(Step::Release { new, name: n }),
        }
        self.name_owners.remove(&n);
    }

    /// The old process queries the new one.
    fn query(&self, query: &HandoffQuery) -> HandoffReply {
        let query = HandoffQuery::parse(&query.to_bytes()).unwrap();
        let reply = query.execute(&self.new, self.common(), self.new_now());
        let reply = HandoffReply::parse(reply.to_byte()).unwrap();
        query.record(reply, &self.old, self.common(), self.old_now());
        reply
    }
}

fn step() -> impl Strategy<Value = Step> {
    let flight = (any::<bool>(), 0u8..6, any::<bool>());
    let name = (any::<bool>(), 0u8..4);
    prop_oneof![
        4 => (0u64..20_000).prop_map(Step::Wait),
        12 => flight.prop_map(|(new, flight, honest)| Step::Flight { new, flight, honest }),
        6 => name.clone().prop_map(|(new, name)| Step::Name { new, name }),
        3 => name.prop_map(|(new, name)| Step::Release { new, name }),
        2 => Just(Step::Close),
        2 => Just(Step::TakeOver),
        1 => Just(Step::DieBeforeTakeOver),
        1 => Just(Step::DieAfterTakeOver),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5_000, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_won_twice_across_a_handoff(
        capacity in prop_oneof![2 => 1usize..4, 3 => Just(100)],
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut world = World::new(capacity);
        for step in steps {
            world.apply(step);
        }
    }
}

/// At the start of all clocks.
fn hand_over(old: &Gate, new: &Gate) {
    new.restore(&old.hand_off(time(ms(0), ms(0))), time(ms(0), ms(0)));
}

#[test]
fn the_new_process_accepts_early_data_with_tickets_of_the_old_one() {
    let (before, after) = (epochs(), epochs());
    let (old, new) = (gate(10, &before), gate(10, &after));
    assert!(!after.accepts(before.current()));
    hand_over(&old, &new);
    assert!(after.accepts(before.current()));
}

#[test]
fn records_without_room_in_the_new_process_start_a_new_epoch() {
    let (before, after) = (epochs(), epochs());
    let (old, new) = (gate(10, &before), gate(1, &after));
    for flight in 0..2 {
        old.claim(&offer([flight; 32], 0, ms(0), &before), ms(0)).unwrap();
        old.claim_name(name(flight), ms(100_000), ms(0));
    }
    hand_over(&old, &new);
    assert!(!after.accepts(before.current()));
    assert_eq!(new.claim_name(name(9), ms(100_000), ms(99_000)), ClaimOutcome::Full);
    let known = |n| new.claim_name(name(n), ms(1000), ms(99_000));
    assert!([known(0), known(1)].contains(&ClaimOutcome::Lost));
}

/// The new process dies before it serves any request itself, but after the old one has run requests
/// because of its replies.
#[test]
fn rfc8446_8_2_claims_by_query_stay_claimed_when_the_new_process_dies() {
    let (before, after) = (epochs(), epochs());
    let (old, new) = (gate(10, &before), gate(10, &after));
    let flight = offer([1; 32], 0, ms(0), &before);
    hand_over(&old, &new);
    let query = |query: HandoffQuery| {
        let reply = query.execute(&new, ms(0), ms(0));
        query.record(reply, &old, ms(0), ms(0));
        reply
    };
    let life = ms(100_000);
    assert_eq!(query(HandoffQuery::Flight(flight.clone())), HandoffReply::Flight(Ok(true)));
    for n in 0..2 {
        let won = HandoffReply::Name(ClaimOutcome::Won);
        assert_eq!(query(HandoffQuery::Name(name(n), life)), won);
    }
    assert_eq!(query(HandoffQuery::Release(name(1))), HandoffReply::Released);
    // While the new process lives, names that are not claimed are its own.
    assert_eq!(old.claim_name(name(1), life, ms(0)), ClaimOutcome::Closed);
    old.take_back(ms(0));
    // A copy ran, and its original was held back.
    assert_eq!(old.spend(&flight, ms(60_000)), SpendOutcome::Executed);
    assert_eq!(old.claim_name(name(0), life, ms(99_000)), ClaimOutcome::Lost);
    // The new process may have claimed it once more, by itself.
    assert_eq!(old.claim_name(name(1), life, ms(99_000)), ClaimOutcome::Full);
    assert_eq!(old.claim_name(name(1), life, ms(100_000)), ClaimOutcome::Won);
}

/// The new process dies after it has served, and nobody knows which names it has claimed.
#[test]
fn unknown_names_are_refused_for_their_lifetime_when_the_new_process_dies() {
    let (before, after, later) = (epochs(), epochs(), epochs());
    let (old, new, next) = (gate(10, &before), gate(10, &after), gate(10, &later));
    let life = ms(100_000);
    assert_eq!(old.claim_name(name(0), life, ms(0)), ClaimOutcome::Won);
    hand_over(&old, &new);
    assert_eq!(new.claim_name(name(1), life, ms(1_000)), ClaimOutcome::Won);
    let first = before.current();
    old.take_back(ms(2_000));
    assert!(!before.accepts(first));
    assert_eq!(old.claim_name(name(0), life, ms(3_000)), ClaimOutcome::Lost);
    assert_eq!(old.claim_name(name(1), life, ms(3_000)), ClaimOutcome::Full);
    assert_eq!(old.claim_name(name(2), ms(1_000), ms(3_000)), ClaimOutcome::Won, "a new nonce");
    // The snapshot for the next process contains this, too.
    let snapshot = old.hand_off(time(ms(4_000), ms(4_000))).to_bytes();
    next.restore(&RegisterSnapshot::parse(&snapshot).unwrap(), time(ms(4_000), ms(4_000)));
    assert_eq!(next.claim_name(name(0), life, ms(5_000)), ClaimOutcome::Lost);
    assert_eq!(next.claim_name(name(1), life, ms(101_999)), ClaimOutcome::Full);
    assert_eq!(next.claim_name(name(1), life, ms(102_000)), ClaimOutcome::Won);
}

/// The machine's clock is set just before the new process reads it for the first time. The old one
/// has not noticed.
#[test]
fn rfc8446_8_3_a_clock_that_is_set_during_a_handoff_starts_an_epoch() {
    const MINUTE: Duration = Duration::from_secs(60);
    let set_back = |step: Duration| {
        let (before, after) = (epochs(), epochs());
        let (old, new) = (gate(10, &before), gate(10, &after));
        let flight = |skew, at| offer([1; 32], skew, at, &before);
        // Its early data is refused because of its age, so its client sends it again.
        assert_eq!(old.spend(&flight(20, ms(0)), ms(0)), SpendOutcome::Recorded);
        let closed = time(ms(0), ms(0));
        let opened = HandoffTime { tickets: closed.tickets - step, ..closed };
        new.restore(&old.hand_off(closed), opened);
        // By the new clock, the age of a copy is exact that much later.
        let exact = ms(20_000) + step;
        (new.claim(&flight(0, exact), exact), after.accepts(before.current()))
    };
    assert_eq!(set_back(MINUTE), (Err(Refusal::TicketEpoch), false));
    // Records outlive a step that is too small to be noticed.
    assert_eq!(set_back(ms(2_000)), (Err(Refusal::RefusedBefore), true));
    let set_forward = HandoffTime { tickets: TICKET_TIME + MINUTE, ..time(ms(0), ms(0)) };
    let (before, after) = (epochs(), epochs());
    gate(1, &after).restore(&gate(1, &before).hand_off(time(ms(0), ms(0))), set_forward);
    assert!(!after.accepts(before.current()));
}

/// Records of refused flights were made for the old process's freshness.
#[test]
fn rfc8446_8_3_a_larger_freshness_of_the_new_process_starts_an_epoch() {
    let upgraded_to = |freshness: Duration| {
        let (before, after) = (epochs(), epochs());
        let config = GateConfig { freshness, ..GateConfig::default() };
        let (old, new) = (gate(10, &before), Gate::new(config, after.clone()));
        let flight = |skew, at| offer([1; 32], skew, at, &before);
        assert_eq!(old.spend(&flight(20, ms(0)), ms(0)), SpendOutcome::Recorded);
        hand_over(&old, &new);
        // The record has ended, and a copy is 25 s late.
        let late = ms(45_000);
        (new.claim(&flight(-25, late), late), after.accepts(before.current()))
    };
    assert_eq!(upgraded_to(ms(30_000)), (Err(Refusal::TicketEpoch), false));
    assert_eq!(upgraded_to(ms(10_000)), (Err(Refusal::TicketAge), true));
    assert_eq!(upgraded_to(ms(5_000)), (Err(Refusal::TicketAge), true));
}

/// Threads claim while the gate is being closed: each flight is won once, by one of them or by the
/// next process.
#[test]
fn a_claim_during_the_handoff_is_won_once() {
    const FLIGHTS: u16 = 4000;
    let (before, after) = (epochs(), epochs());
    let (old, new) = (gate(1 << 20, &before), gate(1 << 20, &after));
    let wins: Vec<_> = (0..FLIGHTS).map(|_| AtomicU32::new(0)).collect();
    let is_restored = AtomicBool::new(false);
    let offer = |flight: u16| {
        let mut name = [0; 32];
        name[..2].copy_from_slice(&flight.to_be_bytes());
        offer(name, 0, ms(0), &before)
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for flight in 0..FLIGHTS {
                    let mut outcome = old.claim(&offer(flight), ms(0));
                    if outcome == Err(Refusal::HandedOver) {
                        while !is_restored.load(Ordering::SeqCst) {
                            std::thread::yield_now();
                        }
                        outcome = new.claim(&offer(flight), ms(0));
                    }
                    if outcome.is_ok_and(|flight| flight.won()) {
                        wins[usize::from(flight)].fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
        while old.statistics().won < u64::from(FLIGHTS) / 4 {
            std::thread::yield_now();
        }
        let snapshot = old.hand_off(time(ms(0), ms(0)));
        assert!(snapshot.len().0 >= usize::from(FLIGHTS) / 4);
        new.restore(&snapshot, time(ms(0), ms(0)));
        is_restored.store(true, Ordering::SeqCst);
    });
    // A copy of each flight.
    for flight in 0..FLIGHTS {
        if new.claim(&offer(flight), ms(0)).is_ok_and(|flight| flight.won()) {
            wins[usize::from(flight)].fetch_add(1, Ordering::SeqCst);
        }
    }
    assert!(wins.iter().all(|wins| wins.load(Ordering::SeqCst) == 1));
}
