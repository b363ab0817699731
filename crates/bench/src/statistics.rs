//! Percentiles and their intervals, without any assumption about the distribution.

/// Percentile `p` (0 to 1) of ascending values by the nearest rank; `None` if there are none.
pub fn percentile(ascending: &[f64], p: f64) -> Option<f64> {
    let rank = (p * ascending.len() as f64).ceil() as usize;
    ascending.get(rank.clamp(1, ascending.len().max(1)) - 1).copied()
}

/// 95 % confidence interval of the median of ascending values: the order statistics between which
/// the binomial distribution with p = 1/2 keeps at least 95 % of its weight (David and Nagaraja,
/// Order Statistics, section 7.1). Below 6 values it is the whole range, which holds less.
pub fn median_interval(ascending: &[f64]) -> Option<(f64, f64)> {
    let (first, last) = (*ascending.first()?, *ascending.last()?);
    let n = ascending.len();
    // The largest l with P(X < l) <= 2.5 % for X ~ Binomial(n, 1/2), weights in logarithms.
    let mut log_weight = -(n as f64) * std::f64::consts::LN_2;
    let mut below = 0.0;
    for l in 0..n / 2 {
        below += log_weight.exp();
        if below > 0.025 {
            return match l {
                0 => Some((first, last)),
                _ => Some((ascending[l - 1], ascending[n - l])),
            };
        }
        log_weight += ((n - l) as f64).ln() - ((l + 1) as f64).ln();
    }
    Some((first, last))
}

/// Ascending order for times; none of them is NaN.
pub(crate) fn ascending(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_ranks() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&values, 0.5), Some(50.0));
        assert_eq!(percentile(&values, 0.95), Some(95.0));
        assert_eq!(percentile(&values, 1.0), Some(100.0));
        assert_eq!(percentile(&values, 0.0), Some(1.0));
        assert_eq!(percentile(&[], 0.5), None);
        // The table of binomial order statistics: n = 100 gives ranks 40 and 61.
        assert_eq!(median_interval(&values), Some((40.0, 61.0)));
        assert_eq!(median_interval(&values[..10]), Some((2.0, 9.0)));
        assert_eq!(median_interval(&values[..3]), Some((1.0, 3.0)));
    }

    proptest! {
        #[test]
        fn the_median_lies_in_its_interval(values in proptest::collection::vec(0.0..1e6f64, 1..400)) {
            let values = ascending(values);
            let (low, high) = median_interval(&values).unwrap();
            let median = percentile(&values, 0.5).unwrap();
            prop_assert!(low <= median && median <= high);
        }
    }
}
