//! Percentiles, intervals and differences of measured times, without assuming a distribution.
//!
//! Times of connections are skewed and have stalls in them, so nothing here rests on a normal
//! distribution: percentiles have intervals by order statistics, and differences by the bootstrap.
//!
//! ```
//! use firstflight_report::statistics::{ascending, median_interval, percentile, samples_needed};
//!
//! let times = ascending((1..=99).map(f64::from));
//! assert_eq!(percentile(&times, 0.5), Some(50.0));
//! let (low, high) = median_interval(&times).expect("some were measured");
//! assert!(low < 50.0 && 50.0 < high);
//! // A 99th percentile takes more samples than these.
//! assert_eq!(samples_needed(0.99), 299);
//! ```

mod binomial;
mod difference;
mod percentile;

pub use binomial::{allowed_by_chance, quantile as binomial_quantile};
pub use difference::{Interval, difference_of_medians, paired_difference_of_medians};
pub use percentile::{
    ascending, mean, median_interval, percentile, percentile_interval, reported_percentile,
    samples_needed,
};
