//! Percentiles, intervals and differences of measured times, without assuming a distribution.
//!
//! Sans-IO: numbers in, numbers out. Times of connections are skewed and have stalls in them, so
//! nothing here rests on a normal distribution: percentiles have intervals by order statistics,
//! and differences by the bootstrap.

mod binomial;
mod difference;
mod percentile;

pub use binomial::{allowed_by_chance, quantile as binomial_quantile};
pub use difference::{Interval, difference_of_medians, paired_difference_of_medians};
pub use percentile::{
    ascending, mean, median_interval, percentile, percentile_interval, reported_percentile,
    samples_needed,
};
