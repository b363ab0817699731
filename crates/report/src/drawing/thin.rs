//! Distributions thinned for drawing: quantiles instead of every sample.

/// Points (value, share of samples up to it) of ascending values, at most `most` of them; the least
/// and the largest are always among them.
pub(crate) fn distribution(ascending: &[f64], most: usize) -> Vec<(f64, f64)> {
    let n = ascending.len();
    let most = most.max(2);
    let rank = |place: usize| match n <= most {
        true => place,
        // Both ends get more points than the middle, for tails are what one looks for.
        false => {
            let share = place as f64 / (most - 1) as f64;
            let bent = 0.5 - 0.5 * (std::f64::consts::PI * share).cos();
            (bent * (n - 1) as f64).round() as usize
        }
    };
    let mut points: Vec<(f64, f64)> = (0..n.min(most))
        .map(rank)
        .map(|rank| (ascending[rank], (rank + 1) as f64 / n as f64))
        .collect();
    points.dedup();
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_values_stay_and_many_are_thinned() {
        assert_eq!(distribution(&[1.0, 2.0], 200), [(1.0, 0.5), (2.0, 1.0)]);
        assert_eq!(distribution(&[], 200), []);
        let many: Vec<f64> = (1..=20_000).map(f64::from).collect();
        let points = distribution(&many, 120);
        assert!(points.len() <= 120);
        assert_eq!((points[0].0, points[points.len() - 1]), (1.0, (20_000.0, 1.0)));
        assert!(points.iter().all(|(value, share)| (value / 20_000.0 - share).abs() < 1e-9));
    }
}
