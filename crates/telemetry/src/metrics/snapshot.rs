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
    /// What the metric measures.
    pub description: &'static Description,
    /// The labels that its series have.
    pub labels: Vec<LabelInfo>,
    /// Its series; empty if there are no observations yet.
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
    /// The value of a counter.
    Count(u64),
    /// The value of a gauge, or of a counter with fractions.
    Number(f64),
    /// The value of a histogram.
    Histogram(HistogramValue),
}

/// A histogram's value.
#[derive(Debug, Clone, PartialEq)]
pub struct HistogramValue {
    /// The upper bounds of the buckets, ascending.
    pub bounds: Cow<'static, [f64]>,
    /// Observations in each bucket; the last is for values beyond all bounds.
    pub buckets: Vec<u64>,
    /// The sum of all observations.
    pub sum: f64,
}

impl Snapshot {
    /// Returns the sum of a metric's series that have all of `labels`; for a histogram, the number
    /// of observations.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let found = self.series(name).filter(|series| series.has(labels));
        found.fold(0.0, |sum, series| sum + series.value.number())
    }

    /// Returns the series of a metric.
    pub fn series(&self, name: &str) -> impl Iterator<Item = &Series> {
        let family = self.families.iter().find(|family| family.description.name == name);
        family.into_iter().flat_map(|family| &family.series)
    }

    pub(crate) fn push(&mut self, family: Family) {
        self.families.push(family);
    }

    /// Adds a metric without labels.
    pub(crate) fn number(&mut self, description: &'static Description, value: f64) {
        let series = vec![Series::new(Vec::new(), SeriesValue::Number(value))];
        self.push(Family { description, labels: Vec::new(), series });
    }

    /// Adds a metric with one label that has these values.
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

    /// Returns whether the series has all of `labels`.
    pub fn has(&self, labels: &[(&str, &str)]) -> bool {
        labels.iter().all(|required| {
            self.labels.iter().any(|(name, value)| (*name, value.as_ref()) == *required)
        })
    }
}

impl SeriesValue {
    /// Returns the value; for a histogram, the number of observations.
    pub fn number(&self) -> f64 {
        match self {
            Self::Count(count) => *count as f64,
            Self::Number(number) => *number,
            Self::Histogram(histogram) => histogram.count() as f64,
        }
    }
}

impl HistogramValue {
    /// Returns the number of observations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns the value below which a share `q` of the observations lies, interpolated within its
    /// bucket as Prometheus' `histogram_quantile` does, or `None` if there are no observations.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let rank = q * self.count() as f64;
        let (mut below, mut lower) = (0.0, 0.0);
        for (at, count) in self.buckets.iter().enumerate().filter(|(_, count)| **count > 0) {
            let count = *count as f64;
            lower = if at == 0 { lower } else { self.bounds[at - 1] };
            // Values beyond the last bound count as that bound.
            let Some(upper) = self.bounds.get(at) else { return Some(lower) };
            if below + count >= rank {
                return Some(lower + (upper - lower) * ((rank - below) / count));
            }
            (below, lower) = (below + count, *upper);
        }
        (below > 0.0).then_some(lower)
    }
}

/// The description of a metric.
#[derive(Debug, PartialEq, Eq)]
pub struct Description {
    /// Its full name; a counter's ends in `_total`.
    pub name: &'static str,
    /// The kind of metric.
    pub kind: Kind,
    /// What it counts or measures, in one sentence.
    pub help: &'static str,
    /// What an operator learns from it, or does about it.
    pub advice: &'static str,
}

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only increases until the process ends.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Observations in buckets.
    Histogram,
}

impl Description {
    /// Describes a counter.
    pub const fn counter(
        name: &'static str,
        help: &'static str,
        advice: &'static str,
    ) -> Description {
        Self { name, kind: Kind::Counter, help, advice }
    }

    /// Describes a gauge.
    pub const fn gauge(name: &'static str, help: &'static str, advice: &'static str) -> Self {
        Self { name, kind: Kind::Gauge, help, advice }
    }

    /// Describes a histogram.
    pub const fn histogram(name: &'static str, help: &'static str, advice: &'static str) -> Self {
        Self { name, kind: Kind::Histogram, help, advice }
    }

    /// The name without a counter's suffix, as OpenMetrics names the family.
    pub fn family(&self) -> &'static str {
        self.name.strip_suffix("_total").unwrap_or(self.name)
    }

    /// The base unit, which is the suffix of the name.
    pub fn unit(&self) -> Option<&'static str> {
        ["seconds", "bytes"].into_iter().find(|unit| {
            self.family().strip_suffix(unit).is_some_and(|before| before.ends_with('_'))
        })
    }
}

impl Kind {
    /// The name in both text formats.
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
    fn quantiles_as_in_prometheus() {
        assert_eq!(histogram([0; 4]).quantile(0.5), None);
        assert_eq!(histogram([0, 10, 0, 0]).quantile(0.5), Some(1.5));
        assert_eq!(histogram([10, 0, 10, 0]).quantile(0.75), Some(3.0));
        assert_eq!(histogram([1, 0, 0, 99]).quantile(0.5), Some(4.0));
    }
}
