//! The figures of a cell, from its samples.

use crate::Figures;
use crate::statistics::{
    ascending, mean, median_interval, percentile, percentile_interval, reported_percentile,
};

/// The figures of a distribution of milliseconds; `None` if there is nothing in it.
pub fn figures(values: impl IntoIterator<Item = f64>) -> Option<Figures> {
    let values = ascending(values);
    let interval = |p, reported: Option<f64>| reported.and(percentile_interval(&values, p));
    let high = |p| {
        let reported = reported_percentile(&values, p);
        (reported, interval(p, reported))
    };
    let ((p95_ms, p95_interval_ms), (p99_ms, p99_interval_ms)) = (high(0.95), high(0.99));
    Some(Figures {
        min_ms: *values.first()?,
        p50_ms: percentile(&values, 0.5)?,
        p50_interval_ms: median_interval(&values)?,
        p95_ms,
        p95_interval_ms,
        p99_ms,
        p99_interval_ms,
        p999_ms: reported_percentile(&values, 0.999),
        max_ms: *values.last()?,
        mean_ms: mean(&values)?,
    })
}

/// What all but one in twenty samples took, if they agree so far. A packet that a busy machine
/// sends late can take a round trip more without being wrong;
/// [`Sample::round_trips`](crate::Sample::round_trips) has each.
pub fn usual(counts: impl ExactSizeIterator<Item = Option<u32>>) -> Option<u32> {
    let all = counts.len();
    let mut counts: Vec<u32> = counts.flatten().collect();
    counts.sort_unstable();
    let median = *counts.get(counts.len() / 2)?;
    let agree = counts.iter().filter(|count| **count == median).count();
    (agree * 20 >= all * 19).then_some(median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_what_the_samples_bear() {
        let few = figures((1..=58).map(f64::from)).unwrap();
        assert_eq!((few.min_ms, few.p50_ms, few.max_ms, few.mean_ms), (1.0, 29.0, 58.0, 29.5));
        assert_eq!((few.p95_ms, few.p95_interval_ms), (None, None));
        let many = figures((1..=3_000).map(f64::from)).unwrap();
        assert_eq!((many.p95_ms, many.p99_ms), (Some(2_850.0), Some(2_970.0)));
        assert_eq!(many.p999_ms, Some(2_997.0));
        let (low, high) = many.p99_interval_ms.unwrap();
        assert!(low < 2_970.0 && 2_970.0 < high);
        assert!(figures([]).is_none());
    }

    #[test]
    fn round_trips_are_what_nearly_all_agree_on() {
        let counts = |odd: usize| {
            let mut counts = vec![Some(3); 20 - odd];
            counts.resize(20, Some(4));
            usual(counts.into_iter())
        };
        assert_eq!(counts(1), Some(3));
        assert_eq!(counts(2), None);
        assert_eq!(usual([].into_iter()), None);
    }
}
