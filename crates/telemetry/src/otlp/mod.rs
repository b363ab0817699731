//! Traces, and the export of spans and metrics to a collector by OTLP.
//!
//! A request has a [`TraceContext`], a new one or the client's (W3C Trace Context). Whether it is
//! sampled is decided at its start, so that one that isn't costs an id and nothing more.
//! [`Exporter`] takes finished [`Span`]s, never blocks, and sends them by OTLP/HTTP in protobuf;
//! spans that a collector cannot take in time are dropped and counted.

mod backoff;
mod context;
mod exporter;
mod messages;
mod sender;
mod settings;
mod span;

pub use context::{SpanId, TraceContext, TraceId};
pub use exporter::{Exporter, ExporterStatistics, SnapshotSource};
pub use settings::{BadEndpoint, Endpoint, TelemetrySettings};
pub use span::{Span, SpanKind, SpanStatus, Value};
