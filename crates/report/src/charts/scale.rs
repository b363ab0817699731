//! Scales: from values to pixels, and their ticks.

/// A linear or logarithmic scale from values to pixels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    logarithmic: bool,
}

impl Scale {
    /// A linear scale. Bounds that are equal or not finite are replaced by distinct ones.
    pub(crate) fn linear(low: f64, high: f64, from: f64, to: f64) -> Self {
        let (low, high) = separate_bounds(low, high);
        Self { low, high, from, to, logarithmic: false }
    }

    /// A logarithmic scale, or a linear one if the bounds are not positive.
    pub(crate) fn logarithmic(low: f64, high: f64, from: f64, to: f64) -> Self {
        let (low, high) = separate_bounds(low, high);
        Self { low, high, from, to, logarithmic: low > 0.0 && high / low < 1e15 }
    }

    /// The pixel of a value; values outside are clamped to the bounds.
    pub(crate) fn position(&self, value: f64) -> f64 {
        let value = if value.is_finite() { value.clamp(self.low, self.high) } else { self.low };
        let share = match self.logarithmic {
            true => (value / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        self.from + share * (self.to - self.from)
    }

    /// Whether a value is within the bounds.
    pub(crate) fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// Round values, at most about `limit` of them, ascending.
    pub(crate) fn ticks(&self, limit: usize) -> Vec<f64> {
        match self.logarithmic {
            true => self.decades(limit),
            false => self.steps(limit),
        }
    }

    fn steps(&self, limit: usize) -> Vec<f64> {
        let rough = (self.high - self.low) / limit.max(1) as f64;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
        let step = step.into_iter().find(|step| *step >= rough).unwrap_or(10.0 * power);
        let first = (self.low / step).ceil();
        (0..=limit)
            .map(|n| round_to_step((first + n as f64) * step, step))
            .filter(|tick| *tick >= self.low && *tick <= self.high)
            .collect()
    }

    fn decades(&self, limit: usize) -> Vec<f64> {
        let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        let ticks = |factors: &[f64], every: i32| -> Vec<f64> {
            (first..=last)
                .filter(|power| power.rem_euclid(every) == 0)
                .flat_map(|power| {
                    factors.iter().map(move |factor| {
                        let unit = 10_f64.powi(power);
                        round_to_step(factor * unit, unit)
                    })
                })
                .filter(|tick| self.contains(*tick))
                .collect()
        };
        let choices: [(&[f64], i32); 5] =
            [(&[1.0, 2.0, 5.0], 1), (&[1.0, 3.0], 1), (&[1.0], 1), (&[1.0], 2), (&[1.0], 4)];
        let mut fitting = choices.iter().map(|(factors, every)| ticks(factors, *every));
        fitting.find(|ticks| ticks.len() <= limit).unwrap_or_default()
    }
}

/// Formats a tick with as many digits as it needs.
pub(crate) fn tick(value: f64) -> String {
    match value.abs() {
        size if size >= 1e6 || (size > 0.0 && size < 1e-4) => format!("{value:e}"),
        size if size >= 1e4 => crate::format::count(value),
        _ => {
            let text = format!("{value:.5}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
    }
}

/// Removes rounding errors of multiples of `step`.
fn round_to_step(value: f64, step: f64) -> f64 {
    let digits = (-step.log10().floor()).clamp(-300.0, 300.0);
    let factor = 10_f64.powf(digits);
    match factor.is_normal() {
        true => (value * factor).round() / factor,
        false => value,
    }
}

fn separate_bounds(low: f64, high: f64) -> (f64, f64) {
    const MAX_MAGNITUDE: f64 = 1e200;
    match low.is_finite() && high.is_finite() && low.abs().max(high.abs()) < MAX_MAGNITUDE {
        false => (0.0, 1.0),
        // Closer than the precision of floating-point numbers.
        true if high - low <= 1e-9 * low.abs().max(high.abs()).max(1e-9) => {
            let half = (0.05 * low.abs()).max(0.5e-3);
            (low - half, low + half)
        }
        true => (low, high),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(Scale::linear(0.0, 61.0, 0.0, 1.0).ticks(5), [0.0, 20.0, 40.0, 60.0]);
        assert_eq!(Scale::linear(-0.3, 0.3, 0.0, 1.0).ticks(4), [-0.2, 0.0, 0.2]);
        let log = Scale::logarithmic(0.15, 250.0, 0.0, 1.0);
        assert_eq!(log.ticks(5), [1.0, 10.0, 100.0]);
        assert_eq!(log.ticks(7), [0.3, 1.0, 3.0, 10.0, 30.0, 100.0]);
        assert_eq!([0.02, 200.0, 12_000.0].map(tick), ["0.02", "200", "12,000"]);
    }

    #[test]
    fn values_are_mapped_to_pixels() {
        let scale = Scale::logarithmic(1.0, 100.0, 10.0, 110.0);
        assert_eq!(
            [scale.position(1.0), scale.position(10.0), scale.position(100.0)],
            [10.0, 60.0, 110.0]
        );
        assert_eq!(scale.position(1e9), 110.0, "at the border");
        assert_eq!(scale.position(f64::NAN), 10.0);
    }

    proptest! {
        #[test]
        fn any_bounds_give_few_ascending_ticks_within(
            low in proptest::num::f64::ANY, high in proptest::num::f64::ANY, log: bool
        ) {
            let scale = match log {
                true => Scale::logarithmic(low, high, 0.0, 100.0),
                false => Scale::linear(low, high, 0.0, 100.0),
            };
            let ticks = scale.ticks(6);
            prop_assert!(ticks.len() <= 7);
            prop_assert!(ticks.windows(2).all(|pair| pair[0] < pair[1]), "{:?}", ticks);
            for tick in ticks {
                prop_assert!((-1e-6..=100.000001).contains(&scale.position(tick)));
            }
        }
    }
}
