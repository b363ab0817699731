//! Tests of the metrics page, the example alerts and dashboard, and the OTLP export.

mod examples;
mod exporter;
mod metrics;
