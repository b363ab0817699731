//! What a run of the explorer is given: times, nodes, troubles, and rules left out on purpose.

use std::time::Duration;

use firstflight_replay::{SharedConfig, SharedGate};

/// One step of the model's time. The windows are a few of these.
pub(crate) const TICK: i64 = 4_000;

/// Where true time starts, in milliseconds, so that clocks may be set back.
pub(crate) const START: i64 = 1_000_000_000;

/// What the explorer goes through.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    /// The rules' times.
    pub(crate) config: SharedConfig,
    /// How far each store process's clock is from the true time, in milliseconds.
    pub(crate) stores: Vec<i64>,
    /// How far each node's clock may be at first: the explorer tries them all.
    pub(crate) nodes: Vec<Vec<i64>>,
    /// The tick at which a clock that is right finds the flight's skew zero.
    pub(crate) zero_skew: u8,
    /// The last tick.
    pub(crate) horizon: u8,
    /// What may go wrong.
    pub(crate) troubles: Vec<Trouble>,
    /// How often something may go wrong in one run.
    pub(crate) most_troubles: u8,
    /// Connections whose claims may be under way at the same time.
    pub(crate) most_pending: usize,
    /// Whether the honest client's own connection comes too. Its request is executed early, or,
    /// where early data was refused, once the flight is recorded as spent. There are many more
    /// states with it.
    pub(crate) honest: bool,
    /// Whether to look for all that may come of honest clients and of copies, also of such as are
    /// refused anyway.
    pub(crate) outcomes: bool,
    /// What becomes of a request whose flight could not be recorded by the time that no node
    /// accepts a copy.
    pub(crate) at_close: AtClose,
    /// The rule that is left out, to see that the explorer misses it.
    pub(crate) without: Option<Rule>,
}

/// What becomes of a request whose flight could not be recorded in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum AtClose {
    /// It is executed: no copy will be from now on.
    Runs,
    /// It gets 425: a copy may have been executed before.
    TooEarly,
}

/// Something that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Trouble {
    /// Somebody empties the store.
    Flush,
    /// A store process ends and starts again, empty.
    Restart,
    /// It starts again from a snapshot that has the epoch and lacks the claims.
    RestartFromSnapshot,
    /// A replica that lacks the claims becomes a master.
    Failover,
    /// A store's clock is set, by so many milliseconds.
    StoreClock(i64),
    /// A node's clock is set.
    NodeClock(i64),
    /// A node is killed and starts again.
    Kill,
    /// A node does not hear the sentinels any more.
    Deaf,
    /// A node cannot reach any store process, for as long as it takes.
    CutOff,
    /// A node's connection breaks; what it has sent may still arrive.
    Disconnect,
    /// An order to write an epoch is held up on its way.
    LateEpoch,
    /// A claim is held up on its way, until after its node has given it up.
    LateClaim,
    /// A node's process stands still for some ticks, in the middle of what it was about.
    Pause,
    /// The store is told to drop records when it is full, and does.
    Evict,
}

/// A rule that can be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Rule {
    /// No claim counts in the recording window.
    Window,
    /// The window allows for an old master that is still asked, and for clocks that disagree.
    WholeWindow,
    /// The epoch has to be of the process that answers.
    EpochOfThisLife,
    /// The epoch's age is the store's to say.
    EpochDatedByStore,
    /// An epoch is written once a majority has named the master.
    EpochAfterMajority,
    /// A master counts for a while after a majority named it.
    Confirmation,
    /// An epoch is written by who agrees with the store's clock.
    EpochWithinMargin,
    /// Records live long enough.
    RecordLife(Duration),
    /// A node's clock has to agree with the store's.
    ClockMargin,
    /// What is unknown is refused.
    RefuseUnknown,
    /// Only fresh flights run early.
    Freshness,
    /// A flight's time is taken before its ClientHello is processed.
    TimeBeforeHello,
    /// What one heartbeat saw is compared to what the last one did.
    Memory,
    /// A store that may evict records does not count.
    Evictions,
    /// The filter holds only claims that came out.
    FilterOfOutcomes,
    /// A record's end follows from the flight's exact time, not from when it is written.
    EndFollowsSkew,
    /// It is an absolute time of the store's clock, not one that the writer's clock counts off.
    AbsoluteEnd,
    /// A refused flight is recorded before its request is executed.
    Spends,
    /// A request whose flight cannot be recorded waits.
    Waiting,
    /// A record counts only in a confirmed master.
    ConfirmedRecord,
}

impl Setting {
    /// One store process, two nodes, clocks that are right.
    pub(crate) fn single() -> Self {
        Self {
            config: SharedConfig {
                freshness: Duration::from_millis(TICK as u64),
                clock_margin: Duration::from_millis(TICK as u64),
                confirmation: Duration::ZERO,
            },
            stores: vec![0],
            nodes: vec![vec![0], vec![0]],
            zero_skew: 3,
            horizon: 8,
            troubles: Vec::new(),
            most_troubles: 1,
            most_pending: 2,
            honest: false,
            outcomes: false,
            at_close: AtClose::Runs,
            without: None,
        }
    }

    /// A master and a replica behind sentinels, two nodes.
    pub(crate) fn sentinels() -> Self {
        let single = Self::single();
        let config =
            SharedConfig { confirmation: Duration::from_millis(TICK as u64), ..single.config };
        Self {
            config,
            stores: vec![0, 0],
            troubles: vec![Trouble::Failover],
            horizon: 10,
            ..single
        }
    }

    /// A failover where each clock is as far off as it may be, to the side that helps the attacker.
    pub(crate) fn worst_failover() -> Self {
        Self {
            troubles: vec![Trouble::Failover, Trouble::Deaf],
            stores: vec![TICK, -TICK],
            nodes: vec![vec![2 * TICK], vec![-2 * TICK]],
            zero_skew: 5,
            horizon: 12,
            ..Self::sentinels()
        }
    }

    pub(crate) fn leaves_out(&self, rule: Rule) -> bool {
        self.without == Some(rule)
    }

    /// One store process, two nodes, and the honest client's own connection.
    pub(crate) fn requests() -> Self {
        Self { honest: true, horizon: 9, ..Self::single() }
    }

    /// When the ticket age that the client states is exact: a whole second.
    pub(crate) fn exact_at(&self) -> i64 {
        START + i64::from(self.zero_skew) * TICK
    }

    /// Until when a record lives, by the store's clock, if it is written when the node's clock and
    /// the store's show this.
    pub(crate) fn record_end(&self, exact_at: i64, node_clock: i64, store_clock: i64) -> i64 {
        let life = match self.without {
            Some(Rule::RecordLife(life)) => life,
            _ => self.config.record_life(),
        };
        match self.without {
            Some(Rule::EndFollowsSkew) => store_clock + life.as_millis() as i64,
            Some(Rule::AbsoluteEnd) => {
                store_clock + (exact_at + life.as_millis() as i64 - node_clock)
            }
            Some(Rule::RecordLife(_)) => exact_at + life.as_millis() as i64,
            _ => {
                let exact_at = Duration::from_millis(exact_at as u64);
                SharedGate::new(self.config).record_end(exact_at).as_millis() as i64
            }
        }
    }

    /// From when on no node accepts a copy, by a clock that is within the margin of the store's.
    pub(crate) fn closed_at(&self) -> i64 {
        let exact_at = Duration::from_millis(self.exact_at() as u64);
        SharedGate::new(self.config).closed_at(exact_at).as_millis() as i64
    }
}
