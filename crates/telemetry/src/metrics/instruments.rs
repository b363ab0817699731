//! Counters, gauges and histograms, with a lock-free cell for each combination of labels.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use super::{Description, Family, HistogramValue, Kind, Labels, Series, SeriesValue};

/// A counter with labels.
#[derive(Debug)]
pub struct Counters<L> {
    description: &'static Description,
    /// Whether combinations without events are left out.
    sparse: bool,
    cells: Box<[AtomicU64]>,
    labels: PhantomData<fn(L)>,
}

impl<L: Labels> Counters<L> {
    /// Creates a counter. All combinations exist from the start, so that the first event is an
    /// increase from 0.
    pub(crate) fn new(description: &'static Description) -> Self {
        let cells = (0..L::COUNT).map(|_| AtomicU64::new(0)).collect();
        Self { description, sparse: false, cells, labels: PhantomData }
    }

    /// Leaves out combinations without events: for metrics with many combinations of which few
    /// occur.
    pub(crate) fn sparse(self) -> Self {
        Self { sparse: true, ..self }
    }

    /// Counts one.
    pub fn count(&self, labels: L) {
        self.add(labels, 1);
    }

    /// Counts several.
    pub fn add(&self, labels: L, amount: u64) {
        self.cells[labels.index()].fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn family(&self) -> Family {
        let cells = self.cells.iter().map(|cell| cell.load(Ordering::Relaxed)).enumerate();
        let present = cells.filter(|(_, count)| !self.sparse || *count > 0);
        let series = present.map(|(at, count)| Series::new(L::at(at), SeriesValue::Count(count)));
        Family { description: self.description, labels: L::infos(), series: series.collect() }
    }
}

/// A gauge with labels.
#[derive(Debug)]
pub struct Gauges<L> {
    description: &'static Description,
    cells: Box<[AtomicI64]>,
    labels: PhantomData<fn(L)>,
}

impl<L: Labels> Gauges<L> {
    pub(crate) fn new(description: &'static Description) -> Self {
        let cells = (0..L::COUNT).map(|_| AtomicI64::new(0)).collect();
        Self { description, cells, labels: PhantomData }
    }

    /// Adds one.
    pub fn increment(&self, labels: L) {
        self.cells[labels.index()].fetch_add(1, Ordering::Relaxed);
    }

    /// Subtracts one.
    pub fn decrement(&self, labels: L) {
        self.cells[labels.index()].fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn family(&self) -> Family {
        let cells = self.cells.iter().map(|cell| cell.load(Ordering::Relaxed)).enumerate();
        let series = cells.map(|(at, now)| Series::new(L::at(at), SeriesValue::Number(now as f64)));
        Family { description: self.description, labels: L::infos(), series: series.collect() }
    }
}

/// A histogram with labels. Combinations without observations are left out.
#[derive(Debug)]
pub struct Histograms<L> {
    description: &'static Description,
    bounds: &'static [f64],
    cells: Box<[HistogramCell]>,
    labels: PhantomData<fn(L)>,
}

/// One series of a histogram.
#[derive(Debug)]
pub(super) struct HistogramCell {
    /// One more than there are bounds: the last is for values beyond all bounds.
    buckets: Box<[AtomicU64]>,
    /// In millionths of the unit.
    sum: AtomicI64,
}

impl<L: Labels> Histograms<L> {
    /// `bounds`: the upper bounds of the buckets, ascending.
    pub(crate) fn new(description: &'static Description, bounds: &'static [f64]) -> Self {
        let cells = (0..L::COUNT).map(|_| HistogramCell::new(bounds)).collect();
        Self { description, bounds, cells, labels: PhantomData }
    }

    /// Counts an observation.
    pub fn observe(&self, labels: L, value: f64) {
        self.cells[labels.index()].observe(self.bounds, value);
    }

    /// Observes a duration.
    pub fn time(&self, labels: L, took: Duration) {
        self.observe(labels, took.as_secs_f64());
    }

    pub(crate) fn family(&self) -> Family {
        debug_assert_eq!(self.description.kind, Kind::Histogram);
        let read = self.cells.iter().map(|cell| cell.read(self.bounds)).enumerate();
        // A histogram without labels always exists, like such a counter.
        let present = read.filter(|(_, value)| value.count() > 0 || L::COUNT == 1);
        let series =
            present.map(|(at, value)| Series::new(L::at(at), SeriesValue::Histogram(value)));
        Family { description: self.description, labels: L::infos(), series: series.collect() }
    }
}

impl HistogramCell {
    pub(super) fn new(bounds: &'static [f64]) -> Self {
        Self {
            buckets: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicI64::new(0),
        }
    }

    pub(super) fn observe(&self, bounds: &'static [f64], value: f64) {
        let bucket = bounds.partition_point(|bound| *bound < value);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add((value * MICROS_PER_SECOND) as i64, Ordering::Relaxed);
    }

    pub(super) fn read(&self, bounds: &'static [f64]) -> HistogramValue {
        let buckets = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        let sum = self.sum.load(Ordering::Relaxed) as f64 / MICROS_PER_SECOND;
        HistogramValue { bounds: bounds.into(), buckets, sum }
    }
}

/// Defines a group of metrics that are counted where events happen. An entry contains all that a
/// metric needs: its field, labels, name, help and advice (see [`Description`]), and a histogram's
/// bounds.
macro_rules! counted {
    (
        $(#[$group_doc:meta])*
        pub struct $group:ident {
            $($field:ident: $family:ty = $kind:ident(
                $name:literal, $help:literal, $advice:literal $(, $bounds:ident)? $(,)?
            )$(.$modifier:ident())?;)*
        }
    ) => {
        $(#[$group_doc])*
        #[derive(Debug)]
        pub struct $group {
            $(#[doc = $help] pub $field: $family,)*
        }

        impl Default for $group {
            fn default() -> Self {
                Self {
                    $($field: {
                        static DESCRIPTION: $crate::metrics::Description =
                            $crate::metrics::Description::$kind($name, $help, $advice);
                        <$family>::new(&DESCRIPTION $(, $bounds)?)$(.$modifier())?
                    },)*
                }
            }
        }

        impl $group {
            pub(super) fn counted(&self, snapshot: &mut $crate::metrics::Snapshot) {
                $(snapshot.push(self.$field.family());)*
            }
        }
    };
}
pub(super) use counted;

/// Sums of seconds are stored in microseconds: enough for 292,000 years.
const MICROS_PER_SECOND: f64 = 1e6;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Transport;

    static EVENTS: Description = Description::counter("events_total", "Events.", "");
    static TIMES: Description = Description::histogram("times_seconds", "Times.", "");

    #[test]
    fn a_counter_exists_before_its_first_event_unless_it_is_sparse() {
        let counters = Counters::<Transport>::new(&EVENTS);
        counters.count(Transport::Quic);
        let values = |counters: &Counters<Transport>| {
            let series = counters.family().series;
            series.iter().map(|series| series.value.number()).collect::<Vec<_>>()
        };
        assert_eq!(values(&counters), [0.0, 1.0]);
        let sparse = Counters::<Transport>::new(&EVENTS).sparse();
        sparse.add(Transport::Quic, 7);
        assert_eq!(values(&sparse), [7.0]);
    }

    #[test]
    fn a_bound_belongs_to_the_bucket_below_it() {
        let times = Histograms::<()>::new(&TIMES, &[-1.0, 0.0, 1.0]);
        [-2.0, -1.0, -0.5, 0.0, 1.0, 1.5].iter().for_each(|value| times.observe((), *value));
        let family = times.family();
        let SeriesValue::Histogram(value) = &family.series[0].value else { panic!("{family:?}") };
        assert_eq!(value.buckets, [2, 2, 1, 1]);
        assert!((value.sum - -1.0).abs() < 1e-9, "{}", value.sum);
        assert_eq!(value.count(), 6);
    }
}
