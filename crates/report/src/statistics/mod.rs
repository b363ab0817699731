//! Percentiles, intervals and differences of measured times, without assuming a distribution.
//! Times of connections are skewed and contain stalls, so nothing here assumes a normal
//! distribution: intervals of percentiles use order statistics, those of differences the bootstrap.
//!
//! # Examples
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

mod difference;
mod percentile;

pub use difference::{Interval, difference_of_medians, paired_difference_of_medians};
pub use percentile::{
    allowed_by_chance, ascending, consensus, mean, median_interval, percentile,
    percentile_interval, quantile as binomial_quantile, reported_percentile, samples_needed,
};
