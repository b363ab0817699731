//! Percentiles by nearest rank and their intervals by order statistics.

use crate::statistics::binomial::cumulative;

/// Ascending order for measured values; none of them is NaN.
pub fn ascending(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    values
}

/// Percentile `p` (0 to 1) of ascending values by the nearest rank: a value that was measured,
/// never one between two. `None` if there are no values.
pub fn percentile(ascending: &[f64], p: f64) -> Option<f64> {
    ascending.get(nearest_rank(ascending.len(), p)? - 1).copied()
}

/// The mean: for comparison with others, who publish means. `None` if there are no values.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// From how many samples on a high percentile may be reported: so many that the largest of them
/// lies above it with 95 % confidence. 59 for p95, 299 for p99, 2,995 for p99.9.
pub fn samples_needed(p: f64) -> usize {
    (0.05_f64.ln() / p.ln()).ceil() as usize
}

/// Percentile `p` of ascending values where there are [`samples_needed`].
pub fn reported_percentile(ascending: &[f64], p: f64) -> Option<f64> {
    percentile(ascending, p).filter(|_| ascending.len() >= samples_needed(p))
}

/// 95 % confidence interval of percentile `p` of ascending values: the order statistics between
/// which it lies with at least 95 %, at most 2.5 % to either side (David and Nagaraja, Order
/// Statistics, section 7.1). `None` where so few samples bound it on one side only, or not at all.
pub fn percentile_interval(ascending: &[f64], p: f64) -> Option<(f64, f64)> {
    let (low, high) = ranks(ascending.len(), p)?;
    Some((ascending[low - 1], ascending[high - 1]))
}

/// 95 % confidence interval of the median of ascending values. Below 6 values it is the whole
/// range, which holds less than 95 %.
pub fn median_interval(ascending: &[f64]) -> Option<(f64, f64)> {
    let range = (*ascending.first()?, *ascending.last()?);
    Some(percentile_interval(ascending, 0.5).unwrap_or(range))
}

/// The rank of percentile `p` among `n` values, from 1 on.
pub(crate) fn nearest_rank(n: usize, p: f64) -> Option<usize> {
    // 0.95 of 20 is 19, whatever the last bit of the product says.
    let rank = (p * n as f64 - 1e-9).ceil() as usize;
    (n > 0).then(|| rank.clamp(1, n))
}

/// The ranks, from 1 on, that bound percentile `p` of `n` values.
fn ranks(n: usize, p: f64) -> Option<(usize, usize)> {
    // The value of rank l lies above the percentile when fewer than l values are below it.
    let low = cumulative(n, p).take_while(|below| *below <= TAIL).count();
    let high = cumulative(n, p).position(|below| below >= 1.0 - TAIL)? + 1;
    (low >= 1 && high <= n).then_some((low, high))
}

const TAIL: f64 = 0.025;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn first(n: i32) -> Vec<f64> {
        (1..=n).map(f64::from).collect()
    }

    #[test]
    fn known_ranks() {
        let values = first(100);
        assert_eq!(percentile(&values, 0.5), Some(50.0));
        assert_eq!(percentile(&values, 0.95), Some(95.0));
        assert_eq!(percentile(&values, 1.0), Some(100.0));
        assert_eq!(percentile(&values, 0.0), Some(1.0));
        assert_eq!(percentile(&[], 0.5), None);
        // 0.95 x 20 is 19.000000000000004 or so in binary.
        assert_eq!(percentile(&first(20), 0.95), Some(19.0));
        assert_eq!(mean(&values), Some(50.5));
        assert_eq!(mean(&[]), None);
    }

    #[test]
    fn the_table_of_binomial_order_statistics() {
        let values = first(100);
        assert_eq!(median_interval(&values), Some((40.0, 61.0)));
        assert_eq!(median_interval(&values[..10]), Some((2.0, 9.0)));
        assert_eq!(median_interval(&values[..6]), Some((1.0, 6.0)));
        assert_eq!(percentile_interval(&values[..5], 0.5), None);
        assert_eq!(median_interval(&values[..3]), Some((1.0, 3.0)), "all there is");
        assert_eq!(median_interval(&[]), None);
        // P(Bin(100, .95) <= 89) = 0.011, <= 90 = 0.028; P(<= 98) = 0.963, <= 99 = 0.994.
        assert_eq!(percentile_interval(&values, 0.95), Some((90.0, 100.0)));
        assert_eq!(percentile_interval(&values, 0.99), None, "unbounded above");
    }

    #[test]
    fn high_percentiles_need_their_samples() {
        assert_eq!([0.95, 0.99, 0.999].map(samples_needed), [59, 299, 2_995]);
        assert_eq!(reported_percentile(&first(58), 0.95), None);
        assert_eq!(reported_percentile(&first(59), 0.95), Some(57.0));
    }

    proptest! {
        #[test]
        fn a_percentile_lies_in_its_interval(
            values in proptest::collection::vec(0.0..1e6f64, 1..400),
            p in 0.01..0.999f64,
        ) {
            let values = ascending(values);
            let (low, high) = median_interval(&values).unwrap();
            let median = percentile(&values, 0.5).unwrap();
            prop_assert!(low <= median && median <= high);
            if let Some((low, high)) = percentile_interval(&values, p) {
                let value = percentile(&values, p).unwrap();
                prop_assert!(low <= value && value <= high, "{low} {value} {high}");
            }
        }
    }
}
