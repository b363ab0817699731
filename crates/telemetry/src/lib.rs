//! What a server reports about its work.
//!
//! - [`metrics`]: counters, gauges and histograms by Prometheus' conventions. Counting is a relaxed
//!   atomic addition; the state of keys, store and register is read when a snapshot is taken.
//! - [`otlp`]: traces, and their export beside the metrics to an OpenTelemetry collector.
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
