//! Metrics as scrapers and readers get them, the example alerts and dashboard, and the OTLP export.

mod examples;
mod exporter;
mod metrics;
