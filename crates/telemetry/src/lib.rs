//! Metrics of a server, traces of its requests, and their export by OTLP.
//!
//! ```text
//! metrics      counters, gauges and histograms by the conventions of Prometheus, and their page
//! otlp         spans, trace contexts, and the export of spans and metrics to a collector
//! ```
//!
//! # Examples
//!
//! ```
//! use firstflight_telemetry::metrics::{Format, Metrics, Readings, Transport};
//!
//! let metrics = Metrics::default();
//! metrics.connections.accepted.count(Transport::Quic);
//!
//! let snapshot = metrics.snapshot(&Readings::default());
//! assert_eq!(snapshot.sum("firstflight_connections_total", &[("transport", "quic")]), 1.0);
//!
//! let page = snapshot.encode(Format::Prometheus);
//! assert!(page.contains(r#"firstflight_connections_total{transport="quic"} 1"#));
//! ```

pub mod metrics;
pub mod otlp;
