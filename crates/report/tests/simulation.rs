//! Coverage of the intervals on simulated times of connections: skewed, with stalls.

use firstflight_report::statistics::{
    Interval, allowed_by_chance, ascending, difference_of_medians, paired_difference_of_medians,
    percentile_interval,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// A skewed distribution whose percentiles are known.
#[derive(Clone, Copy, Debug)]
enum Skewed {
    /// Times between chance events; mean 1.
    Exponential,
    /// The exponential of a normal variable with sigma 1.
    LogNormal,
    /// A heavy tail, with a barely finite variance.
    Pareto,
}

impl Skewed {
    const ALL: [Self; 3] = [Self::Exponential, Self::LogNormal, Self::Pareto];

    /// The value at probability `u`: the inverse of the distribution function.
    fn at(self, u: f64) -> f64 {
        match self {
            Self::Exponential => -(1.0 - u).ln(),
            Self::LogNormal => normal_at(u).exp(),
            Self::Pareto => (1.0 - u).powf(-1.0 / 2.5),
        }
    }

    fn draw(self, rng: &mut SmallRng) -> f64 {
        self.at(rng.random_range(1e-12..1.0))
    }

    fn sample(self, rng: &mut SmallRng, n: usize) -> Vec<f64> {
        (0..n).map(|_| self.draw(rng)).collect()
    }
}

/// The normal distribution's inverse, by bisection.
fn normal_at(u: f64) -> f64 {
    // 40 halvings of [-9, 9] give 1e-11.
    let (mut low, mut high) = (-9.0_f64, 9.0_f64);
    for _ in 0..40 {
        let middle = (low + high) / 2.0;
        if normal_below(middle) < u { low = middle } else { high = middle }
    }
    (low + high) / 2.0
}

/// P(Z <= z), Abramowitz and Stegun 26.2.17: error below 7.5e-8.
fn normal_below(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let series = t
        * (0.319_381_530
            + t * (-0.356_563_782
                + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    let tail = (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt() * series;
    if z >= 0.0 { 1.0 - tail } else { tail }
}

const REPETITIONS: usize = 2_000;

/// The share of repetitions whose interval contains the true value.
fn share(mut holds: impl FnMut(&mut SmallRng) -> bool, seed: u64) -> f64 {
    let mut rng = SmallRng::seed_from_u64(seed);
    let held = (0..REPETITIONS).filter(|_| holds(&mut rng)).count();
    held as f64 / REPETITIONS as f64
}

fn holds(interval: Interval, truth: f64) -> bool {
    interval.low <= truth && truth <= interval.high
}

#[test]
fn percentile_intervals_hold_the_percentile_19_times_in_20() {
    for (seed, skewed) in Skewed::ALL.into_iter().enumerate() {
        for (p, n) in [(0.5, 100), (0.95, 200), (0.99, 1_000)] {
            let truth = skewed.at(p);
            let covered = share(
                |rng| {
                    let values = ascending(skewed.sample(rng, n));
                    let (low, high) = percentile_interval(&values, p).unwrap();
                    low <= truth && truth <= high
                },
                seed as u64,
            );
            // At least 95 % by construction, and not much more: ranks are whole numbers.
            assert!((0.94..=0.985).contains(&covered), "{skewed:?} p{p}: {covered}");
        }
    }
}

#[test]
fn differences_of_independent_medians_are_held_19_times_in_20() {
    for (seed, skewed) in Skewed::ALL.into_iter().enumerate() {
        let covered = share(
            |rng| {
                let a = skewed.sample(rng, 100);
                let b: Vec<f64> = skewed.sample(rng, 120).iter().map(|x| x + 0.3).collect();
                holds(difference_of_medians(&a, &b).unwrap(), 0.3)
            },
            seed as u64 + 10,
        );
        assert!((0.93..=0.97).contains(&covered), "{skewed:?}: {covered}");
    }
}

#[test]
fn differences_over_blocks_are_held_19_times_in_20() {
    for (seed, skewed) in Skewed::ALL.into_iter().enumerate() {
        let covered = share(
            |rng| {
                // A disturbance of the block that both sides share.
                let blocks: Vec<_> = (0..100)
                    .map(|_| {
                        let shared = skewed.draw(rng);
                        let (a, b) = (skewed.draw(rng), skewed.draw(rng));
                        (vec![shared + a], vec![shared + b + 0.3])
                    })
                    .collect();
                let interval = paired_difference_of_medians(&blocks, rng.random()).unwrap();
                holds(interval, 0.3)
            },
            seed as u64 + 20,
        );
        assert!((0.93..=0.97).contains(&covered), "{skewed:?}: {covered}");
    }
}

/// A connection of three round trips of 20 ms as the lab sees them: tenths of a millisecond of
/// computing and waking, skewed, and a stall of some milliseconds in 3 of 100.
fn connection(rng: &mut SmallRng) -> f64 {
    let stall = if rng.random_bool(0.03) { rng.random_range(1.0..8.0) } else { 0.0 };
    60.9 + 0.25 * Skewed::LogNormal.draw(rng) + stall
}

/// Blocks of a run: the machine drifts, slowly and by jumps, under both arms alike.
fn blocks(rng: &mut SmallRng, count: usize, extra: f64) -> Vec<(Vec<f64>, Vec<f64>)> {
    let mut drift = 0.0;
    let block = |_| {
        drift += rng.random_range(-0.05..0.05);
        let jump = if rng.random_bool(0.02) { 2.0 } else { 0.0 };
        let mut arm = |more: f64| vec![connection(rng) + drift + jump + more];
        (arm(0.0), arm(extra))
    };
    (0..count).map(block).collect()
}

#[test]
fn twenty_aa_runs_claim_no_more_than_chance_does() {
    let pairs = 6;
    let mut rng = SmallRng::seed_from_u64(31);
    let claims = |rng: &mut SmallRng| {
        let differs = |_: &usize| {
            let blocks = blocks(rng, 100, 0.0);
            paired_difference_of_medians(&blocks, rng.random()).unwrap().excludes_zero()
        };
        (0..pairs).filter(differs).count()
    };
    let runs: Vec<usize> = (0..20).map(|_| claims(&mut rng)).collect();
    let claimed: usize = runs.iter().sum();
    assert!(claimed <= allowed_by_chance(20 * pairs), "{claimed} of {}: {runs:?}", 20 * pairs);
    let beyond = runs.iter().filter(|run| **run > allowed_by_chance(pairs)).count();
    assert!(beyond <= 1, "{runs:?}");
}

#[test]
fn a_millisecond_at_20_ms_is_found_with_200_samples() {
    let mut rng = SmallRng::seed_from_u64(41);
    for run in 0..200 {
        let blocks = blocks(&mut rng, 200, 1.0);
        let found = paired_difference_of_medians(&blocks, run).unwrap();
        assert!(found.low > 0.0 && found.high < 2.0, "run {run}: {found:?}");
        assert!((0.7..1.3).contains(&found.estimate), "run {run}: {found:?}");
    }
}
