//! A store process: its content and its replies.

use std::time::Duration;

use firstflight_replay::{Epoch, EpochWrite, Role};

/// One store process and its data. It contains the record of one flight, or not.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    /// The run of the process. Stands for the `run_id`.
    pub(crate) run: u8,
    /// The replication history. Stands for the replication id.
    pub(crate) history: u8,
    pub(crate) role: Role,
    /// How far its clock is from the true time, in milliseconds.
    pub(crate) offset: i64,
    record: Option<Record>,
    epoch: Option<StoredEpoch>,
    pub(crate) may_evict: bool,
}

/// The flight's record.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Record {
    /// When it ends, by the store's clock.
    until: i64,
    /// Whether the honest client's connection wrote it.
    original: bool,
}

/// The epoch record, and when it was written according to its writer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct StoredEpoch {
    epoch: Epoch,
    until: i64,
    stamp: i64,
}

/// The reply to a batch with one claim.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Reply {
    /// The process is not a master, so it refused.
    ReadOnly,
    Claim {
        won: bool,
        read: Read,
    },
}

/// The result of the reads in a batch or heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Read {
    pub(crate) epoch: Option<Epoch>,
    /// By the store's clock, and by the writer's.
    pub(crate) age: Duration,
    pub(crate) age_by_writer: Duration,
    pub(crate) store_time: Duration,
}

impl Reply {
    /// The store's clock when it replied, in milliseconds.
    pub(crate) fn store_clock(&self) -> Option<i64> {
        match self {
            Self::ReadOnly => None,
            Self::Claim { read, .. } => Some(read.store_time.as_millis() as i64),
        }
    }
}

impl Process {
    pub(crate) fn new(run: u8, history: u8, role: Role, offset: i64) -> Self {
        Self { run, history, role, offset, record: None, epoch: None, may_evict: false }
    }

    pub(crate) fn clock(&self, now: i64) -> i64 {
        now + self.offset
    }

    /// `SET key claimant NX PXAT until`, then `GET` of the epoch, `TIME`, `PTTL`.
    pub(crate) fn claim(&mut self, original: bool, until: i64, now: i64) -> Reply {
        if self.role == Role::Replica {
            return Reply::ReadOnly;
        }
        let clock = self.clock(now);
        self.expire(clock);
        let won = self.record.is_none();
        if won {
            self.record = Some(Record { until, original });
            self.expire(clock);
        }
        Reply::Claim { won, read: self.read(now) }
    }

    /// As [`claim`](Self::claim), for a spend, which treats its own earlier claim as a win.
    pub(crate) fn spend(&mut self, until: i64, now: i64) -> Reply {
        match self.claim(true, until, now) {
            Reply::Claim { won, read } => {
                let own = self.record.as_ref().is_some_and(|record| record.original);
                Reply::Claim { won: won || own, read }
            }
            refused => refused,
        }
    }

    pub(crate) fn read(&self, now: i64) -> Read {
        let clock = self.clock(now);
        let lifetime = Epoch::LIFETIME.as_millis() as i64;
        let age = |stored: &StoredEpoch| millis(clock - (stored.until - lifetime));
        let age_by_writer = |stored: &StoredEpoch| millis(clock - stored.stamp);
        Read {
            epoch: self.epoch.as_ref().map(|stored| stored.epoch.clone()),
            age: self.epoch.as_ref().map(age).unwrap_or_default(),
            age_by_writer: self.epoch.as_ref().map(age_by_writer).unwrap_or_default(),
            store_time: millis(clock),
        }
    }

    /// `SET epoch TEXT PX lifetime`, with the writer's own stamp beside it. A replica refuses.
    pub(crate) fn write_epoch(&mut self, write: &EpochWrite, stamp: i64, now: i64) {
        if self.role == Role::Master {
            let until = self.clock(now) + write.lifetime.as_millis() as i64;
            self.epoch = Some(StoredEpoch { epoch: write.epoch.clone(), until, stamp });
        }
    }

    /// Sets an epoch that is `age` old.
    pub(crate) fn with_epoch(mut self, epoch: Epoch, age: Duration, now: i64) -> Self {
        let stamp = self.clock(now) - age.as_millis() as i64;
        let until = stamp + Epoch::LIFETIME.as_millis() as i64;
        self.epoch = Some(StoredEpoch { epoch, until, stamp });
        self
    }

    pub(crate) fn has_record(&self) -> bool {
        self.record.is_some()
    }

    /// Drops records that have ended, even if nobody reads them.
    pub(crate) fn expire_at(&mut self, now: i64) {
        self.expire(self.clock(now));
    }

    fn expire(&mut self, clock: i64) {
        self.record = self.record.take().filter(|record| clock < record.until);
    }

    pub(crate) fn drop_record(&mut self) {
        self.record = None;
    }

    pub(crate) fn flush(&mut self) {
        self.record = None;
        self.epoch = None;
    }

    /// Takes over the data of `master` except its claims.
    pub(crate) fn take_epoch_of(&mut self, master: &Self) {
        self.epoch = master.epoch.clone();
        self.record = None;
    }

    /// Becomes a replica with all data of `master`.
    pub(crate) fn follow(&mut self, master: &Self) {
        self.role = Role::Replica;
        self.history = master.history;
        self.record = master.record.clone();
        self.epoch = master.epoch.clone();
    }
}

/// The `run_id` of a process in `INFO`.
pub(crate) fn run_id(run: u8) -> String {
    format!("run{run}")
}

/// The replication id in `INFO`.
pub(crate) fn replication_id(history: u8) -> String {
    format!("history{history}")
}

fn millis(time: i64) -> Duration {
    Duration::from_millis(u64::try_from(time).unwrap_or(0))
}
