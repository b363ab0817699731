//! What a server tells those who run it.
//!
//! [`metrics`]: counters, gauges and histograms by Prometheus' conventions. Counting is a relaxed
//! atomic addition; what is known elsewhere (keys, store, register) is read when somebody asks.

pub mod metrics;
