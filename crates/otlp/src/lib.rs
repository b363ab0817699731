//! Traces, and what is sent to a collector by OTLP: spans and metrics.
//!
//! A request has a [`TraceContext`], its own or one that came with it (W3C Trace Context). Whether
//! it is sampled is decided at its beginning, so that one that isn't costs an id and nothing more.
//! [`Exporter`] takes finished [`Span`]s, never waits, and sends them by OTLP/HTTP in protobuf;
//! what a collector cannot take in time is dropped and counted.

mod backoff;
mod context;
mod exporter;
mod exposition;
mod messages;
mod sender;
mod settings;
mod span;

pub use context::{SpanId, TraceContext, TraceId};
pub use exporter::{Exporter, ExporterStatistics, Metrics};
pub use exposition::{BadExposition, Family, FamilyKind, Sample, parse_exposition};
pub use settings::{BadEndpoint, Endpoint, TelemetrySettings};
pub use span::{Span, SpanKind, SpanStatus, Value};
