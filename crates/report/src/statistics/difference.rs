//! Differences of medians with bootstrap intervals (Efron and Tibshirani, An Introduction to the
//! Bootstrap, chapters 8 and 13).

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::statistics::ascending;
use crate::statistics::binomial::cumulative;
use crate::statistics::percentile::nearest_rank;

/// An estimate and its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// The estimate.
    pub estimate: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    /// Whether 0 lies outside: then the difference is more than chance makes of 19 in 20.
    pub fn excludes_zero(&self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }

    /// The same in another unit: everything times `factor`, which is positive.
    pub fn scaled(&self, factor: f64) -> Self {
        Self { low: self.low * factor, estimate: self.estimate * factor, high: self.high * factor }
    }
}

/// Median of `b` less median of `a`, two sets that were measured independently of each other. The
/// bootstrap's distribution is computed, not drawn: the median of a resample is one of the values,
/// and the binomial distribution says which with what probability. `None` with fewer than 6 values
/// on either side.
pub fn difference_of_medians(a: &[f64], b: &[f64]) -> Option<Interval> {
    if a.len().min(b.len()) < MIN_PAIRS {
        return None;
    }
    let (a, b) = (ascending(a.iter().copied()), ascending(b.iter().copied()));
    let (from, to) = (resampled_median(&a), resampled_median(&b));
    let mut differences: Vec<(f64, f64)> =
        to.iter().flat_map(|(y, q)| from.iter().map(move |(x, p)| (y - x, p * q))).collect();
    differences.sort_unstable_by(|x, y| x.0.total_cmp(&y.0));
    let total: f64 = differences.iter().map(|(_, weight)| weight).sum();
    Some(Interval {
        low: weighted_quantile(&differences, TAIL * total),
        estimate: median(&b)? - median(&a)?,
        high: weighted_quantile(&differences, (1.0 - TAIL) * total),
    })
}

/// Median of the second less median of the first, over blocks that hold values of both, measured
/// close to each other in time. Whole blocks are resampled, so that what disturbs a block disturbs
/// both sides of the difference alike. The same seed gives the same interval. `None` with fewer
/// than 6 blocks that hold both.
pub fn paired_difference_of_medians(
    blocks: &[(Vec<f64>, Vec<f64>)],
    seed: u64,
) -> Option<Interval> {
    if blocks.iter().filter(|(a, b)| !a.is_empty() && !b.is_empty()).count() < MIN_PAIRS {
        return None;
    }
    let a = Ranked::new(blocks.iter().map(|(a, _)| a));
    let b = Ranked::new(blocks.iter().map(|(_, b)| b));
    let once = vec![1; blocks.len()];
    let estimate = b.median(&once)? - a.median(&once)?;
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut times = vec![0_u32; blocks.len()];
    let draw = |_| {
        times.fill(0);
        for _ in 0..blocks.len() {
            times[rng.random_range(0..blocks.len())] += 1;
        }
        Some(b.median(&times)? - a.median(&times)?)
    };
    let drawn = ascending((0..RESAMPLES).filter_map(draw));
    let at = |p| drawn.get(nearest_rank(drawn.len(), p)? - 1).copied();
    Some(Interval { low: at(TAIL)?, estimate, high: at(1.0 - TAIL)? })
}

/// Which of ascending values the median of a resample of them is, with what probability: the value
/// of rank k when at least `rank` of n draws fall on the k least, but not on the k - 1 least.
fn resampled_median(ascending: &[f64]) -> Vec<(f64, f64)> {
    let n = ascending.len();
    let rank = n.div_ceil(2);
    // P(median <= value k) = P(Binomial(n, k/n) >= rank).
    let below = |k: usize| match k {
        0 => 0.0,
        k if k == n => 1.0,
        k => 1.0 - cumulative(n, k as f64 / n as f64).nth(rank - 1).unwrap_or(1.0),
    };
    // Beyond 8 standard deviations of the median's rank nothing is left that could be summed.
    let reach = (8.0 * (n as f64).sqrt() / 2.0).ceil() as usize + 1;
    let first = rank.saturating_sub(reach);
    let mut before = below(first);
    let mut weights = Vec::new();
    for k in first + 1..=(rank + reach).min(n) {
        let until = below(k);
        weights.push((ascending[k - 1], (until - before).max(0.0)));
        before = until;
    }
    weights
}

fn weighted_quantile(ascending: &[(f64, f64)], weight: f64) -> f64 {
    let mut sum = 0.0;
    let found = ascending.iter().find(|(_, each)| {
        sum += each;
        sum >= weight
    });
    found.or(ascending.last()).map_or(0.0, |(value, _)| *value)
}

fn median(ascending: &[f64]) -> Option<f64> {
    crate::statistics::percentile(ascending, 0.5)
}

/// Values in ascending order, each with its block: the median of any resample of blocks is then
/// found in one pass.
struct Ranked(Vec<(f64, usize)>);

impl Ranked {
    fn new<'a>(blocks: impl Iterator<Item = &'a Vec<f64>>) -> Self {
        let mut values: Vec<(f64, usize)> = blocks
            .enumerate()
            .flat_map(|(block, values)| values.iter().map(move |value| (*value, block)))
            .collect();
        values.sort_unstable_by(|x, y| x.0.total_cmp(&y.0));
        Self(values)
    }

    /// The median by nearest rank when block k is there `times[k]` times.
    fn median(&self, times: &[u32]) -> Option<f64> {
        let count: u32 = self.0.iter().map(|(_, block)| times[*block]).sum();
        let rank = count.div_ceil(2);
        let mut seen = 0;
        let at = self.0.iter().find(|(_, block)| {
            seen += times[*block];
            seen >= rank && rank > 0
        });
        at.map(|(value, _)| *value)
    }
}

const TAIL: f64 = 0.025;
/// Fewer values say nothing at 95 % about a median.
const MIN_PAIRS: usize = 6;
/// The ends of the interval then vary by a fiftieth of its width from seed to seed.
const RESAMPLES: usize = 2_000;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_computed_distribution_is_that_of_drawn_resamples() {
        let values: Vec<f64> = (0..15).map(f64::from).collect();
        let computed = resampled_median(&values);
        assert!((computed.iter().map(|(_, p)| p).sum::<f64>() - 1.0).abs() < 1e-9);
        let mut rng = SmallRng::seed_from_u64(1);
        let draws = 40_000;
        let mut counts = [0_f64; 15];
        for _ in 0..draws {
            let resample = ascending((0..15).map(|_| values[rng.random_range(0..15)]));
            counts[resample[7] as usize] += 1.0;
        }
        for (value, p) in computed {
            let seen = counts[value as usize] / f64::from(draws);
            assert!((seen - p).abs() < 0.01, "{value}: {seen} drawn, {p} computed");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_interval() {
        let blocks: Vec<_> = (0..40)
            .map(|k| (vec![f64::from(k * 7 % 13)], vec![f64::from(k * 5 % 17) + 1.0]))
            .collect();
        let one = paired_difference_of_medians(&blocks, 3);
        assert!(one.is_some());
        assert_eq!(one, paired_difference_of_medians(&blocks, 3));
    }

    #[test]
    fn too_few_values_have_no_interval() {
        let few = vec![1.0; 5];
        assert_eq!(difference_of_medians(&few, &[1.0; 50]), None);
        let mut blocks = vec![(vec![1.0], vec![2.0]); 5];
        blocks.extend(vec![(vec![1.0], vec![]); 50]);
        assert_eq!(paired_difference_of_medians(&blocks, 1), None);
    }

    #[test]
    fn an_unmistakable_difference_is_found_and_a_disturbed_block_hits_both_sides() {
        // Every block has its own level, far apart from each other; within it, b is 1 more.
        let blocks: Vec<_> = (0..60)
            .map(|k| {
                let level = f64::from(k * 37 % 60);
                (vec![level], vec![level + 1.0])
            })
            .collect();
        let paired = paired_difference_of_medians(&blocks, 5).unwrap();
        assert_eq!((paired.low, paired.estimate, paired.high), (1.0, 1.0, 1.0));
        let (a, b): (Vec<f64>, Vec<f64>) = blocks.iter().map(|(a, b)| (a[0], b[0])).unzip();
        let apart = difference_of_medians(&a, &b).unwrap();
        assert!(!apart.excludes_zero(), "{apart:?}");
    }

    proptest! {
        #[test]
        fn the_estimate_lies_in_the_interval(
            a in proptest::collection::vec(0.0..100f64, 6..80),
            b in proptest::collection::vec(0.0..100f64, 6..80),
            seed in any::<u64>(),
        ) {
            let interval = difference_of_medians(&a, &b).unwrap();
            prop_assert!(interval.low <= interval.estimate, "{interval:?}");
            prop_assert!(interval.estimate <= interval.high, "{interval:?}");
            let blocks: Vec<_> = a.iter().zip(&b).map(|(a, b)| (vec![*a], vec![*b])).collect();
            let paired = paired_difference_of_medians(&blocks, seed).unwrap();
            prop_assert!(paired.low <= paired.estimate && paired.estimate <= paired.high);
        }
    }
}
