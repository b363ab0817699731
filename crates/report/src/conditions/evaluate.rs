//! Evaluates a condition for the cells of a record.

use super::{
    Arithmetic, CONDITION, CheckError, Comparison, Condition, Expression, Figure, Function,
};
use crate::axes::{self, axis_values, same_except};
use crate::format::{count, format_ms_unit};
use crate::{Cell, CheckOutcome, Fault, Record, VisitCell, visits};

pub(super) fn check(
    condition: &Condition,
    record: &Record,
    old: Option<&Record>,
) -> Result<CheckOutcome, CheckError> {
    if condition.needs_old() && old.is_none() {
        return Err(CheckError::NoOldRecord { condition: condition.text.clone() });
    }
    let evaluation = Evaluation { condition, record, old };
    let mut outcome = CheckOutcome::new(CONDITION, &condition.text);
    let mut first_missing: Option<String> = None;
    for subject in evaluation.subjects()? {
        match evaluation.values(&subject)? {
            Err(missing) => {
                outcome.skipped.push(format!("{}: no {missing}", evaluation.name(&subject)));
                first_missing.get_or_insert(missing);
            }
            Ok(values) => {
                outcome.checked += 1;
                if evaluation.is_true(&condition.root, &subject, &values)? {
                    let figures = evaluation.figures(&subject, &values);
                    outcome.findings.push(format!("{}: {figures}", evaluation.name(&subject)));
                }
            }
        }
    }
    match (outcome.checked, first_missing) {
        (0, Some(other)) => Err(CheckError::NoCounterpart {
            condition: condition.text.clone(),
            figure: evaluation.first().text.clone(),
            other,
        }),
        _ => Ok(outcome),
    }
}

/// What a condition is evaluated for, and where a figure is taken from.
#[derive(Clone, Copy)]
enum Subject<'a> {
    Cell(usize, &'a Cell),
    Visits(usize, &'a VisitCell),
    Server(&'a str),
}

impl<'a> Subject<'a> {
    fn server(&self) -> &'a str {
        match *self {
            Self::Cell(_, cell) => &cell.server,
            Self::Visits(_, cell) => &cell.server,
            Self::Server(server) => server,
        }
    }
}

/// The same cell, visits or server in the earlier record.
fn counterpart<'a>(old: &'a Record, source: &Subject<'a>) -> Option<Subject<'a>> {
    match *source {
        Subject::Cell(_, cell) => {
            let same = |other: &Cell| !other.control && same_except(other, cell, &[]);
            let index = old.cells.iter().position(same)?;
            Some(Subject::Cell(index, &old.cells[index]))
        }
        Subject::Visits(_, cell) => {
            let same =
                |other: &VisitCell| other.visit == cell.visit && other.same_except_visit(cell);
            let index = old.visit_cells.iter().position(same)?;
            Some(Subject::Visits(index, &old.visit_cells[index]))
        }
        Subject::Server(server) => Some(Subject::Server(server)),
    }
}

/// The value of a figure in the record and in the earlier one.
struct Value {
    new: f64,
    old: Option<f64>,
}

struct Evaluation<'a> {
    condition: &'a Condition,
    record: &'a Record,
    old: Option<&'a Record>,
}

impl<'a> Evaluation<'a> {
    /// The figure that selects the subjects: the first one that is not about servers.
    fn first(&self) -> &'a Figure {
        let figures = &self.condition.figures;
        figures.iter().find(|f| f.function != Function::Replays).unwrap_or(&figures[0])
    }

    fn subjects(&self) -> Result<Vec<Subject<'a>>, CheckError> {
        // A figure that selects no cell is a mistake, even if it is not the first.
        for figure in &self.condition.figures {
            if !self.selects(figure) {
                return Err(self.no_match(figure));
            }
        }
        let first = self.first();
        if let Some(selector) = &first.visits {
            let cells = self.record.visit_cells.iter().enumerate();
            return Ok(cells
                .filter(|(_, cell)| selector.matches(cell))
                .map(|(index, cell)| Subject::Visits(index, cell))
                .collect());
        }
        Ok(match first.function {
            Function::Replays => self
                .record
                .replayed_servers()
                .into_iter()
                .filter(|server| first.selector.matches_server(server))
                .map(Subject::Server)
                .collect(),
            _ => (self.record.cells.iter().enumerate())
                .filter(|(_, cell)| first.selector.matches(cell))
                .map(|(index, cell)| Subject::Cell(index, cell))
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

    /// The condition's figures for a subject. The inner `Err` names the missing figure.
    fn values(&self, subject: &Subject<'a>) -> Result<Result<Vec<Value>, String>, CheckError> {
        let mut values = Vec::new();
        for figure in &self.condition.figures {
            let Some(source) = self.source(figure, subject)? else {
                return Ok(Err(figure.text.clone()));
            };
            let Some(new) = self.value(self.record, figure, &source)? else {
                return Ok(Err(figure.text.clone()));
            };
            let uses_old = self.uses_old(values.len());
            // A figure that only the new record has to have may be missing in the earlier one.
            let before = self.old.filter(|_| uses_old);
            let old = match before.and_then(|old| Some((old, counterpart(old, &source)?))) {
                Some((old, source)) => {
                    self.value(old, figure, &source).map_err(CheckError::in_the_earlier_record)?
                }
                None => None,
            };
            if uses_old && old.is_none() {
                return Ok(Err(format!("{} in the earlier record", figure.text)));
            }
            values.push(Value { new, old });
        }
        Ok(Ok(values))
    }

    fn uses_old(&self, figure: usize) -> bool {
        self.condition
            .root
            .any(&|expression| matches!(expression, Expression::Old(index) if *index == figure))
    }

    /// Where a figure is taken from for a subject: the first figure from the subject itself, the
    /// others from the selected cell that corresponds to it.
    fn source(
        &self,
        figure: &Figure,
        subject: &Subject<'a>,
    ) -> Result<Option<Subject<'a>>, CheckError> {
        let first = std::ptr::eq(figure, self.first());
        let found = match *subject {
            _ if figure.function == Function::Replays => {
                return Ok(Some(Subject::Server(subject.server())));
            }
            Subject::Cell(index, cell) if first => vec![Subject::Cell(index, cell)],
            Subject::Visits(index, cell) if first => vec![Subject::Visits(index, cell)],
            Subject::Cell(_, cell) => figure
                .selector
                .corresponding(&self.record.cells, cell)
                .into_iter()
                .map(|index| Subject::Cell(index, &self.record.cells[index]))
                .collect(),
            Subject::Visits(_, cell) => (figure.visits.iter())
                .flat_map(|selector| selector.corresponding(&self.record.visit_cells, cell))
                .map(|index| Subject::Visits(index, &self.record.visit_cells[index]))
                .collect(),
            Subject::Server(_) => Vec::new(),
        };
        match <[Subject<'a>; 1]>::try_from(found) {
            Ok([source]) => Ok(Some(source)),
            Err(none) if none.is_empty() => Ok(None),
            Err(several) => Err(CheckError::Ambiguous {
                condition: self.condition.text.clone(),
                cell: self.name(subject),
                figure: figure.text.clone(),
                cells: several.iter().map(|cell| self.name(cell)).collect::<Vec<_>>().join("; "),
            }),
        }
    }

    fn value(
        &self,
        record: &Record,
        figure: &Figure,
        source: &Subject<'_>,
    ) -> Result<Option<f64>, CheckError> {
        match (*source, &figure.visits) {
            (Subject::Cell(index, cell), _) => {
                self.cell_value(record, figure, index, cell).map(Some)
            }
            (Subject::Visits(index, _), Some(selector)) => {
                selector.cell_value(self.condition, record, figure, index).map(Some)
            }
            (Subject::Visits(..), None) => Ok(None),
            (Subject::Server(server), _) => {
                // A filter may name another server than the subject.
                let named = figure.selector.axes().next().is_some();
                // There is a row for each transport.
                let rows = record.replays.iter().filter(|replay| match named {
                    true => figure.selector.matches_server(&replay.server),
                    false => replay.server == server,
                });
                let mut executed = None;
                for replay in rows {
                    if let Some(why) = replay.doubt() {
                        return Err(CheckError::Uncounted {
                            condition: self.condition.text.clone(),
                            server: replay.name(),
                            why,
                        });
                    }
                    executed = Some(executed.unwrap_or(0) + replay.executed);
                }
                Ok(executed.map(|executed| executed as f64))
            }
        }
    }

    fn cell_value(
        &self,
        record: &Record,
        figure: &Figure,
        index: usize,
        cell: &Cell,
    ) -> Result<f64, CheckError> {
        let spoiled = |sample: &&crate::Sample| {
            sample.cell == index && matches!(sample.fault, Some(Fault::Spoiled(_)))
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
        let name = axes::cell_name(record, cell);
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

    fn is_true(
        &self,
        expression: &Expression,
        subject: &Subject<'_>,
        values: &[Value],
    ) -> Result<bool, CheckError> {
        let is_true = |operand: &Expression| self.is_true(operand, subject, values);
        // Both sides are always evaluated, so an error on one side is never hidden by the other.
        Ok(match expression {
            Expression::And(operands) => is_true(&operands[0])? & is_true(&operands[1])?,
            Expression::Or(operands) => is_true(&operands[0])? | is_true(&operands[1])?,
            Expression::Not(operand) => !is_true(operand)?,
            Expression::Comparison(operator, operands) => {
                let left = self.number(&operands[0], subject, values)?;
                let right = self.number(&operands[1], subject, values)?;
                match operator {
                    Comparison::Less => left < right,
                    Comparison::LessOrEqual => left <= right,
                    Comparison::Greater => left > right,
                    Comparison::GreaterOrEqual => left >= right,
                    Comparison::Equal => left == right,
                    Comparison::NotEqual => left != right,
                }
            }
            // The parser permits only the above as boolean expressions.
            _ => false,
        })
    }

    fn number(
        &self,
        expression: &Expression,
        subject: &Subject<'_>,
        values: &[Value],
    ) -> Result<f64, CheckError> {
        let number = |operand: &Expression| self.number(operand, subject, values);
        let value = match expression {
            Expression::Number(value) => *value,
            Expression::Rtt => match subject {
                // 0 if it is unknown.
                Subject::Cell(_, cell) if cell.rtt_ms > 0.0 => cell.rtt_ms,
                Subject::Visits(_, cell) => cell.rtt_ms,
                Subject::Cell(..) | Subject::Server(_) => f64::NAN,
            },
            Expression::Figure(index) => values[*index].new,
            Expression::Old(index) => values[*index].old.unwrap_or(f64::NAN),
            Expression::Negative(operand) => -number(operand)?,
            Expression::Arithmetic(operator, operands) => {
                let (left, right) = (number(&operands[0])?, number(&operands[1])?);
                match operator {
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
            Subject::Cell(index, _) => axes::cell_name(self.record, &self.record.cells[*index]),
            Subject::Visits(_, cell) => visits::name(cell),
            Subject::Server(server) => (*server).to_owned(),
        }
    }

    /// The values that made the condition true.
    fn figures(&self, subject: &Subject<'_>, values: &[Value]) -> String {
        let mut parts = Vec::new();
        for (index, (figure, value)) in self.condition.figures.iter().zip(values).enumerate() {
            let format_value = |value: f64| match figure.function.is_time() {
                true => format_ms_unit(value),
                false => count(value),
            };
            parts.push(format!("{} is {}", figure.text, format_value(value.new)));
            if let Some(old) = value.old.filter(|_| self.uses_old(index)) {
                parts.push(format!("was {}", format_value(old)));
            }
        }
        let rtt_ms = match subject {
            Subject::Cell(_, cell) => Some(cell.rtt_ms),
            Subject::Visits(_, cell) => Some(cell.rtt_ms),
            Subject::Server(_) => None,
        };
        if let Some(ms) = rtt_ms.filter(|_| self.condition.uses_rtt()) {
            parts.push(format!("rtt is {}", format_ms_unit(ms)));
        }
        parts.join(", ")
    }

    fn no_match(&self, figure: &Figure) -> CheckError {
        let available = match figure.function {
            _ if figure.visits.is_some() => figure
                .visits
                .as_ref()
                .map(|visits| visits.available(self.record))
                .unwrap_or_default(),
            Function::Replays => {
                let servers = self.record.replayed_servers();
                match servers.is_empty() {
                    true => "no attack in it".to_owned(),
                    false => format!("server {}", servers.join(", ")),
                }
            }
            _ => {
                let axes = figure.selector.axes();
                let values = axes.map(|axis| {
                    let values = axis_values(self.record, axis);
                    match values.is_empty() {
                        true => format!("no {}", axis.name()),
                        false => format!("{} {}", axis.name(), values.join(", ")),
                    }
                });
                let values: Vec<String> = values.collect();
                if values.is_empty() { "no cell".to_owned() } else { values.join("; ") }
            }
        };
        CheckError::NoMatch {
            condition: self.condition.text.clone(),
            figure: figure.text.clone(),
            available,
        }
    }
}
