//! Random distributions of delays, in milliseconds.

use std::f64::consts::TAU;
use std::fmt;

use rand::RngExt;
use rand::rngs::StdRng;

/// The deviation of a delay from its base, in milliseconds. A negative value shortens the delay, at
/// most to zero.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Distribution {
    /// Gaussian around the base.
    Normal {
        /// Standard deviation in milliseconds.
        sd_ms: f64,
    },
    /// Uniform around the base.
    Uniform {
        /// The maximum deviation in milliseconds.
        spread_ms: f64,
    },
    /// A heavy tail above the base (Lomax: a Pareto distribution that starts at zero). Its median
    /// is `scale_ms * (2^(1/shape) - 1)`; with a shape of 2 or less the variance is only bounded by
    /// `longest_ms`.
    Pareto {
        /// Scale in milliseconds.
        scale_ms: f64,
        /// Tail index: the smaller, the heavier.
        shape: f64,
        /// The maximum in milliseconds; larger values are clipped.
        longest_ms: f64,
    },
    /// Measured quantiles with linear interpolation: pairs of probability and milliseconds, both
    /// ascending, from probability 0 to 1.
    Quantiles {
        /// The pairs.
        points: Vec<(f64, f64)>,
    },
}

impl Distribution {
    /// Draws the next value, in milliseconds.
    pub(crate) fn draw(&self, random: &mut StdRng) -> f64 {
        let uniform: f64 = random.random();
        match self {
            // Box and Muller, "A note on the generation of random normal deviates", 1958. Zero is
            // excluded because it has no logarithm.
            Self::Normal { sd_ms } => {
                let angle: f64 = random.random();
                sd_ms * (-2.0 * (1.0 - uniform).ln()).sqrt() * (TAU * angle).cos()
            }
            Self::Uniform { spread_ms } => spread_ms * (2.0 * uniform - 1.0),
            Self::Pareto { scale_ms, shape, longest_ms } => {
                (scale_ms * ((1.0 - uniform).powf(-1.0 / shape) - 1.0)).min(*longest_ms)
            }
            Self::Quantiles { points } => interpolate(points, uniform),
        }
    }

    /// Whether values above and below the base are equally frequent by definition.
    pub(crate) fn is_symmetric(&self) -> bool {
        matches!(self, Self::Normal { .. } | Self::Uniform { .. })
    }

    /// Why the parameters are invalid, as the end of a sentence.
    pub(crate) fn fault(&self) -> Option<String> {
        let length = |name: &str, ms: f64| {
            let valid = (0.0..=MAX_MS).contains(&ms);
            (!valid).then(|| format!("{name} is 0 to {MAX_MS} ms, not {ms}"))
        };
        match self {
            Self::Normal { sd_ms } => length("a standard deviation", *sd_ms),
            Self::Uniform { spread_ms } => length("a spread", *spread_ms),
            Self::Pareto { scale_ms, shape, longest_ms } => {
                let valid = (0.1..=100.0).contains(shape);
                (!valid)
                    .then(|| format!("a Pareto shape is 0.1 to 100, not {shape}"))
                    .or_else(|| length("a Pareto scale", *scale_ms))
                    .or_else(|| length("the longest draw", *longest_ms))
            }
            Self::Quantiles { points } => quantile_fault(points),
        }
    }
}

impl fmt::Display for Distribution {
    /// Describes the distribution for reports.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Normal { sd_ms } => write!(f, "normal, sd {sd_ms} ms"),
            Self::Uniform { spread_ms } => write!(f, "uniform, +-{spread_ms} ms"),
            Self::Pareto { scale_ms, shape, longest_ms } => {
                write!(f, "Pareto, scale {scale_ms} ms, shape {shape}, at most {longest_ms} ms")
            }
            Self::Quantiles { points } => {
                f.write_str("quantiles")?;
                points.iter().try_for_each(|(p, ms)| write!(f, " {p}:{ms}"))?;
                f.write_str(" ms")
            }
        }
    }
}

fn quantile_fault(points: &[(f64, f64)]) -> Option<String> {
    let ends = points.first().map(|point| point.0) == Some(0.0)
        && points.last().map(|point| point.0) == Some(1.0);
    let ascending = points.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1);
    let bounded = points.iter().all(|point| point.1.abs() <= MAX_MS);
    (points.len() < 2 || !ends || !ascending || !bounded).then(|| {
        format!(
            "quantiles are pairs of probability and milliseconds (at most {MAX_MS}), both \
             ascending, from probability 0 to 1"
        )
    })
}

fn interpolate(points: &[(f64, f64)], probability: f64) -> f64 {
    let after = points.iter().position(|point| point.0 > probability);
    match after {
        Some(after @ 1..) => {
            let ((p0, ms0), (p1, ms1)) = (points[after - 1], points[after]);
            ms0 + (ms1 - ms0) * (probability - p0) / (p1 - p0)
        }
        _ => points.last().map_or(0.0, |point| point.1),
    }
}

const MAX_MS: f64 = 60_000.0;

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn sorted(distribution: &Distribution) -> Vec<f64> {
        let mut random = StdRng::seed_from_u64(7);
        let mut draws: Vec<f64> = (0..100_001).map(|_| distribution.draw(&mut random)).collect();
        draws.sort_by(f64::total_cmp);
        draws
    }

    fn at(draws: &[f64], quantile: f64) -> f64 {
        draws[(quantile * (draws.len() - 1) as f64) as usize]
    }

    fn close(found: f64, expected: f64, tolerance: f64) {
        assert!((found - expected).abs() < tolerance, "{found} instead of {expected}");
    }

    #[test]
    fn normal_has_its_quantiles() {
        let draws = sorted(&Distribution::Normal { sd_ms: 6.0 });
        close(at(&draws, 0.5), 0.0, 0.1);
        close(at(&draws, 0.841_345), 6.0, 0.15);
        close(at(&draws, 0.022_75), -12.0, 0.3);
    }

    #[test]
    fn uniform_has_its_ends() {
        let draws = sorted(&Distribution::Uniform { spread_ms: 4.0 });
        close(at(&draws, 0.0), -4.0, 0.01);
        close(at(&draws, 0.25), -2.0, 0.05);
        close(at(&draws, 1.0), 4.0, 0.01);
    }

    #[test]
    fn pareto_has_its_median_tail_and_limit() {
        let (scale_ms, shape) = (10.0, 1.5);
        let draws = sorted(&Distribution::Pareto { scale_ms, shape, longest_ms: 200.0 });
        let quantile = |q: f64| scale_ms * ((1.0 - q).powf(-1.0 / shape) - 1.0);
        assert!(draws[0] >= 0.0);
        close(at(&draws, 0.5), quantile(0.5), 0.15);
        close(at(&draws, 0.95), quantile(0.95), 2.0);
        close(at(&draws, 1.0), 200.0, 1e-9);
    }

    #[test]
    fn measured_quantiles_are_reproduced() {
        let points = vec![(0.0, -8.0), (0.25, -5.0), (0.5, 0.0), (0.75, 5.0), (1.0, 20.0)];
        let draws = sorted(&Distribution::Quantiles { points: points.clone() });
        for (quantile, expected) in points {
            close(at(&draws, quantile), expected, 0.2);
        }
    }

    #[test]
    fn invalid_parameters_are_reported() {
        let fault =
            |points: &[(f64, f64)]| Distribution::Quantiles { points: points.to_vec() }.fault();
        assert_eq!(fault(&[(0.0, -1.0), (1.0, 1.0)]), None);
        for bad in [
            &[(0.0, 1.0)][..],
            &[(0.1, 0.0), (1.0, 1.0)],
            &[(0.0, 0.0), (0.9, 1.0)],
            &[(0.0, 2.0), (1.0, 1.0)],
            &[(0.0, 0.0), (1.0, f64::NAN)],
        ] {
            assert!(fault(bad).is_some(), "{bad:?}");
        }
        assert!(Distribution::Normal { sd_ms: f64::NAN }.fault().is_some());
        assert!(Distribution::Uniform { spread_ms: -1.0 }.fault().is_some());
        let flat = Distribution::Pareto { scale_ms: 1.0, shape: 0.0, longest_ms: 1.0 };
        assert!(flat.fault().is_some_and(|fault| fault.contains("shape")));
    }
}
