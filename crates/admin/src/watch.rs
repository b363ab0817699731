//! Looks at the source once a second, and tells those who follow.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use firstflight_telemetry::metrics::Format;
use tokio::time::{MissedTickBehavior, interval};

use crate::console;
use crate::counts::Counts;
use crate::events::Channel;
use crate::history::History;
use crate::source::Source;
use crate::status::{Moment, Status};

/// The source, and what was seen of it.
pub(crate) struct SourceWatcher {
    source: Arc<dyn Source>,
    began: Instant,
    history: Mutex<History>,
    /// The status as JSON, each second.
    pub(crate) states: Channel,
    /// The console's content as HTML, each second.
    pub(crate) pages: Channel,
}

impl SourceWatcher {
    pub(crate) fn new(source: Arc<dyn Source>) -> Self {
        let first = Counts::of(&source.metrics());
        Self {
            source,
            began: Instant::now(),
            history: Mutex::new(History::begin(Duration::ZERO, first)),
            states: Channel::new(),
            pages: Channel::new(),
        }
    }

    /// Looks once a second, for ever.
    pub(crate) async fn run(&self) {
        let mut ticks = interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first is at once, and the history has started already.
        ticks.tick().await;
        loop {
            ticks.tick().await;
            self.look();
        }
    }

    fn look(&self) {
        self.history().note(self.began.elapsed(), Counts::of(&self.source.metrics()));
        if !self.states.is_followed() && !self.pages.is_followed() {
            return;
        }
        let status = self.status();
        self.states.tell(&status.json());
        self.pages.tell(&console::content(&status).into_string());
    }

    /// The status now.
    pub(crate) fn status(&self) -> Status {
        let (snapshot, state) = (self.source.metrics(), self.source.state());
        let (now, at) = (self.began.elapsed(), Moment::now());
        Status::assemble(&snapshot, state, &self.history(), now, at)
    }

    /// The metrics now, as text, and what kind of text it is.
    pub(crate) fn metrics(&self, accept: Option<&str>) -> (&'static str, String) {
        let format = Format::negotiate(accept);
        (format.content_type(), self.source.metrics().encode(format))
    }

    /// Whether new connections are wanted; if not, why not.
    pub(crate) fn readiness(&self) -> Result<(), String> {
        self.source.readiness()
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
