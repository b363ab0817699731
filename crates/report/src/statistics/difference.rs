//! Differences of medians with bootstrap intervals (Efron and Tibshirani, An Introduction to the
//! Bootstrap, chapters 8 and 13).
//!
//! Machines drift and stall. A block holds a sample of each cell, taken close together in time, and
//! whole blocks are resampled: a disturbance of a block affects both sides of the difference alike.
//!
//! For two independent sets the bootstrap distribution is computed instead of drawn. The median of
//! a resample is one of the values, and the binomial distribution gives the probability of each.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ascending;
use super::percentile::{cumulative, nearest_rank};

/// An estimate with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// The estimate.
    pub estimate: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    /// Whether 0 is outside the interval: the difference is significant at the 5 % level.
    pub fn excludes_zero(&self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }

    /// The interval in another unit: all values times `factor`, which must be positive.
    pub fn scaled(&self, factor: f64) -> Self {
        Self { low: self.low * factor, estimate: self.estimate * factor, high: self.high * factor }
    }
}

/// Median of `b` minus median of `a`, two sets that were measured independently. Returns `None` if
/// either has fewer than 6 values.
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

/// Median of the second minus median of the first, over blocks with values of both. Whole blocks
/// are resampled. The same seed gives the same interval. Returns `None` if fewer than 6 blocks have
/// values of both.
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

/// The distribution of the median of a resample: each value with its probability. The median is the
/// value of rank k if at least `rank` of n draws are among the k smallest values, but not among the
/// k - 1 smallest.
fn resampled_median(ascending: &[f64]) -> Vec<(f64, f64)> {
    let n = ascending.len();
    let rank = n.div_ceil(2);
    // P(median <= value k) = P(Binomial(n, k/n) >= rank).
    let below = |k: usize| match k {
        0 => 0.0,
        k if k == n => 1.0,
        k => 1.0 - cumulative(n, k as f64 / n as f64).nth(rank - 1).unwrap_or(1.0),
    };
    // Ranks beyond 8 standard deviations have a negligible probability.
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

/// Values in ascending order, each with its block, so one pass finds the median of any resample.
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

    /// The median by nearest rank if block k occurs `times[k]` times.
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
/// Fewer values do not bound a median at 95 %.
const MIN_PAIRS: usize = 6;
/// With this many, the bounds vary between seeds by about 2 % of the interval's width.
const RESAMPLES: usize = 2_000;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn computed_and_drawn_resamples_have_the_same_distribution() {
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
            let drawn = counts[value as usize] / f64::from(draws);
            assert!((drawn - p).abs() < 0.01, "{value}: {drawn} drawn, {p} computed");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_interval() {
        let blocks: Vec<_> = (0..40)
            .map(|k| (vec![f64::from(k * 7 % 13)], vec![f64::from(k * 5 % 17) + 1.0]))
            .collect();
        let interval = paired_difference_of_medians(&blocks, 3);
        assert!(interval.is_some());
        assert_eq!(interval, paired_difference_of_medians(&blocks, 3));
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
    fn different_levels_of_blocks_do_not_hide_a_constant_difference() {
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
        let unpaired = difference_of_medians(&a, &b).unwrap();
        assert!(!unpaired.excludes_zero(), "{unpaired:?}");
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
