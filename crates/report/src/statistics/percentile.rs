//! Percentiles by nearest rank and their intervals by order statistics.

/// Sorts measured values, none of which is NaN, in ascending order.
pub fn ascending(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    values
}

/// Percentile `p` (0 to 1) of ascending values by nearest rank: always a measured value, never an
/// interpolated one. Returns `None` if there are no values.
pub fn percentile(ascending: &[f64], p: f64) -> Option<f64> {
    ascending.get(nearest_rank(ascending.len(), p)? - 1).copied()
}

/// The mean, for comparison with published means. Returns `None` if there are no values.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// How many samples a high percentile needs to be reported: with 95 % confidence the largest of
/// them is above the percentile. 59 for p95, 299 for p99, 2,995 for p99.9.
pub fn samples_needed(p: f64) -> usize {
    (0.05_f64.ln() / p.ln()).ceil() as usize
}

/// Percentile `p` of ascending values. Returns `None` if there are fewer than [`samples_needed`].
pub fn reported_percentile(ascending: &[f64], p: f64) -> Option<f64> {
    percentile(ascending, p).filter(|_| ascending.len() >= samples_needed(p))
}

/// 95 % confidence interval of percentile `p` of ascending values: order statistics with at most
/// 2.5 % outside on either side (David and Nagaraja, Order Statistics, section 7.1). Returns `None`
/// if there are too few samples to bound it on both sides.
pub fn percentile_interval(ascending: &[f64], p: f64) -> Option<(f64, f64)> {
    let (low, high) = ranks(ascending.len(), p)?;
    Some((ascending[low - 1], ascending[high - 1]))
}

/// 95 % confidence interval of the median of ascending values. With fewer than 6 values it is the
/// whole range, whose confidence is lower.
pub fn median_interval(ascending: &[f64]) -> Option<(f64, f64)> {
    let range = (*ascending.first()?, *ascending.last()?);
    Some(percentile_interval(ascending, 0.5).unwrap_or(range))
}

/// The value that at least 19 of 20 samples share; `None` if fewer agree. A packet that a busy
/// machine sends late can add a round trip to a sample that is otherwise good.
pub fn consensus(counts: impl ExactSizeIterator<Item = Option<u32>>) -> Option<u32> {
    let all = counts.len();
    let mut counts: Vec<u32> = counts.flatten().collect();
    counts.sort_unstable();
    let median = *counts.get(counts.len() / 2)?;
    let agree = counts.iter().filter(|count| **count == median).count();
    (agree * 20 >= all * 19).then_some(median)
}

/// The rank of percentile `p` among `n` values, from 1 on.
pub(crate) fn nearest_rank(n: usize, p: f64) -> Option<usize> {
    // 0.95 of 20 is 19, whatever the rounding of the product.
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

/// The smallest `k` with P(X <= k) >= `level`, for X of `n` trials with probability `p` each.
///
/// Exact up to rounding. Weights are logarithms, so `n` can be in the millions.
pub fn quantile(n: usize, p: f64, level: f64) -> usize {
    cumulative(n, p).position(|below| below >= level).unwrap_or(n)
}

/// How many of `pairs` A/A comparisons may differ at 95 % by chance, in 39 of 40 runs. If more
/// differ, the two arms are not equal.
pub fn allowed_by_chance(pairs: usize) -> usize {
    quantile(pairs, 0.05, 0.975)
}

/// P(X <= k) for k from 0 to `n`.
pub(crate) fn cumulative(n: usize, p: f64) -> impl Iterator<Item = f64> {
    let odds = p.ln() - (-p).ln_1p();
    let mut log_weight = n as f64 * (-p).ln_1p();
    let mut sum = 0.0;
    (0..=n).map(move |k| {
        sum += log_weight.exp();
        log_weight += ((n - k) as f64).ln() - ((k + 1) as f64).ln() + odds;
        sum
    })
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
    fn consensus_is_what_nearly_all_samples_share() {
        let counts = |odd: usize| {
            let mut counts = vec![Some(3); 20 - odd];
            counts.resize(20, Some(4));
            consensus(counts.into_iter())
        };
        assert_eq!(counts(1), Some(3));
        assert_eq!(counts(2), None);
        assert_eq!(consensus([].into_iter()), None);
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

    #[test]
    fn the_table_of_the_binomial_distribution() {
        // Ten throws of a coin: P(X <= 1) = 11/1024, P(X <= 2) = 56/1024.
        let sums: Vec<f64> = cumulative(10, 0.5).collect();
        assert!((sums[1] - 11.0 / 1024.0).abs() < 1e-12);
        assert!((sums[2] - 56.0 / 1024.0).abs() < 1e-12);
        assert!((sums[10] - 1.0).abs() < 1e-12);
        assert_eq!(quantile(10, 0.5, 0.5), 5);
        assert_eq!(quantile(0, 0.5, 0.5), 0);
    }

    #[test]
    fn one_of_a_few_pairs_may_differ_and_three_of_twenty() {
        assert_eq!(allowed_by_chance(0), 0);
        // P(X <= 0) = 0.95 is not enough, P(X <= 1) = 1 is.
        assert_eq!(allowed_by_chance(1), 1);
        // P(X <= 2) = 0.925 and P(X <= 3) = 0.984 for 20 pairs.
        assert_eq!(allowed_by_chance(20), 3);
    }

    #[test]
    fn many_trials_do_not_underflow() {
        let n = 1_000_000;
        let middle = quantile(n, 0.5, 0.5);
        assert!(middle.abs_diff(n / 2) <= 1, "{middle}");
    }
}
