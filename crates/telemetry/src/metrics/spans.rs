//! Spans on their way to a collector.

use super::label::LabelInfo;
use super::{Description, Snapshot};

/// What became of spans.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpanReading {
    /// Taken by the collector.
    pub sent: u64,
    /// Dropped, because too many waited or the collector did not take them.
    pub dropped: u64,
}

/// `None`: spans go nowhere, and the metric is without series.
pub(super) fn collect(spans: Option<&SpanReading>, snapshot: &mut Snapshot) {
    let results = spans.map(|spans| {
        [("sent".into(), spans.sent as f64), ("dropped".into(), spans.dropped as f64)]
    });
    snapshot.numbers(&SPANS, RESULT, results.into_iter().flatten());
}

const RESULT: LabelInfo = LabelInfo {
    name: "result",
    values: &[
        ("sent", "Taken by the collector."),
        ("dropped", "Too many waited, or the collector did not take them for a minute."),
    ],
    meaning: "",
};

static SPANS: Description = Description::counter(
    "firstflight_spans_total",
    "Spans of sampled requests, by what became of them; without telemetry.otlp there is none.",
    "Drops: the collector is away or too slow, or telemetry.traces_sampled is too high for it.",
);
