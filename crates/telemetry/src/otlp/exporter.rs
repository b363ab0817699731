//! Exports finished spans and metrics to the collector.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};
use tracing::{debug, warn};

use crate::metrics::Snapshot;
use crate::otlp::sender::Backoff;
use crate::otlp::sender::{Refusal, Sender};
use crate::otlp::{Endpoint, Span, TelemetrySettings, messages};

/// Sends spans, and metrics at an interval, from its own task. Cheap to clone.
#[derive(Clone)]
pub struct Exporter {
    spans: mpsc::Sender<Message>,
    counts: Arc<Counts>,
}

/// How many spans were exported and dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExporterStatistics {
    /// Accepted by the collector.
    pub sent: u64,
    /// Dropped, because the queue was full or the collector did not accept them.
    pub dropped: u64,
}

/// Reads the metrics of this process.
pub type SnapshotSource = Box<dyn Fn() -> Snapshot + Send>;

enum Message {
    Span(Box<Span>),
    Flush(oneshot::Sender<()>),
}

#[derive(Default)]
struct Counts {
    sent: AtomicU64,
    dropped: AtomicU64,
}

impl Exporter {
    /// Starts to export to `endpoint`; needs a tokio runtime. `instance` identifies this process
    /// within its service (`service.instance.id`).
    pub fn start(
        endpoint: Endpoint,
        settings: &TelemetrySettings,
        instance: &str,
        metrics: SnapshotSource,
    ) -> (Self, JoinHandle<()>) {
        let (spans, incoming) = mpsc::channel(settings.queue.max(1));
        let counts = Arc::new(Counts::default());
        let resource = [
            ("service.name", settings.service_name.as_str()),
            ("service.version", env!("CARGO_PKG_VERSION")),
            ("service.instance.id", instance),
        ];
        let resource = resource.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let task = Task {
            endpoint,
            sender: Sender::new(),
            resource,
            counts: counts.clone(),
            metrics,
            started: SystemTime::now(),
            failing: FailingSignals::default(),
        };
        let running = tokio::spawn(task.run(incoming, settings.metrics_interval));
        (Self { spans, counts }, running)
    }

    /// Queues a finished span. Never blocks: if the queue is full, the span is dropped.
    pub fn send(&self, span: Span) {
        if self.spans.try_send(Message::Span(Box::new(span))).is_err() {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends queued spans, within `limit`.
    pub async fn flush(&self, limit: Duration) {
        let flushing = async {
            let (done, wait) = oneshot::channel();
            if self.spans.send(Message::Flush(done)).await.is_ok() {
                let _ = wait.await;
            }
        };
        let _ = timeout(limit, flushing).await;
    }

    /// Returns the statistics of spans so far.
    pub fn statistics(&self) -> ExporterStatistics {
        ExporterStatistics {
            sent: self.counts.sent.load(Ordering::Relaxed),
            dropped: self.counts.dropped.load(Ordering::Relaxed),
        }
    }
}

struct Task {
    endpoint: Endpoint,
    sender: Sender,
    resource: Vec<(String, String)>,
    counts: Arc<Counts>,
    metrics: SnapshotSource,
    started: SystemTime,
    failing: FailingSignals,
}

/// The signals whose last export failed, so that a failure is logged once. A collector may accept
/// only some signals.
#[derive(Default)]
struct FailingSignals(HashSet<&'static str>);

impl FailingSignals {
    /// Notes the result of an export. Returns whether it differs from the last of this signal.
    fn note(&mut self, signal: &'static str, failed: bool) -> bool {
        if failed { self.0.insert(signal) } else { self.0.remove(signal) }
    }
}

impl Task {
    async fn run(mut self, mut incoming: mpsc::Receiver<Message>, metrics: Option<Duration>) {
        // Disabled metrics have a very long interval.
        let period = metrics.unwrap_or(NEVER);
        let mut ticks = interval_at(Instant::now() + period, period);
        // Retries of spans may take longer than an interval.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut waiting = Vec::new();
        let mut batch_started: Option<Instant> = None;
        loop {
            let due = batch_started
                .map_or_else(|| Instant::now() + NEVER, |started| started + BATCH_DELAY);
            tokio::select! {
                message = incoming.recv() => match message {
                    None => break,
                    Some(Message::Span(span)) => {
                        batch_started.get_or_insert_with(Instant::now);
                        waiting.push(*span);
                        if waiting.len() < MAX_BATCH_SPANS {
                            continue;
                        }
                    }
                    Some(Message::Flush(done)) => {
                        self.send_spans(&mut waiting).await;
                        if metrics.is_some() {
                            self.send_metrics().await;
                        }
                        batch_started = None;
                        let _ = done.send(());
                        continue;
                    }
                },
                () = tokio::time::sleep_until(due) => {}
                _ = ticks.tick() => {
                    self.send_metrics().await;
                    continue;
                }
            }
            self.send_spans(&mut waiting).await;
            batch_started = None;
        }
        self.send_spans(&mut waiting).await;
    }

    async fn send_spans(&mut self, waiting: &mut Vec<Span>) {
        if waiting.is_empty() {
            return;
        }
        let count = waiting.len() as u64;
        let message = messages::traces(&self.resource, waiting);
        waiting.clear();
        let sent = self.deliver("traces", &message).await;
        let counter = if sent { &self.counts.sent } else { &self.counts.dropped };
        counter.fetch_add(count, Ordering::Relaxed);
    }

    /// Metrics are not retried: the next export contains them too.
    async fn send_metrics(&mut self) {
        let times = (self.started, SystemTime::now());
        let message = messages::metrics(&self.resource, &(self.metrics)(), times);
        let signal = "metrics";
        let sent = self.sender.post(&self.endpoint.signal(signal), &message).await;
        self.note(signal, sent.err());
    }

    /// Retries until the collector has accepted the message, has rejected it, or the retry time is
    /// over.
    async fn deliver(&mut self, signal: &'static str, message: &impl prost::Message) -> bool {
        let mut backoff = Backoff::new();
        let url = self.endpoint.signal(signal);
        loop {
            let started = Instant::now();
            let Err(refusal) = self.sender.post(&url, message).await else {
                self.note(signal, None);
                return true;
            };
            let pause = match &refusal {
                Refusal::Later { after, .. } => {
                    backoff.pause(started.elapsed(), *after, rand::random())
                }
                Refusal::Never(_) => None,
            };
            self.note(signal, Some(refusal));
            match pause {
                Some(pause) => sleep(pause).await,
                None => return false,
            }
        }
    }

    fn note(&mut self, signal: &'static str, refusal: Option<Refusal>) {
        let endpoint = &self.endpoint;
        match (&refusal, self.failing.note(signal, refusal.is_some())) {
            (Some(refusal), true) => {
                warn!("the collector at {endpoint} does not accept {signal}: {refusal}");
            }
            (Some(refusal), false) => debug!("the collector at {endpoint}, {signal}: {refusal}"),
            (None, true) => warn!("the collector at {endpoint} accepts {signal} again"),
            (None, false) => {}
        }
    }
}

/// Maximum number of spans in one message.
const MAX_BATCH_SPANS: usize = 512;

/// How long the first span of a batch waits for others.
const BATCH_DELAY: Duration = Duration::from_secs(1);

const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_signal_fails_and_recovers_by_itself() {
        let mut failing = FailingSignals::default();
        let results = [("metrics", true), ("traces", false), ("metrics", true), ("traces", false)];
        let changes = results.map(|(signal, failed)| failing.note(signal, failed));
        assert_eq!(changes, [true, false, false, false]);
        assert!(failing.note("metrics", false));
    }
}
