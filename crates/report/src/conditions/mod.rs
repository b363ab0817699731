//! Conditions on a record that fail a pipeline, such as `p95(0rtt) > 1.2*rtt`.
//!
//! ```text
//! condition  = comparison, joined by `and`, `or`, `not` and parentheses
//! comparison = sum (`<` | `<=` | `>` | `>=` | `==` | `!=`) sum
//! sum        = `+ - * /` and parentheses over numbers (`5`, `5ms`, `200us`, `0.3s`), figures,
//!              and the variables `rtt` and `old`
//! figure     = function `(` kind and filters, by commas `)`, such as
//!              `p50(0rtt, server=nginx, profile=cable, tfo=on, tls=1.3, time=total)`
//! ```
//!
//! A condition states what must not be true. It is evaluated for each cell that its first figure
//! selects, and fails if it is true for any of them. Further figures are taken from the cell that
//! differs only in their own kind and filters: `p50(0rtt) > 0.7*p50(full)` compares each 0-RTT cell
//! with the full handshake on the same path, at the same server, with the same version. If several
//! cells correspond equally well, the condition is undecided. `rtt` is the round-trip time of the
//! cell's profile, and `old` the comparison's first figure in the earlier record.
//!
//! A figure that names `visit`, `browser` or `page` selects visits of browsers: `p50(visit=on,
//! page=small, time=tls) > 5ms`.

/// The group of a condition's outcome, whose name is the condition.
pub(crate) const CONDITION: &str = "condition";

mod evaluate;
mod parser;
mod selector;

use crate::{CheckOutcome, Figures, Record};

/// A parsed condition.
#[derive(Clone, Debug)]
pub struct Condition {
    text: String,
    root: Expression,
    figures: Vec<Figure>,
}

impl Condition {
    /// Parses a condition.
    ///
    /// # Errors
    /// [`ConditionError`] with the column and what is allowed there.
    pub fn parse(text: &str) -> Result<Self, ConditionError> {
        parser::parse(text)
    }

    /// The condition as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it uses `old`, and so needs an earlier record.
    pub fn needs_old(&self) -> bool {
        self.root.any(&|expression| matches!(expression, Expression::Old(_)))
    }

    fn uses_rtt(&self) -> bool {
        self.root.any(&|expression| matches!(expression, Expression::Rtt))
    }

    /// Like [`Condition::check`], with errors as [`CheckOutcome::undecided`].
    pub fn outcome(&self, record: &Record, old: Option<&Record>) -> CheckOutcome {
        self.check(record, old).unwrap_or_else(|error| {
            CheckOutcome::undecided(CONDITION, &self.text, &error.to_string())
        })
    }

    /// Evaluates the condition for every cell that it selects. If the condition uses `old`, only
    /// cells that both records have are evaluated.
    ///
    /// # Errors
    /// [`CheckError`] if it selects no cell, or if a figure was not measured or has too few
    /// samples.
    pub fn check(&self, record: &Record, old: Option<&Record>) -> Result<CheckOutcome, CheckError> {
        evaluate::check(self, record, old)
    }
}

/// A condition that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column {column} of the condition: {message}")]
pub struct ConditionError {
    /// The column in characters, from 1.
    pub column: usize,
    /// What is wrong and what is allowed.
    pub message: String,
    text: String,
}

impl ConditionError {
    fn new(text: &str, start: usize, message: impl Into<String>) -> Self {
        let column = text.get(..start).map_or(0, |before| before.chars().count()) + 1;
        Self { column, message: message.into(), text: text.to_owned() }
    }

    /// The condition and below it a caret under the column, for a terminal.
    pub fn pointer(&self) -> String {
        format!("{}\n{}^", self.text, " ".repeat(self.column - 1))
    }
}

/// The syntax tree of a condition.
#[derive(Clone, Debug)]
enum Expression {
    Number(f64),
    Rtt,
    /// A figure by its index in the condition's list.
    Figure(usize),
    /// The same figure in the earlier record.
    Old(usize),
    Negative(Box<Expression>),
    Arithmetic(Arithmetic, Box<[Expression; 2]>),
    Comparison(Comparison, Box<[Expression; 2]>),
    And(Box<[Expression; 2]>),
    Or(Box<[Expression; 2]>),
    Not(Box<Expression>),
}

impl Expression {
    fn any(&self, predicate: &dyn Fn(&Self) -> bool) -> bool {
        predicate(self)
            || match self {
                Self::Number(_) | Self::Rtt | Self::Figure(_) | Self::Old(_) => false,
                Self::Negative(operand) | Self::Not(operand) => operand.any(predicate),
                Self::Arithmetic(_, operands) | Self::Comparison(_, operands) => {
                    operands.iter().any(|operand| operand.any(predicate))
                }
                Self::And(operands) | Self::Or(operands) => {
                    operands.iter().any(|operand| operand.any(predicate))
                }
            }
    }
}

#[derive(Clone, Copy, Debug)]
enum Arithmetic {
    Plus,
    Minus,
    Times,
    Over,
}

#[derive(Clone, Copy, Debug)]
enum Comparison {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Equal,
    NotEqual,
}

/// A function of the samples that a selector picks.
#[derive(Clone, Debug)]
struct Figure {
    function: Function,
    selector: selector::Selector,
    /// Used instead of `selector` for visits of browsers.
    visits: Option<selector::VisitSelector>,
    /// Its source text.
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Function {
    Min,
    P50,
    P95,
    P99,
    P999,
    Max,
    Mean,
    Count,
    Spoiled,
    RoundTrips,
    Replays,
    /// Visits with early data that was accepted.
    Early,
    /// Visits whose browser times and packets disagree.
    Warnings,
}

impl Function {
    const ALL: [(&str, Self); 13] = [
        ("min", Self::Min),
        ("p50", Self::P50),
        ("p95", Self::P95),
        ("p99", Self::P99),
        ("p999", Self::P999),
        ("max", Self::Max),
        ("mean", Self::Mean),
        ("count", Self::Count),
        ("spoiled", Self::Spoiled),
        ("round_trips", Self::RoundTrips),
        ("replays", Self::Replays),
        ("early", Self::Early),
        ("warnings", Self::Warnings),
    ];

    fn is_time(self) -> bool {
        !matches!(self, Self::Count | Self::Spoiled | Self::RoundTrips | Self::Replays)
            && !self.is_of_visits()
    }

    /// Whether it applies only to visits.
    fn is_of_visits(self) -> bool {
        matches!(self, Self::Early | Self::Warnings)
    }

    /// Its value in a distribution. Returns `None` if it is not a function of time, or is not
    /// reported.
    fn of(self, figures: &Figures) -> Option<f64> {
        match self {
            Self::Min => Some(figures.min_ms),
            Self::P50 => Some(figures.p50_ms),
            Self::P95 => figures.p95_ms,
            Self::P99 => figures.p99_ms,
            Self::P999 => figures.p999_ms,
            Self::Max => Some(figures.max_ms),
            Self::Mean => Some(figures.mean_ms),
            _ => None,
        }
    }

    /// The number of samples that it needs.
    fn samples_needed(self) -> usize {
        match self {
            Self::P95 => 59,
            Self::P99 => 299,
            Self::P999 => 2995,
            _ => 1,
        }
    }
}

/// A condition that cannot be decided from a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// It uses `old` without an earlier record.
    #[error("{condition}: old needs an earlier record; name one with --compare")]
    NoOldRecord {
        /// The condition.
        condition: String,
    },
    /// A figure selects no cell.
    #[error("{condition}: {figure} selects nothing in the record; available: {available}")]
    NoMatch {
        /// The condition.
        condition: String,
        /// The figure.
        figure: String,
        /// The available values.
        available: String,
    },
    /// No cell has a counterpart to compare with.
    #[error(
        "{condition}: no cell of {figure} has a corresponding {other}; measure both, or add filters"
    )]
    NoCounterpart {
        /// The condition.
        condition: String,
        /// The first figure.
        figure: String,
        /// What it is compared with.
        other: String,
    },
    /// Several cells correspond to one.
    #[error("{condition}: {figure} is one of several cells for {cell}: {cells}; add filters")]
    Ambiguous {
        /// The condition.
        condition: String,
        /// The cell that the condition is evaluated for.
        cell: String,
        /// The figure.
        figure: String,
        /// The cells that it may be taken from.
        cells: String,
    },
    /// A cell has too few samples for a figure.
    #[error(
        "{condition}: {cell} has {samples} good samples, {figure} needs {needed}; measure more"
    )]
    TooFew {
        /// The condition.
        condition: String,
        /// The cell.
        cell: String,
        /// The figure.
        figure: String,
        /// Good samples.
        samples: usize,
        /// The number of samples needed.
        needed: usize,
    },
    /// A cell has samples, but the figure was not measured.
    #[error("{condition}: {figure} was not measured in {cell}; choose another figure or filter")]
    NotMeasured {
        /// The condition.
        condition: String,
        /// The cell.
        cell: String,
        /// The figure.
        figure: String,
    },
    /// The replays at a server were not counted reliably.
    #[error("{condition}: replays at {server}: {why}; measure again")]
    Uncounted {
        /// The condition.
        condition: String,
        /// The server.
        server: String,
        /// Why not.
        why: String,
    },
    /// The value is not finite.
    #[error(
        "{condition}: in {cell} it divides by zero, or the round-trip time is unknown; compare \
         products, or leave out rtt"
    )]
    NotFinite {
        /// The condition.
        condition: String,
        /// The cell.
        cell: String,
    },
}

impl CheckError {
    /// Adds to the cell's name that it is in the earlier record.
    fn in_the_earlier_record(mut self) -> Self {
        if let Self::TooFew { cell, .. } | Self::NotMeasured { cell, .. } = &mut self {
            cell.push_str(" in the earlier record");
        }
        self
    }
}
