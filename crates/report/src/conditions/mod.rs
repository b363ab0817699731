//! Conditions on a record, such as `p95(0rtt) > 1.2*rtt`, for those who let a pipeline fail.
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
//! A condition describes what must not be. It is requested each cell that its first figure selects,
//! and fails if it is true in any of them. Further figures belong to the same cell but for what
//! their own kind and filters say: `p50(0rtt) > 0.7*p50(full)` compares each 0-RTT cell with the
//! full handshake on the same path, at the same server, with the same version. `rtt` is the round
//! trip of the cell's profile, `old` the comparison's first figure in the record compared with.
//!
//! A figure that names `visit`, `browser` or `page` is one of browsers' visits:
//! `p50(visit=on, page=small, time=tls) > 5ms`.

mod error;
mod evaluate;
mod parser;
mod selector;
mod tokens;
mod visits;

pub use error::CheckError;

use crate::{Figures, Record, Verdict};

/// A condition that was understood.
#[derive(Clone, Debug)]
pub struct Condition {
    text: String,
    root: Expression,
    figures: Vec<Figure>,
}

impl Condition {
    /// Reads a condition.
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

    /// Whether it speaks of `old`, and so needs a record to compare with.
    pub fn needs_old(&self) -> bool {
        self.root.any(&|expression| matches!(expression, Expression::Old(_)))
    }

    fn speaks_of_rtt(&self) -> bool {
        self.root.any(&|expression| matches!(expression, Expression::Rtt))
    }

    /// The result as a verdict in any case: what cannot be decided is [`Verdict::undecided`].
    pub fn verdict(&self, record: &Record, old: Option<&Record>) -> Verdict {
        self.check(record, old).unwrap_or_else(|error| {
            Verdict::undecided("condition", &self.claim(), &error.to_string())
        })
    }

    /// What holds if the condition is true nowhere.
    fn claim(&self) -> String {
        format!("not ({})", self.text)
    }

    /// Asks the condition of every cell that it selects; with `old`, of those that both records
    /// have where the condition speaks of `old`.
    ///
    /// # Errors
    /// [`CheckError`] if it selects nothing, or needs a figure that the samples do not suffice for:
    /// what was not measured is never a pass.
    pub fn check(&self, record: &Record, old: Option<&Record>) -> Result<Verdict, CheckError> {
        evaluate::check(self, record, old)
    }
}

/// A condition that is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column {column} of the condition: {message}")]
pub struct ConditionError {
    /// Where, in characters from 1.
    pub column: usize,
    /// What is wrong and what is allowed, without the place.
    pub message: String,
    text: String,
}

impl ConditionError {
    fn new(text: &str, at: usize, message: impl Into<String>) -> Self {
        let column = text.get(..at).map_or(0, |before| before.chars().count()) + 1;
        Self { column, message: message.into(), text: text.to_owned() }
    }

    /// The condition, and below it a caret under the place, for a terminal.
    pub fn pointer(&self) -> String {
        format!("{}\n{}^", self.text, " ".repeat(self.column - 1))
    }
}

/// A part of a condition.
#[derive(Clone, Debug)]
enum Expression {
    Number(f64),
    Rtt,
    /// A figure, by its place in the condition's list.
    Figure(usize),
    /// The same figure in the old record.
    Old(usize),
    Negative(Box<Expression>),
    Arithmetic(Arithmetic, Box<[Expression; 2]>),
    Comparison(Comparison, Box<[Expression; 2]>),
    And(Box<[Expression; 2]>),
    Or(Box<[Expression; 2]>),
    Not(Box<Expression>),
}

impl Expression {
    fn any(&self, is: &dyn Fn(&Self) -> bool) -> bool {
        is(self)
            || match self {
                Self::Number(_) | Self::Rtt | Self::Figure(_) | Self::Old(_) => false,
                Self::Negative(of) | Self::Not(of) => of.any(is),
                Self::Arithmetic(_, both) | Self::Comparison(_, both) => {
                    both.iter().any(|of| of.any(is))
                }
                Self::And(both) | Self::Or(both) => both.iter().any(|of| of.any(is)),
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
    /// Instead of `selector`, where it is about visits of browsers.
    visits: Option<visits::VisitSelector>,
    /// As it was written.
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
    /// Visits in which browser and packets disagree.
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

    /// Whether only visits have it.
    fn is_of_visits(self) -> bool {
        matches!(self, Self::Early | Self::Warnings)
    }

    /// Its value in a distribution; `None` for what is none of time, or not reported.
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

    /// From how many samples on a percentile is given.
    fn samples_needed(self) -> usize {
        match self {
            Self::P95 => 59,
            Self::P99 => 299,
            Self::P999 => 2995,
            _ => 1,
        }
    }
}
