//! The binomial distribution: how many of n are below a percentile, or differ by chance.

/// The least `k` with P(X <= k) >= `level`, for X of `n` trials with probability `p` each.
///
/// Exact up to rounding, with weights in logarithms, so that `n` may be in the millions.
pub fn quantile(n: usize, p: f64, level: f64) -> usize {
    cumulative(n, p).position(|below| below >= level).unwrap_or(n)
}

/// How many of `pairs` A/A comparisons at 95 % may seem to differ, all but 1 in 40 times. More of
/// them say that something beside chance tells the two arms apart.
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

#[cfg(test)]
mod tests {
    use super::*;

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
