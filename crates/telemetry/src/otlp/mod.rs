//! Traces, and the export of spans and metrics to a collector by OTLP.
//!
//! A request has a [`TraceContext`]: a new one, or the client's. Sampling is decided at the start of
//! the request, so an unsampled request costs one id. [`Exporter`] takes finished [`Span`]s, never
//! blocks, and sends them by OTLP/HTTP in protobuf. Spans that the collector cannot take in time are
//! dropped and counted.
//!
//! # Why not the OpenTelemetry SDK
//!
//! The messages come from `opentelemetry-proto`; queue, batches and retries are here. The SDK's HTTP
//! exporter brings a client with its own TLS library, and its pipeline brings a second set of metrics.
//! The requirements are small and tested: no request waits, memory is bounded, losses are counted.
//! Exported metrics come from the same [`Snapshot`](crate::metrics::Snapshot) that scrapers get.

mod exporter;
mod messages;
mod sender;
mod settings;
mod trace;

pub use exporter::{Exporter, ExporterStatistics, SnapshotSource};
pub use settings::{Endpoint, InvalidEndpoint, TelemetrySettings};
pub use trace::{AttributeValue, Span, SpanId, SpanKind, SpanStatus, TraceContext, TraceId};
