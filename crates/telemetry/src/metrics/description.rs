//! What a metric is, for machines and for people.

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
