//! The metrics as scrapers, readers and the examples' alerts meet them.

mod examples;
mod metrics;
