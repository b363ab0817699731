//! Which cells a figure is taken of.

use super::Function;
use crate::axes::{Axis, same_but_for};
use crate::{Cell, Figures, Summary};

/// A kind and filters, and which of a connection's times is meant.
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
    /// What stands between the parentheses.
    ///
    /// # Errors
    /// The byte within `text` and a sentence.
    pub(super) fn parse(text: &str, function: Function) -> Result<Self, (usize, String)> {
        let mut selector = Self::default();
        let mut at = 0;
        if text.trim().is_empty() {
            return Ok(selector);
        }
        for part in text.split(',') {
            let place = at + (part.len() - part.trim_start().len());
            selector.add(part.trim(), function).map_err(|message| (place, message))?;
            at += part.len() + 1;
        }
        Ok(selector)
    }

    fn add(&mut self, part: &str, function: Function) -> Result<(), String> {
        let (name, value) = match part.split_once('=') {
            Some((name, value)) => (name.trim().to_ascii_lowercase(), value.trim()),
            None => ("kind".to_owned(), part),
        };
        if value.is_empty() {
            return Err(
                "here a kind or a filter is missing, such as 0rtt or server=nginx".to_owned()
            );
        }
        if name == "time" {
            return self.set_time(value, function);
        }
        let Some(axis) = Axis::named(&name) else {
            let names: Vec<&str> = Axis::ALL.iter().map(|axis| axis.name()).collect();
            return Err(format!("unknown filter {name:?}; allowed are {}, time", names.join(", ")));
        };
        if function == Function::Replays && axis != Axis::Server {
            return Err("replays knows server= alone: the attack is made on a server, over all that it speaks".to_owned());
        }
        if self.filters.iter().any(|(other, _)| *other == axis) {
            return Err(format!("{} stands here twice; keep one", axis.name()));
        }
        let value = axis.read(value)?;
        self.filters.push((axis, value));
        Ok(())
    }

    fn set_time(&mut self, value: &str, function: Function) -> Result<(), String> {
        if !function.is_time() {
            return Err("time= belongs to functions of time, such as p50".to_owned());
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

    /// Whether a cell is meant. The second arm of an A/A control never is.
    pub(super) fn matches(&self, cell: &Cell) -> bool {
        !cell.control && self.filters.iter().all(|(axis, value)| axis.is(cell, value))
    }

    /// Whether a cell is meant that goes with `subject`: the same but for the filters.
    pub(super) fn goes_with(&self, cell: &Cell, subject: &Cell) -> bool {
        let named: Vec<Axis> = self.filters.iter().map(|(axis, _)| *axis).collect();
        self.matches(cell) && same_but_for(cell, subject, &named)
    }

    /// Whether a server's replays are meant.
    pub(super) fn matches_server(&self, server: &str) -> bool {
        self.filters
            .iter()
            .all(|(axis, value)| *axis == Axis::Server && value.eq_ignore_ascii_case(server))
    }

    /// The filters' axes, for saying what there would be.
    pub(super) fn axes(&self) -> impl Iterator<Item = Axis> {
        self.filters.iter().map(|(axis, _)| *axis)
    }

    /// The figures of the time that is meant.
    pub(super) fn figures<'a>(&self, summary: &'a Summary) -> Option<&'a Figures> {
        match self.time {
            Time::Setup => summary.setup.as_ref(),
            Time::FirstByte => Some(&summary.first_byte),
            Time::Total => summary.total.as_ref(),
        }
    }
}
