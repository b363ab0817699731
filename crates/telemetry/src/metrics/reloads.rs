//! Reloads of the configuration.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use super::{Counters, Description, Readings, ReloadResult, Snapshot};

/// Reloads of the configuration.
#[derive(Debug)]
pub struct Reloads {
    ended: Counters<ReloadResult>,
    failed: AtomicBool,
    /// Milliseconds since 1970.
    taken_up: AtomicI64,
}

impl Default for Reloads {
    fn default() -> Self {
        Self {
            ended: Counters::new(&RELOADS),
            failed: AtomicBool::new(false),
            taken_up: AtomicI64::new(0),
        }
    }
}

impl Reloads {
    /// The process started with a configuration, at `unix` milliseconds since 1970.
    pub fn began(&self, unix: i64) {
        self.taken_up.store(unix, Ordering::Relaxed);
    }

    /// A configuration was taken up, at `unix` milliseconds since 1970.
    pub fn succeeded(&self, unix: i64) {
        self.began(unix);
        self.failed.store(false, Ordering::Relaxed);
        self.ended.count(ReloadResult::Success);
    }

    /// One was of no use.
    pub fn failed(&self) {
        self.failed.store(true, Ordering::Relaxed);
        self.ended.count(ReloadResult::Failure);
    }

    pub(super) fn collect(&self, readings: &Readings, snapshot: &mut Snapshot) {
        snapshot.number(&GENERATION, readings.generation as f64);
        let successful = !self.failed.load(Ordering::Relaxed);
        snapshot.number(&SUCCESSFUL, f64::from(u8::from(successful)));
        snapshot.number(&TAKEN_UP, self.taken_up.load(Ordering::Relaxed) as f64 / 1e3);
        snapshot.push(self.ended.family());
    }
}

static GENERATION: Description = Description::gauge(
    "firstflight_config_generation",
    "Which configuration serves: 1 from the start, one more with each reload.",
    "The same on each node after the same reloads.",
);
static SUCCESSFUL: Description = Description::gauge(
    "firstflight_config_last_reload_successful",
    "1 unless the last reload failed.",
    "At 0 the server goes on by its old configuration and loses the new one with the next restart. \
     The log says what is wrong; so does firstflight serve --check.",
);
static TAKEN_UP: Description = Description::gauge(
    "firstflight_config_last_reload_success_timestamp_seconds",
    "When the configuration that serves was taken up, in seconds since 1970.",
    "Older than your last change: the change was not reloaded.",
);
static RELOADS: Description = Description::counter(
    "firstflight_config_reloads_total",
    "Reloads of the configuration.",
    "Growing by itself: something touches the files.",
);
