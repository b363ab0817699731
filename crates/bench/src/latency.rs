use firstflight_report::statistics::samples_needed;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Latency of many connections, in milliseconds. High percentiles are given only from as many
/// samples on as it takes for the largest to lie above them with 95 % confidence.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Samples.
    pub count: u64,
    /// Least.
    pub min_ms: f64,
    /// Median.
    pub p50_ms: f64,
    /// 90th percentile.
    pub p90_ms: f64,
    /// 95th percentile; from 59 samples on.
    pub p95_ms: Option<f64>,
    /// 99th percentile; from 299 samples on.
    pub p99_ms: Option<f64>,
    /// 99.9th percentile; from 2,995 samples on.
    pub p999_ms: Option<f64>,
    /// Worst.
    pub max_ms: f64,
}

impl Latency {
    /// Reads a histogram of nanoseconds; `None` when it is empty.
    pub(crate) fn of(histogram: &Histogram<u64>) -> Option<Self> {
        let count = histogram.len();
        let at = |p| ms(histogram.value_at_quantile(p));
        (count > 0).then(|| Self {
            count,
            min_ms: ms(histogram.min()),
            p50_ms: at(0.5),
            p90_ms: at(0.9),
            p95_ms: reported(histogram, 0.95),
            p99_ms: reported(histogram, 0.99),
            p999_ms: reported(histogram, 0.999),
            max_ms: ms(histogram.max()),
        })
    }
}

/// A percentile in milliseconds, if there are samples enough for it.
pub(crate) fn reported(histogram: &Histogram<u64>, p: f64) -> Option<f64> {
    let enough = histogram.len() >= samples_needed(p) as u64;
    enough.then(|| ms(histogram.value_at_quantile(p)))
}

/// A histogram of nanoseconds up to an hour, true to 0.1 %.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1_000, 3_600_000_000_000, 3).expect("bounds that make sense")
}

/// The percentiles 0 to 100 in steps of one, in milliseconds: enough to draw the distribution.
pub(crate) fn percentiles(histogram: &Histogram<u64>) -> Vec<f64> {
    if histogram.is_empty() {
        return Vec::new();
    }
    let at = |p: u32| match p {
        0 => ms(histogram.min()),
        100 => ms(histogram.max()),
        p => ms(histogram.value_at_quantile(f64::from(p) / 100.0)),
    };
    (0..=100).map(at).collect()
}

/// Nanoseconds as milliseconds.
pub(crate) fn ms(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(count: u64) -> Latency {
        let mut histogram = histogram();
        (1..=count).for_each(|i| histogram.saturating_record(i * 1_000_000));
        Latency::of(&histogram).unwrap()
    }

    #[test]
    fn percentiles_wait_for_their_samples() {
        let given = |count| {
            let latency = of(count);
            [latency.p95_ms, latency.p99_ms, latency.p999_ms].map(|p| p.is_some())
        };
        assert_eq!(given(58), [false, false, false]);
        assert_eq!(given(59), [true, false, false]);
        assert_eq!(given(298), [true, false, false]);
        assert_eq!(given(299), [true, true, false]);
        assert_eq!(given(2994), [true, true, false]);
        assert_eq!(given(2995), [true, true, true]);
    }

    #[test]
    fn values_are_true_to_a_thousandth() {
        let latency = of(1000);
        for (value, wanted) in
            [(latency.min_ms, 1.0), (latency.p50_ms, 500.0), (latency.max_ms, 1000.0)]
        {
            assert!((value / wanted - 1.0).abs() < 0.002, "{latency:?}");
        }
        assert_eq!(Latency::of(&histogram()), None);
    }

    #[test]
    fn an_hour_and_more_is_kept_as_an_hour() {
        let mut histogram = histogram();
        histogram.saturating_record(u64::MAX);
        assert!(ms(histogram.max()) >= 3.6e6);
        assert_eq!(percentiles(&histogram).len(), 101);
    }
}
