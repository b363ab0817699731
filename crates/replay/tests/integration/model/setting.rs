//! Settings of a run of the explorer: times, nodes, faults, and rules left out on purpose.

use std::time::Duration;

use firstflight_replay::{SharedConfig, SharedGate};

/// One step of the model's time. The windows are a few of these.
pub(crate) const TICK: i64 = 4_000;

/// The true time at the start, in milliseconds, so that clocks may be set back.
pub(crate) const START: i64 = 1_000_000_000;

/// What the explorer checks.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    /// The times of the rules.
    pub(crate) config: SharedConfig,
    /// How far each store process's clock is from the true time, in milliseconds.
    pub(crate) stores: Vec<i64>,
    /// How far each node's clock may be off at first: the explorer tries all combinations.
    pub(crate) nodes: Vec<Vec<i64>>,
    /// The tick at which a correct clock finds the flight's skew zero.
    pub(crate) zero_skew: u8,
    /// The last tick.
    pub(crate) horizon: u8,
    /// The possible faults.
    pub(crate) faults: Vec<Fault>,
    /// Maximum number of faults in one run.
    pub(crate) max_faults: u8,
    /// Maximum number of connections with claims in progress.
    pub(crate) max_pending: usize,
    /// Whether the honest client's own connection arrives too. Its request is executed early or, if
    /// early data was refused, once the flight is recorded as spent. This adds many states.
    pub(crate) honest: bool,
    /// Whether to look for all outcomes of honest clients and copies, including copies that are
    /// refused in any case.
    pub(crate) outcomes: bool,
    /// What happens to a request whose flight could not be recorded by the time no node accepts a
    /// copy.
    pub(crate) unrecorded_request: UnrecordedRequest,
    /// The rule that is left out, so that the explorer finds the attack.
    pub(crate) without: Option<Rule>,
}

/// What happens to a request whose flight could not be recorded in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum UnrecordedRequest {
    /// The request is executed: no copy will be executed from now on.
    Runs,
    /// The request gets 425: a copy may have been executed before.
    TooEarly,
}

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Fault {
    /// The store is emptied.
    Flush,
    /// A store process ends and starts again, empty.
    Restart,
    /// A store process starts again from a snapshot that contains the epoch but not the claims.
    RestartFromSnapshot,
    /// A replica that lacks the claims becomes a master.
    Failover,
    /// A store's clock is set, by this many milliseconds.
    StoreClock(i64),
    /// A node's clock is set.
    NodeClock(i64),
    /// A node is killed and starts again.
    Kill,
    /// A node is cut off from the sentinels.
    CutOffFromSentinels,
    /// A node is cut off from all store processes, for any time.
    CutOffFromStores,
    /// A node's connection breaks; messages in transit may still arrive.
    Disconnect,
    /// A command that writes an epoch is delayed in transit.
    LateEpoch,
    /// A claim is delayed in transit until after its node has given up.
    LateClaim,
    /// A node's process pauses for some ticks, in the middle of an operation.
    Pause,
    /// The store is configured to evict records when it is full, and does.
    Evict,
}

/// A rule that can be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Rule {
    /// No claim counts in the recording window.
    Window,
    /// The window allows for an old master that is still in use, and for clocks that disagree.
    WholeWindow,
    /// The epoch has to be that of the responding process.
    EpochOfThisProcess,
    /// The epoch's age is measured by the store.
    EpochDatedByStore,
    /// An epoch is written once a majority has named the master.
    EpochAfterMajority,
    /// A master counts for a while after a majority named it.
    Confirmation,
    /// Only a node that agrees with the store's clock writes an epoch.
    EpochWithinMargin,
    /// Records live long enough.
    RecordLifetime(Duration),
    /// A node's clock has to agree with the store's.
    ClockMargin,
    /// An unknown claim is refused.
    RefuseUnknown,
    /// Only fresh flights run early.
    Freshness,
    /// A flight's time is taken before its ClientHello is processed.
    TimeBeforeHello,
    /// Each heartbeat is compared with the previous one.
    HeartbeatComparison,
    /// A store that may evict records does not count.
    Evictions,
    /// The filter contains only flights whose claim is settled.
    FilterOfSettledClaims,
    /// A record's end follows from the flight's exact time, not from when it is written.
    EndFollowsSkew,
    /// A record's end is an absolute time of the store's clock, not relative to the writer's clock.
    AbsoluteEnd,
    /// A refused flight is recorded before its request is executed.
    SpendBeforeExecution,
    /// A request whose flight is not recorded waits.
    WaitUntilRecorded,
    /// A record counts only in a confirmed master.
    ConfirmedRecord,
    /// A record counts only if the store's clock has not passed its end.
    RecordNotExpired,
}

impl Setting {
    /// One store process, two nodes, correct clocks.
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
            faults: Vec::new(),
            max_faults: 1,
            max_pending: 2,
            honest: false,
            outcomes: false,
            unrecorded_request: UnrecordedRequest::Runs,
            without: None,
        }
    }

    /// A master and a replica behind sentinels, two nodes.
    pub(crate) fn sentinels() -> Self {
        let single = Self::single();
        let config =
            SharedConfig { confirmation: Duration::from_millis(TICK as u64), ..single.config };
        Self { config, stores: vec![0, 0], faults: vec![Fault::Failover], horizon: 10, ..single }
    }

    /// A failover in which each clock is as far off as allowed, in the attacker's favour.
    pub(crate) fn worst_failover() -> Self {
        Self {
            faults: vec![Fault::Failover, Fault::CutOffFromSentinels],
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

    /// When the ticket age stated by the client is exact: a whole second.
    pub(crate) fn exact_at(&self) -> i64 {
        START + i64::from(self.zero_skew) * TICK
    }

    /// When a record ends by the store's clock, if it is written at these times of the node's clock
    /// and the store's.
    pub(crate) fn record_end(&self, exact_at: i64, node_clock: i64, store_clock: i64) -> i64 {
        let lifetime = match self.without {
            Some(Rule::RecordLifetime(lifetime)) => lifetime,
            _ => self.config.record_lifetime(),
        };
        match self.without {
            Some(Rule::EndFollowsSkew) => store_clock + lifetime.as_millis() as i64,
            Some(Rule::AbsoluteEnd) => {
                store_clock + (exact_at + lifetime.as_millis() as i64 - node_clock)
            }
            Some(Rule::RecordLifetime(_)) => exact_at + lifetime.as_millis() as i64,
            _ => {
                let exact_at = Duration::from_millis(exact_at as u64);
                SharedGate::new(self.config).record_end(exact_at).as_millis() as i64
            }
        }
    }

    /// The time from which no node accepts a copy, by a clock within the margin of the store's.
    pub(crate) fn closed_at(&self) -> i64 {
        let exact_at = Duration::from_millis(self.exact_at() as u64);
        SharedGate::new(self.config).closed_at(exact_at).as_millis() as i64
    }
}
