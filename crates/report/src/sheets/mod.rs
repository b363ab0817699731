//! The tables of a record, made once for the terminal, Markdown and HTML.

mod comparisons;
mod figures;
mod loss;
mod matrix;
mod page;
mod setting;
mod trials;
mod visits;

pub(crate) use comparisons::{
    blueprint, control, curl, effects, in_round_trips, ordered_effects, ping_pong, range,
    residuals, times,
};
pub(crate) use figures::figures;
pub(crate) use loss::loss;
pub(crate) use matrix::{Group, columns, groups, matrix, network_column, rows};
pub(crate) use page::page;
pub(crate) use setting::{calibrations, captures, profiles, servers};
pub(crate) use trials::{costs, loads, middleboxes, model, replays};
pub(crate) use visits::{
    Ladder, browsers, disagreements, how_many, ladders, ordered as ordered_visit_effects, percent,
    returning, visit_cells, visit_effects, walk_through, walked,
};

use crate::Record;

/// A table with what a reader needs to read it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sheet {
    pub title: String,
    /// What the figures are, a sentence or two.
    pub lead: String,
    pub head: Vec<Head>,
    pub rows: Vec<Vec<String>>,
    /// How many rows a terminal shows; the report has them all.
    pub glance: Option<usize>,
    /// What to know beside them.
    pub notes: Vec<String>,
}

/// A column's head.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub text: String,
    /// Figures stand to the right.
    pub right: bool,
}

impl Sheet {
    pub(crate) fn new(title: &str, lead: &str, head: &[&str]) -> Self {
        Self {
            title: title.to_owned(),
            lead: lead.to_owned(),
            head: head.iter().map(|text| Head::of(text)).collect(),
            ..Self::default()
        }
    }

    /// `None` without rows: a section appears only when the record has its data.
    fn filled(self) -> Option<Self> {
        (!self.rows.is_empty()).then_some(self)
    }
}

impl Head {
    /// A `>` before the text puts the column to the right.
    pub(crate) fn of(text: &str) -> Self {
        match text.strip_prefix('>') {
            Some(text) => Self { text: text.to_owned(), right: true },
            None => Self { text: text.to_owned(), right: false },
        }
    }
}

/// The tables of a record beside its matrices, in the order in which they are read.
pub(crate) fn others(record: &Record) -> Vec<Sheet> {
    let sheets = [
        walk_through(record),
        returning(record),
        visit_effects(record),
        visit_cells(record),
        disagreements(record),
        ping_pong(record),
        curl(record),
        page(record),
        loss(record),
        blueprint(record),
        effects(record),
        control(record),
        residuals(record),
        replays(record),
        middleboxes(record),
        loads(record),
        costs(record),
        calibrations(record),
    ];
    sheets.into_iter().flatten().collect()
}
