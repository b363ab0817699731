//! Samples the source every second, and publishes its status as server-sent events.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use firstflight_telemetry::metrics::Format;
use futures_util::stream;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{MissedTickBehavior, interval};

use crate::console;
use crate::history::{Counts, History};
use crate::response::{Body, plain};
use crate::source::Source;
use crate::status::{Moment, Status};

/// The source, with the history of its metrics.
pub(crate) struct SourceWatcher {
    source: Arc<dyn Source>,
    started: Instant,
    history: Mutex<History>,
    /// The status as JSON, every second.
    pub(crate) states: Channel,
    /// The content of the console as HTML, every second.
    pub(crate) pages: Channel,
}

impl SourceWatcher {
    pub(crate) fn new(source: Arc<dyn Source>) -> Self {
        let first = Counts::from_snapshot(&source.metrics());
        Self {
            source,
            started: Instant::now(),
            history: Mutex::new(History::start(Duration::ZERO, first)),
            states: Channel::new(),
            pages: Channel::new(),
        }
    }

    /// Samples the source every second. Never returns.
    pub(crate) async fn run(&self) {
        let mut ticks = interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick is immediate, and `new` has taken that sample.
        ticks.tick().await;
        loop {
            ticks.tick().await;
            self.sample();
        }
    }

    fn sample(&self) {
        let counts = Counts::from_snapshot(&self.source.metrics());
        self.history().push(self.started.elapsed(), counts);
        if !self.states.has_followers() && !self.pages.has_followers() {
            return;
        }
        let status = self.status();
        self.states.publish(&status.json());
        self.pages.publish(&console::content(&status).into_string());
    }

    /// The current status.
    pub(crate) fn status(&self) -> Status {
        let (snapshot, state) = (self.source.metrics(), self.source.state());
        let (now, at) = (self.started.elapsed(), Moment::now());
        Status::assemble(&snapshot, state, &self.history(), now, at)
    }

    /// The current metrics as text, with their content type.
    pub(crate) fn metrics(&self, accept: Option<&str>) -> (&'static str, String) {
        let format = Format::negotiate(accept);
        (format.content_type(), self.source.metrics().encode(format))
    }

    /// Whether the server accepts new connections.
    ///
    /// # Errors
    /// The reason if it does not.
    pub(crate) fn readiness(&self) -> Result<(), String> {
        self.source.readiness()
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A text that changes, with its followers. A follower that reads too slowly misses updates; they are
/// not queued.
pub(crate) struct Channel {
    latest: watch::Sender<Bytes>,
}

impl Channel {
    pub(crate) fn new() -> Self {
        Self { latest: watch::Sender::new(Bytes::new()) }
    }

    /// Whether there are followers.
    pub(crate) fn has_followers(&self) -> bool {
        self.latest.receiver_count() > 0
    }

    /// Sends an update to all followers.
    pub(crate) fn publish(&self, text: &str) {
        self.latest.send_replace(event(text));
    }

    /// Responds with `now` and then with the updates, if there is a permit left.
    pub(crate) fn follow(&self, now: &str, permits: &Arc<Semaphore>) -> Response<Body> {
        let Ok(permit) = permits.clone().try_acquire_owned() else {
            return plain(StatusCode::SERVICE_UNAVAILABLE, "too many followers; try again later");
        };
        let mut updates = self.latest.subscribe();
        updates.mark_unchanged();
        let subscription = Subscription { now: Some(event(now)), updates, _permit: permit };
        let frames = stream::unfold(subscription, |mut subscription| async move {
            let next = subscription.next().await?;
            Some((Ok::<_, Infallible>(Frame::data(next)), subscription))
        });
        let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
        let kind = HeaderValue::from_static("text/event-stream");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    }
}

struct Subscription {
    now: Option<Bytes>,
    updates: watch::Receiver<Bytes>,
    _permit: OwnedSemaphorePermit,
}

impl Subscription {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(now) = self.now.take() {
            return Some(now);
        }
        self.updates.changed().await.ok()?;
        Some(self.updates.borrow_and_update().clone())
    }
}

/// Encodes a text as an event, with one `data` line per line.
fn event(text: &str) -> Bytes {
    let mut event = String::with_capacity(text.len() + 16);
    for line in text.lines() {
        event.push_str("data: ");
        event.push_str(line);
        event.push('\n');
    }
    event.push('\n');
    event.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_follower_gets_the_state_and_then_the_latest_update() {
        let (channel, permits) = (Channel::new(), Arc::new(Semaphore::new(1)));
        assert!(!channel.has_followers());
        let mut body = channel.follow("now\nand here", &permits).into_body();
        assert!(channel.has_followers());
        let mut next = async || body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(next().await, "data: now\ndata: and here\n\n");
        channel.publish("missed");
        channel.publish("one");
        assert_eq!(next().await, "data: one\n\n");
        let refused = channel.follow("now", &permits);
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        drop(body);
        assert_eq!(channel.follow("now", &permits).status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn events_end_with_the_channel() {
        let (channel, permits) = (Channel::new(), Arc::new(Semaphore::new(1)));
        let mut body = channel.follow("now", &permits).into_body();
        assert!(body.frame().await.is_some());
        drop(channel);
        assert!(body.frame().await.is_none());
    }
}
