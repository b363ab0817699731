//! Which cells or visits a figure is taken from.

use super::{CheckError, Condition, Figure, Function};
use crate::axes::{Axis, same_except};
use crate::visits::name;
use crate::{Cell, Fault, Figures, Record, Summary, VisitCell, VisitSummary};

/// A kind and filters of cells, and the selected time of a connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Selector {
    filters: Vec<(Axis, String)>,
    time: Time,
}

/// A time of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Time {
    Setup,
    #[default]
    FirstByte,
    Total,
}

impl Selector {
    /// Parses the text between the parentheses.
    ///
    /// # Errors
    /// The byte offset in `text` and a sentence.
    pub(super) fn parse(text: &str, function: Function) -> Result<Self, (usize, String)> {
        let mut selector = Self::default();
        let mut start = 0;
        if text.trim().is_empty() {
            return Ok(selector);
        }
        for part in text.split(',') {
            let index = start + (part.len() - part.trim_start().len());
            selector.add(part.trim(), function).map_err(|message| (index, message))?;
            start += part.len() + 1;
        }
        Ok(selector)
    }

    fn add(&mut self, part: &str, function: Function) -> Result<(), String> {
        let (name, value) = match part.split_once('=') {
            Some((name, value)) => (name.trim().to_ascii_lowercase(), value.trim()),
            None => ("kind".to_owned(), part),
        };
        if value.is_empty() {
            return Err("expected a kind or a filter, such as 0rtt or server=nginx".to_owned());
        }
        if name == "time" {
            return self.set_time(value, function);
        }
        let Some(axis) = Axis::from_name(&name) else {
            let names: Vec<&str> = Axis::ALL.iter().map(|axis| axis.name()).collect();
            return Err(format!("unknown filter {name:?}; allowed are {}, time", names.join(", ")));
        };
        if function == Function::Replays && axis != Axis::Server {
            return Err("replays can be filtered by server= only, since the attack covers all protocols of a server".to_owned());
        }
        if self.filters.iter().any(|(other, _)| *other == axis) {
            return Err(format!("{} appears twice; remove one", axis.name()));
        }
        let value = axis.parse_value(value)?;
        self.filters.push((axis, value));
        Ok(())
    }

    fn set_time(&mut self, value: &str, function: Function) -> Result<(), String> {
        if !function.is_time() {
            return Err("time= is only for functions of time, such as p50".to_owned());
        }
        self.time = match value.to_ascii_lowercase().as_str() {
            "setup" => Time::Setup,
            "first-byte" => Time::FirstByte,
            "total" => Time::Total,
            _ => {
                return Err(format!(
                    "unknown time {value:?}; allowed are setup, first-byte, total"
                ));
            }
        };
        Ok(())
    }

    /// Whether a cell is selected. Second arms of A/A controls never are.
    pub(super) fn matches(&self, cell: &Cell) -> bool {
        !cell.control && self.filters.iter().all(|(axis, value)| axis.matches(cell, value))
    }

    /// The indices of the selected cells that equal `subject` except for the filters. If there are
    /// several, only those that share the most values with `subject`: `rtt=` permits any network of
    /// that round-trip time, but the subject's own network is preferred.
    pub(super) fn corresponding(&self, cells: &[Cell], subject: &Cell) -> Vec<usize> {
        let named: Vec<Axis> = self.axes().collect();
        closest(cells, |cell| {
            let common = || Axis::ALL.iter().filter(|a| a.value(cell) == a.value(subject)).count();
            (self.matches(cell) && same_except(cell, subject, &named)).then(common)
        })
    }

    /// Whether a server's replays are selected.
    pub(super) fn matches_server(&self, server: &str) -> bool {
        self.filters
            .iter()
            .all(|(axis, value)| *axis == Axis::Server && value.eq_ignore_ascii_case(server))
    }

    /// The axes of the filters, for error messages.
    pub(super) fn axes(&self) -> impl Iterator<Item = Axis> {
        self.filters.iter().map(|(axis, _)| *axis)
    }

    /// The figures of the selected time.
    pub(super) fn figures<'a>(&self, summary: &'a Summary) -> Option<&'a Figures> {
        match self.time {
            Time::Setup => summary.setup.as_ref(),
            Time::FirstByte => Some(&summary.first_byte),
            Time::Total => summary.total.as_ref(),
        }
    }
}

/// Filters of visits, and the selected time.
#[derive(Clone, Debug, Default)]
pub(super) struct VisitSelector {
    filters: Vec<(VisitAxis, String)>,
    time: VisitTime,
}

/// An axis of visit cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VisitAxis {
    Browser,
    Server,
    Profile,
    Rtt,
    Http,
    Page,
    Visit,
}

impl VisitAxis {
    const ALL: [(&str, Self); 7] = [
        ("browser", Self::Browser),
        ("server", Self::Server),
        ("profile", Self::Profile),
        ("rtt", Self::Rtt),
        ("http", Self::Http),
        ("page", Self::Page),
        ("visit", Self::Visit),
    ];
    /// Axes that only visits have: naming one selects visits.
    const VISITS_ONLY: [&str; 3] = ["browser", "page", "visit"];

    fn value(self, cell: &VisitCell) -> String {
        match self {
            Self::Browser => cell.browser.clone(),
            Self::Server => cell.server.clone(),
            Self::Profile => cell.profile.clone(),
            Self::Rtt => cell.rtt_ms.to_string(),
            Self::Http => cell.http.clone(),
            Self::Page => cell.page.clone(),
            Self::Visit => cell.visit.clone(),
        }
    }

    fn parse_value(self, value: &str) -> Result<String, String> {
        let one_of = |allowed: &[&str]| match allowed.contains(&&*value.to_ascii_lowercase()) {
            true => Ok(value.to_ascii_lowercase()),
            false => Err(format!("unknown value {value:?}; allowed are {}", allowed.join(", "))),
        };
        match self {
            Self::Rtt => Axis::Rtt.parse_value(value),
            Self::Page => one_of(&["small", "resources", "image"]),
            Self::Visit => one_of(&["first", "off", "on"]),
            _ => Ok(value.to_owned()),
        }
    }
}

/// A time of a visit.
#[derive(Clone, Copy, Debug, Default)]
enum VisitTime {
    #[default]
    Total,
    Tls,
    WireTotal,
    WireTls,
    Load,
    Paint,
}

impl VisitTime {
    const ALL: [(&str, Self); 6] = [
        ("total", Self::Total),
        ("tls", Self::Tls),
        ("wire-total", Self::WireTotal),
        ("wire-tls", Self::WireTls),
        ("load", Self::Load),
        ("paint", Self::Paint),
    ];
}

impl VisitSelector {
    /// Parses the text between the parentheses. Returns `None` if it does not select visits.
    ///
    /// # Errors
    /// The byte offset in `text` and a sentence.
    pub(super) fn parse(text: &str, function: Function) -> Result<Option<Self>, (usize, String)> {
        let named = |part: &str| match part.split_once('=') {
            Some((name, _)) => VisitAxis::VISITS_ONLY.contains(&&*name.trim().to_ascii_lowercase()),
            None => false,
        };
        if !function.is_of_visits() && !text.split(',').any(named) {
            return Ok(None);
        }
        let mut selector = Self::default();
        let mut start = 0;
        for part in text.split(',').filter(|_| !text.trim().is_empty()) {
            let index = start + (part.len() - part.trim_start().len());
            selector.add(part.trim(), function).map_err(|message| (index, message))?;
            start += part.len() + 1;
        }
        Ok(Some(selector))
    }

    fn add(&mut self, part: &str, function: Function) -> Result<(), String> {
        let filter = part.split_once('=').map(|(name, value)| (name.trim(), value.trim()));
        let Some((name, value)) = filter.filter(|(_, value)| !value.is_empty()) else {
            return Err(
                "visits are selected by filters, such as visit=on or browser=firefox".to_owned()
            );
        };
        let name = name.to_ascii_lowercase();
        if name == "time" {
            let value = value.to_ascii_lowercase();
            let known = VisitTime::ALL.iter().find(|(time, _)| *time == value);
            return match known {
                _ if !function.is_time() => {
                    Err("time= is only for functions of time, such as p50".to_owned())
                }
                Some((_, time)) => {
                    self.time = *time;
                    Ok(())
                }
                None => Err(format!(
                    "unknown time {value:?} of visits; allowed are {}",
                    names(&VisitTime::ALL)
                )),
            };
        }
        let Some((_, axis)) = VisitAxis::ALL.iter().find(|(known, _)| *known == name) else {
            let allowed = names(&VisitAxis::ALL);
            return Err(format!("unknown filter {name:?} of visits; allowed are {allowed}, time"));
        };
        if self.filters.iter().any(|(other, _)| other == axis) {
            return Err(format!("{name} appears twice; remove one"));
        }
        self.filters.push((*axis, axis.parse_value(value)?));
        Ok(())
    }

    /// Whether a cell is selected.
    pub(super) fn matches(&self, cell: &VisitCell) -> bool {
        self.filters.iter().all(|(axis, value)| axis.value(cell).eq_ignore_ascii_case(value))
    }

    /// The indices of the selected cells that equal `subject` except for the filters. If there are
    /// several, only those that share the most values with `subject`.
    pub(super) fn corresponding(&self, cells: &[VisitCell], subject: &VisitCell) -> Vec<usize> {
        let named = |axis: VisitAxis| self.filters.iter().any(|(other, _)| *other == axis);
        // A profile implies its round-trip time.
        let network = named(VisitAxis::Profile) || named(VisitAxis::Rtt);
        let free =
            |axis| named(axis) || (network && matches!(axis, VisitAxis::Profile | VisitAxis::Rtt));
        closest(cells, |cell| {
            let equal = |axis: VisitAxis| axis.value(cell) == axis.value(subject);
            let common = || VisitAxis::ALL.iter().filter(|(_, axis)| equal(*axis)).count();
            let corresponds = self.matches(cell)
                && VisitAxis::ALL.iter().all(|(_, axis)| free(*axis) || equal(*axis));
            corresponds.then(common)
        })
    }

    /// The values of a record on the axes of the filters, for error messages.
    pub(super) fn available(&self, record: &Record) -> String {
        if record.visit_cells.is_empty() {
            return "no visit of a browser".to_owned();
        }
        let present = |axis: VisitAxis| {
            let (name, _) = VisitAxis::ALL[axis as usize];
            let mut values: Vec<String> = Vec::new();
            for cell in &record.visit_cells {
                let value = axis.value(cell);
                if !values.contains(&value) {
                    values.push(value);
                }
            }
            format!("{name} {}", values.join(", "))
        };
        let present: Vec<String> = self.filters.iter().map(|(axis, _)| present(*axis)).collect();
        present.join("; ")
    }

    /// The figure in the cell with this index.
    pub(super) fn cell_value(
        &self,
        condition: &Condition,
        record: &Record,
        figure: &Figure,
        index: usize,
    ) -> Result<f64, CheckError> {
        let cell = &record.visit_cells[index];
        let counted = |predicate: fn(&crate::Visit) -> bool| {
            record.visits.iter().filter(|visit| visit.cell == index && predicate(visit)).count()
                as f64
        };
        let visits = cell.summary.as_ref().map_or(0, |summary| summary.visits);
        match figure.function {
            Function::Spoiled => {
                return Ok(counted(|visit| matches!(visit.fault, Some(Fault::Spoiled(_)))));
            }
            Function::Warnings => return Ok(counted(|visit| !visit.warnings.is_empty())),
            Function::Count => return Ok(visits as f64),
            _ => {}
        }
        let needed = figure.function.samples_needed();
        let Some(summary) = cell.summary.as_ref().filter(|_| visits >= needed) else {
            return Err(CheckError::TooFew {
                condition: condition.text.clone(),
                cell: name(cell),
                figure: figure.text.clone(),
                samples: visits,
                needed,
            });
        };
        let value = match figure.function {
            Function::RoundTrips => summary.round_trips.map(f64::from),
            Function::Early => Some(summary.early as f64),
            function => self.figures(summary).and_then(|figures| function.of(figures)),
        };
        value.ok_or_else(|| CheckError::NotMeasured {
            condition: condition.text.clone(),
            cell: name(cell),
            figure: figure.text.clone(),
        })
    }

    fn figures<'a>(&self, summary: &'a VisitSummary) -> Option<&'a Figures> {
        match self.time {
            VisitTime::Total => Some(&summary.total),
            VisitTime::Tls => summary.tls.as_ref(),
            VisitTime::WireTotal => summary.wire_total.as_ref(),
            VisitTime::WireTls => summary.wire_tls.as_ref(),
            VisitTime::Load => summary.load.as_ref(),
            VisitTime::Paint => summary.largest_paint.as_ref(),
        }
    }
}

/// The indices of the cells for which `common` returns the largest number. It returns `None` for
/// cells that are no candidates.
fn closest<C>(cells: &[C], common: impl Fn(&C) -> Option<usize>) -> Vec<usize> {
    let common: Vec<Option<usize>> = cells.iter().map(common).collect();
    let most = common.iter().copied().max().flatten();
    (0..cells.len()).filter(|index| most.is_some() && common[*index] == most).collect()
}

fn names<T>(all: &[(&str, T)]) -> String {
    all.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}
