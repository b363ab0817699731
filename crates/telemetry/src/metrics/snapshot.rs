//! All metrics at one moment, with their descriptions.

use std::borrow::Cow;

use super::LabelInfo;

/// All metrics at one moment.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// In the order of the reference.
    pub families: Vec<Family>,
}

/// A metric with all its series.
#[derive(Debug)]
pub struct Family {
    /// What it is.
    pub description: &'static Description,
    /// The labels that its series have.
    pub labels: Vec<LabelInfo>,
    /// Its series; empty where nothing was met yet.
    pub series: Vec<Series>,
}

/// One series of a metric.
#[derive(Debug)]
pub struct Series {
    /// Names and values of its labels.
    pub labels: Vec<(&'static str, Cow<'static, str>)>,
    /// Its value now.
    pub value: SeriesValue,
}

/// A series' value.
#[derive(Debug, Clone, PartialEq)]
pub enum SeriesValue {
    /// A counter's.
    Count(u64),
    /// A gauge's, or a counter's that has fractions.
    Number(f64),
    /// A histogram's.
    Histogram(HistogramValue),
}

/// A histogram's value.
#[derive(Debug, Clone, PartialEq)]
pub struct HistogramValue {
    /// The classes' upper bounds, rising.
    pub bounds: Cow<'static, [f64]>,
    /// Observations in each class; the last is for what lies beyond the last bound.
    pub buckets: Vec<u64>,
    /// The sum of all observations.
    pub sum: f64,
}

impl Snapshot {
    /// The sum of a metric's series that have all of `labels`; of a histogram, how many
    /// observations.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let found = self.series(name).filter(|series| series.has(labels));
        found.fold(0.0, |sum, series| sum + series.value.number())
    }

    /// The series of a metric.
    pub fn series(&self, name: &str) -> impl Iterator<Item = &Series> {
        let family = self.families.iter().find(|family| family.description.name == name);
        family.into_iter().flat_map(|family| &family.series)
    }

    pub(crate) fn push(&mut self, family: Family) {
        self.families.push(family);
    }

    /// A metric without labels.
    pub(crate) fn number(&mut self, description: &'static Description, value: f64) {
        let series = vec![Series::new(Vec::new(), SeriesValue::Number(value))];
        self.push(Family { description, labels: Vec::new(), series });
    }

    /// A metric with one label, whose values are those given.
    pub(crate) fn numbers(
        &mut self,
        description: &'static Description,
        label: LabelInfo,
        values: impl IntoIterator<Item = (Cow<'static, str>, f64)>,
    ) {
        let values = values.into_iter();
        let series = values
            .map(|(name, value)| Series::new(vec![(label.name, name)], SeriesValue::Number(value)))
            .collect();
        self.push(Family { description, labels: vec![label], series });
    }
}

impl Series {
    pub(crate) fn new(labels: Vec<(&'static str, Cow<'static, str>)>, value: SeriesValue) -> Self {
        Self { labels, value }
    }

    /// Whether it has all of these labels.
    pub fn has(&self, labels: &[(&str, &str)]) -> bool {
        labels.iter().all(|wanted| {
            self.labels.iter().any(|(name, value)| (*name, value.as_ref()) == *wanted)
        })
    }
}

impl SeriesValue {
    /// The value; of a histogram, how many observations.
    pub fn number(&self) -> f64 {
        match self {
            Self::Count(count) => *count as f64,
            Self::Number(number) => *number,
            Self::Histogram(histogram) => histogram.count() as f64,
        }
    }
}

impl HistogramValue {
    /// How many observations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The value below which a share `q` of the observations lies, reckoned within its class as
    /// Prometheus' `histogram_quantile` does. `None`: there are no observations.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let rank = q * self.count() as f64;
        let (mut below, mut lower) = (0.0, 0.0);
        for (at, count) in self.buckets.iter().enumerate().filter(|(_, count)| **count > 0) {
            let count = *count as f64;
            lower = if at == 0 { lower } else { self.bounds[at - 1] };
            // Beyond the last bound nothing is known but that.
            let Some(upper) = self.bounds.get(at) else { return Some(lower) };
            if below + count >= rank {
                return Some(lower + (upper - lower) * ((rank - below) / count));
            }
            (below, lower) = (below + count, *upper);
        }
        (below > 0.0).then_some(lower)
    }
}

/// One metric.
#[derive(Debug, PartialEq, Eq)]
pub struct Description {
    /// Its full name; a counter's ends in `_total`.
    pub name: &'static str,
    /// What kind of figure it is.
    pub kind: Kind,
    /// What it counts or measures, one sentence.
    pub help: &'static str,
    /// What an operator reads from it, or does about it.
    pub advice: &'static str,
}

/// What kind of figure a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows, until the process ends.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Observations by size.
    Histogram,
}

impl Description {
    /// A counter's.
    pub const fn counter(
        name: &'static str,
        help: &'static str,
        advice: &'static str,
    ) -> Description {
        Self { name, kind: Kind::Counter, help, advice }
    }

    /// A gauge's.
    pub const fn gauge(name: &'static str, help: &'static str, advice: &'static str) -> Self {
        Self { name, kind: Kind::Gauge, help, advice }
    }

    /// A histogram's.
    pub const fn histogram(name: &'static str, help: &'static str, advice: &'static str) -> Self {
        Self { name, kind: Kind::Histogram, help, advice }
    }

    /// The name without a counter's ending, as OpenMetrics names the family.
    pub fn family(&self) -> &'static str {
        self.name.strip_suffix("_total").unwrap_or(self.name)
    }

    /// The base unit, which the name ends in.
    pub fn unit(&self) -> Option<&'static str> {
        ["seconds", "bytes"].into_iter().find(|unit| {
            self.family().strip_suffix(unit).is_some_and(|before| before.ends_with('_'))
        })
    }
}

impl Kind {
    /// As both text formats have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(buckets: [u64; 4]) -> HistogramValue {
        HistogramValue {
            bounds: Cow::Borrowed(&[1.0, 2.0, 4.0]),
            buckets: buckets.to_vec(),
            sum: 0.0,
        }
    }

    #[test]
    fn quantiles_as_prometheus_reckons_them() {
        assert_eq!(histogram([0; 4]).quantile(0.5), None);
        assert_eq!(histogram([0, 10, 0, 0]).quantile(0.5), Some(1.5));
        assert_eq!(histogram([10, 0, 10, 0]).quantile(0.75), Some(3.0));
        assert_eq!(histogram([1, 0, 0, 99]).quantile(0.5), Some(4.0));
    }
}
