//! Which visits of browsers a figure is taken of.

use super::{CheckError, Condition, Figure, Function};
use crate::axes::Axis;
use crate::visits::name;
use crate::{Fault, Figures, Record, VisitCell, VisitSummary};

/// Filters of visits, and which of their times is meant.
#[derive(Clone, Debug, Default)]
pub(super) struct VisitSelector {
    filters: Vec<(Place, String)>,
    time: Time,
}

/// What tells one cell of visits from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Browser,
    Server,
    Profile,
    Rtt,
    Http,
    Page,
    Visit,
}

impl Place {
    const ALL: [(&str, Self); 7] = [
        ("browser", Self::Browser),
        ("server", Self::Server),
        ("profile", Self::Profile),
        ("rtt", Self::Rtt),
        ("http", Self::Http),
        ("page", Self::Page),
        ("visit", Self::Visit),
    ];
    /// Only visits have these: naming one means visits.
    const OWN: [&str; 3] = ["browser", "page", "visit"];

    fn of(self, cell: &VisitCell) -> String {
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

    fn read(self, value: &str) -> Result<String, String> {
        let one_of = |allowed: &[&str]| match allowed.contains(&&*value.to_ascii_lowercase()) {
            true => Ok(value.to_ascii_lowercase()),
            false => {
                Err(format!("{value:?} is not known here; allowed are {}", allowed.join(", ")))
            }
        };
        match self {
            Self::Rtt => Axis::Rtt.read(value),
            Self::Page => one_of(&["small", "resources", "image"]),
            Self::Visit => one_of(&["first", "off", "on"]),
            _ => Ok(value.to_owned()),
        }
    }
}

/// A time of a visit.
#[derive(Clone, Copy, Debug, Default)]
enum Time {
    #[default]
    Total,
    Tls,
    WireTotal,
    WireTls,
    Load,
    Paint,
}

impl Time {
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
    /// What stands between the parentheses; `None` if it is not about visits.
    ///
    /// # Errors
    /// The byte within `text` and a sentence.
    pub(super) fn parse(text: &str, function: Function) -> Result<Option<Self>, (usize, String)> {
        let named = |part: &str| match part.split_once('=') {
            Some((name, _)) => Place::OWN.contains(&&*name.trim().to_ascii_lowercase()),
            None => false,
        };
        if !function.is_of_visits() && !text.split(',').any(named) {
            return Ok(None);
        }
        let mut selector = Self::default();
        let mut at = 0;
        for part in text.split(',').filter(|_| !text.trim().is_empty()) {
            let place = at + (part.len() - part.trim_start().len());
            selector.add(part.trim(), function).map_err(|message| (place, message))?;
            at += part.len() + 1;
        }
        Ok(Some(selector))
    }

    fn add(&mut self, part: &str, function: Function) -> Result<(), String> {
        let split = part.split_once('=').map(|(name, value)| (name.trim(), value.trim()));
        let Some((name, value)) = split.filter(|(_, value)| !value.is_empty()) else {
            return Err(
                "visits are told by filters, such as visit=on or browser=firefox".to_owned()
            );
        };
        let name = name.to_ascii_lowercase();
        if name == "time" {
            let value = value.to_ascii_lowercase();
            let known = Time::ALL.iter().find(|(time, _)| *time == value);
            return match known {
                _ if !function.is_time() => {
                    Err("time= belongs to functions of time, such as p50".to_owned())
                }
                Some((_, time)) => {
                    self.time = *time;
                    Ok(())
                }
                None => Err(format!(
                    "unknown time {value:?} of visits; allowed are {}",
                    names(&Time::ALL)
                )),
            };
        }
        let Some((_, place)) = Place::ALL.iter().find(|(known, _)| *known == name) else {
            let allowed = names(&Place::ALL);
            return Err(format!("unknown filter {name:?} of visits; allowed are {allowed}, time"));
        };
        if self.filters.iter().any(|(other, _)| other == place) {
            return Err(format!("{name} stands here twice; keep one"));
        }
        self.filters.push((*place, place.read(value)?));
        Ok(())
    }

    /// Whether a cell is meant.
    pub(super) fn matches(&self, cell: &VisitCell) -> bool {
        self.filters.iter().all(|(place, value)| place.of(cell).eq_ignore_ascii_case(value))
    }

    /// Whether a cell is meant that goes with `subject`: the same but for the filters.
    fn goes_with(&self, cell: &VisitCell, subject: &VisitCell) -> bool {
        let named = |place: Place| self.filters.iter().any(|(other, _)| *other == place);
        // The profile and its round-trip time are one.
        let network = named(Place::Profile) || named(Place::Rtt);
        let free =
            |place| named(place) || (network && matches!(place, Place::Profile | Place::Rtt));
        let same = |place: Place| place.of(cell) == place.of(subject);
        self.matches(cell) && Place::ALL.iter().all(|(_, place)| free(*place) || same(*place))
    }

    /// The places that a record has on the axes of the filters, for saying what there would be.
    pub(super) fn there(&self, record: &Record) -> String {
        if record.visit_cells.is_empty() {
            return "no visit of a browser".to_owned();
        }
        let there = |place: Place| {
            let (name, _) = Place::ALL[place as usize];
            let mut places: Vec<String> = Vec::new();
            for cell in &record.visit_cells {
                let at = place.of(cell);
                if !places.contains(&at) {
                    places.push(at);
                }
            }
            format!("{name} {}", places.join(", "))
        };
        let there: Vec<String> = self.filters.iter().map(|(place, _)| there(*place)).collect();
        there.join("; ")
    }

    /// The figure in the cell that goes with `subject`; `None` if there is no such cell.
    pub(super) fn value(
        &self,
        condition: &Condition,
        record: &Record,
        figure: &Figure,
        subject: &VisitCell,
    ) -> Result<Option<f64>, CheckError> {
        let mut cells = record.visit_cells.iter().enumerate();
        let found = cells.find(|(_, cell)| self.goes_with(cell, subject));
        found.map(|(place, _)| self.of_cell(condition, record, figure, place)).transpose()
    }

    fn of_cell(
        &self,
        condition: &Condition,
        record: &Record,
        figure: &Figure,
        place: usize,
    ) -> Result<f64, CheckError> {
        let cell = &record.visit_cells[place];
        let counted = |is: fn(&crate::Visit) -> bool| {
            record.visits.iter().filter(|visit| visit.cell == place && is(visit)).count() as f64
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
            Time::Total => Some(&summary.total),
            Time::Tls => summary.tls.as_ref(),
            Time::WireTotal => summary.wire_total.as_ref(),
            Time::WireTls => summary.wire_tls.as_ref(),
            Time::Load => summary.load.as_ref(),
            Time::Paint => summary.largest_paint.as_ref(),
        }
    }
}

fn names<T>(all: &[(&str, T)]) -> String {
    all.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}
