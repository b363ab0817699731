//! Asking a condition of a record's cells.

use super::{Arithmetic, CheckError, Comparison, Condition, Expression, Figure, Function};
use crate::axes::{self, places};
use crate::figure::{count, milliseconds};
use crate::{Cell, Fault, Record, Verdict, VisitCell, visits};

pub(super) fn check(
    condition: &Condition,
    record: &Record,
    old: Option<&Record>,
) -> Result<Verdict, CheckError> {
    if condition.needs_old() && old.is_none() {
        return Err(CheckError::NoOld { condition: condition.text.clone() });
    }
    let asked = Asked { condition, record, old };
    let mut verdict = Verdict::new("condition", &condition.claim());
    let mut without: Option<String> = None;
    for subject in asked.subjects()? {
        match asked.values(&subject)? {
            Err(missing) => {
                verdict.left_out.push(format!("{}: no {missing}", asked.name(&subject)));
                without.get_or_insert(missing);
            }
            Ok(values) => {
                verdict.checked += 1;
                if asked.truth(&condition.root, &subject, &values)? {
                    let figures = asked.figures(&subject, &values);
                    verdict.findings.push(format!("{}: {figures}", asked.name(&subject)));
                }
            }
        }
    }
    match (verdict.checked, without) {
        (0, Some(other)) => Err(CheckError::NoPartner {
            condition: condition.text.clone(),
            figure: asked.first().text.clone(),
            other,
        }),
        _ => Ok(verdict),
    }
}

/// What a condition is asked of.
enum Subject<'a> {
    Cell(usize, &'a Cell),
    Visits(&'a VisitCell),
    Server(&'a str),
}

/// A figure in the record and in the old one.
struct Value {
    new: f64,
    old: Option<f64>,
}

struct Asked<'a> {
    condition: &'a Condition,
    record: &'a Record,
    old: Option<&'a Record>,
}

impl<'a> Asked<'a> {
    /// The figure that decides of what the condition is asked: the first that is not of a server.
    fn first(&self) -> &'a Figure {
        let figures = &self.condition.figures;
        figures.iter().find(|f| f.function != Function::Replays).unwrap_or(&figures[0])
    }

    fn subjects(&self) -> Result<Vec<Subject<'a>>, CheckError> {
        // A figure that names what no cell has is a mistake, even where it is not the first.
        for figure in &self.condition.figures {
            if !self.selects(figure) {
                return Err(self.nothing(figure));
            }
        }
        let first = self.first();
        if let Some(selector) = &first.visits {
            let cells = self.record.visit_cells.iter().filter(|cell| selector.matches(cell));
            return Ok(cells.map(Subject::Visits).collect());
        }
        Ok(match first.function {
            Function::Replays => self
                .record
                .attacked()
                .into_iter()
                .filter(|server| first.selector.matches_server(server))
                .map(Subject::Server)
                .collect(),
            _ => (self.record.cells.iter().enumerate())
                .filter(|(_, cell)| first.selector.matches(cell))
                .map(|(place, cell)| Subject::Cell(place, cell))
                .collect(),
        })
    }

    fn selects(&self, figure: &Figure) -> bool {
        if let Some(selector) = &figure.visits {
            return self.record.visit_cells.iter().any(|cell| selector.matches(cell));
        }
        match figure.function {
            Function::Replays => {
                self.record.replays.iter().any(|r| figure.selector.matches_server(&r.server))
            }
            _ => self.record.cells.iter().any(|cell| figure.selector.matches(cell)),
        }
    }

    /// The condition's figures for a subject; `Err`: which one there is none of.
    fn values(&self, subject: &Subject<'a>) -> Result<Result<Vec<Value>, String>, CheckError> {
        let needs_old = self.condition.needs_old();
        let mut values = Vec::new();
        for figure in &self.condition.figures {
            let Some(new) = self.value(self.record, figure, subject)? else {
                return Ok(Err(figure.text.clone()));
            };
            let old = match self.old {
                Some(old) if needs_old => self.value(old, figure, subject)?,
                _ => None,
            };
            if needs_old && old.is_none() && self.speaks_of_old(values.len()) {
                return Ok(Err(format!("{} in the earlier record", figure.text)));
            }
            values.push(Value { new, old });
        }
        Ok(Ok(values))
    }

    fn speaks_of_old(&self, figure: usize) -> bool {
        self.condition
            .root
            .any(&|expression| matches!(expression, Expression::Old(place) if *place == figure))
    }

    fn value(
        &self,
        record: &'a Record,
        figure: &Figure,
        subject: &Subject<'a>,
    ) -> Result<Option<f64>, CheckError> {
        if let (Some(selector), Subject::Visits(cell)) = (&figure.visits, subject) {
            return selector.value(self.condition, record, figure, cell);
        }
        if figure.function == Function::Replays {
            let server = match subject {
                Subject::Cell(_, cell) => cell.server.as_str(),
                Subject::Visits(cell) => cell.server.as_str(),
                Subject::Server(server) => server,
            };
            // A filter may name another server than the subject's.
            let named = figure.selector.axes().next().is_some();
            // A row for each transport.
            let rows = record.replays.iter().filter(|replay| match named {
                true => figure.selector.matches_server(&replay.server),
                false => replay.server == server,
            });
            let executed: Vec<usize> = rows.map(|replay| replay.executed).collect();
            return Ok((!executed.is_empty()).then(|| executed.iter().sum::<usize>() as f64));
        }
        let Subject::Cell(_, subject) = subject else { return Ok(None) };
        let found = record.cells.iter().enumerate();
        let mut found = found.filter(|(_, cell)| figure.selector.goes_with(cell, subject));
        match found.next() {
            None => Ok(None),
            Some((place, cell)) => self.of_cell(record, figure, place, cell).map(Some),
        }
    }

    fn of_cell(
        &self,
        record: &Record,
        figure: &Figure,
        place: usize,
        cell: &Cell,
    ) -> Result<f64, CheckError> {
        let spoiled = |sample: &&crate::Sample| {
            sample.cell == place && matches!(sample.fault, Some(Fault::Spoiled(_)))
        };
        match figure.function {
            Function::Spoiled => {
                return Ok(record.samples.iter().filter(spoiled).count() as f64);
            }
            Function::Count => {
                return Ok(cell.summary.as_ref().map_or(0, |summary| summary.samples) as f64);
            }
            _ => {}
        }
        let samples = cell.summary.as_ref().map_or(0, |summary| summary.samples);
        let needed = figure.function.samples_needed();
        let name = axes::name(record, cell);
        let Some(summary) = cell.summary.as_ref().filter(|_| samples >= needed) else {
            return Err(CheckError::TooFew {
                condition: self.condition.text.clone(),
                cell: name,
                figure: figure.text.clone(),
                samples,
                needed,
            });
        };
        let figures = figure.selector.figures(summary);
        let value = match figure.function {
            Function::RoundTrips => summary.round_trips.map(f64::from),
            function => figures.and_then(|figures| function.of(figures)),
        };
        value.ok_or_else(|| CheckError::NotMeasured {
            condition: self.condition.text.clone(),
            cell: name,
            figure: figure.text.clone(),
        })
    }

    fn truth(
        &self,
        expression: &Expression,
        subject: &Subject<'_>,
        values: &[Value],
    ) -> Result<bool, CheckError> {
        let truth = |of: &Expression| self.truth(of, subject, values);
        // Both sides are always worked out: a side that cannot be must not hide behind the other.
        Ok(match expression {
            Expression::And(both) => truth(&both[0])? & truth(&both[1])?,
            Expression::Or(both) => truth(&both[0])? | truth(&both[1])?,
            Expression::Not(of) => !truth(of)?,
            Expression::Comparison(how, both) => {
                let left = self.number(&both[0], subject, values)?;
                let right = self.number(&both[1], subject, values)?;
                match how {
                    Comparison::Less => left < right,
                    Comparison::LessOrEqual => left <= right,
                    Comparison::Greater => left > right,
                    Comparison::GreaterOrEqual => left >= right,
                    Comparison::Equal => left == right,
                    Comparison::NotEqual => left != right,
                }
            }
            // The parser lets only the above be asked for their truth.
            _ => false,
        })
    }

    fn number(
        &self,
        expression: &Expression,
        subject: &Subject<'_>,
        values: &[Value],
    ) -> Result<f64, CheckError> {
        let number = |of: &Expression| self.number(of, subject, values);
        let value = match expression {
            Expression::Number(value) => *value,
            Expression::Rtt => match subject {
                Subject::Cell(_, cell) => cell.rtt_ms,
                Subject::Visits(cell) => cell.rtt_ms,
                Subject::Server(_) => f64::NAN,
            },
            Expression::Figure(place) => values[*place].new,
            Expression::Old(place) => values[*place].old.unwrap_or(f64::NAN),
            Expression::Negative(of) => -number(of)?,
            Expression::Arithmetic(how, both) => {
                let (left, right) = (number(&both[0])?, number(&both[1])?);
                match how {
                    Arithmetic::Plus => left + right,
                    Arithmetic::Minus => left - right,
                    Arithmetic::Times => left * right,
                    Arithmetic::Over => left / right,
                }
            }
            _ => f64::NAN,
        };
        match value.is_finite() {
            true => Ok(value),
            false => Err(CheckError::NotFinite {
                condition: self.condition.text.clone(),
                cell: self.name(subject),
            }),
        }
    }

    fn name(&self, subject: &Subject<'_>) -> String {
        match subject {
            Subject::Cell(place, _) => axes::name(self.record, &self.record.cells[*place]),
            Subject::Visits(cell) => visits::name(cell),
            Subject::Server(server) => (*server).to_owned(),
        }
    }

    /// The values that made the condition true.
    fn figures(&self, subject: &Subject<'_>, values: &[Value]) -> String {
        let mut words = Vec::new();
        for (place, (figure, value)) in self.condition.figures.iter().zip(values).enumerate() {
            let say = |value: f64| match figure.function.is_time() {
                true => milliseconds(value),
                false => count(value),
            };
            words.push(format!("{} is {}", figure.text, say(value.new)));
            if let Some(old) = value.old.filter(|_| self.speaks_of_old(place)) {
                words.push(format!("was {}", say(old)));
            }
        }
        let rtt_ms = match subject {
            Subject::Cell(_, cell) => Some(cell.rtt_ms),
            Subject::Visits(cell) => Some(cell.rtt_ms),
            Subject::Server(_) => None,
        };
        if let Some(ms) = rtt_ms.filter(|_| self.condition.speaks_of_rtt()) {
            words.push(format!("rtt is {}", milliseconds(ms)));
        }
        words.join(", ")
    }

    fn nothing(&self, figure: &Figure) -> CheckError {
        let there = match figure.function {
            _ if figure.visits.is_some() => {
                figure.visits.as_ref().map(|visits| visits.there(self.record)).unwrap_or_default()
            }
            Function::Replays => {
                let servers = self.record.attacked();
                match servers.is_empty() {
                    true => "no attack in it".to_owned(),
                    false => format!("server {}", servers.join(", ")),
                }
            }
            _ => {
                let axes = figure.selector.axes();
                let places = axes.map(|axis| {
                    let places = places(self.record, axis);
                    match places.is_empty() {
                        true => format!("no {}", axis.name()),
                        false => format!("{} {}", axis.name(), places.join(", ")),
                    }
                });
                let places: Vec<String> = places.collect();
                if places.is_empty() { "no cell".to_owned() } else { places.join("; ") }
            }
        };
        CheckError::Nothing {
            condition: self.condition.text.clone(),
            figure: figure.text.clone(),
            there,
        }
    }
}
