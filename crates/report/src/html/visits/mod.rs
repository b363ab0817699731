//! What browsers visited: the walk-through again, access networks, filmstrips, every cell, and
//! where browser and packets disagree.

mod cells;
mod film;
mod networks;
mod walk;

pub(super) use cells::{cells, disagreements, effects};
pub(super) use film::film;
pub(super) use networks::networks;
pub(super) use walk::walk_through;

use maud::{Markup, html};

use crate::figure::{between, plain};
use crate::{Figures, Interval};

/// A median, below it its interval, and what the packets say of the same.
fn figures(browser: Option<&Figures>, wire: Option<&Figures>) -> Markup {
    html! {
        @if let Some(figures) = browser {
            b { (plain(figures.p50_ms)) }
            span.sub { (between(figures.p50_interval_ms)) }
        } @else { b { "\u{2013}" } }
        @if let Some(wire) = wire { span.sub { "packets " (plain(wire.p50_ms)) } }
    }
}

/// The colour of what is saved, or costs.
fn outcome(significant: bool, interval: &Interval) -> &'static str {
    match (significant, interval.estimate < 0.0) {
        (false, _) => "k-other",
        (true, true) => "k-saves",
        (true, false) => "k-costs",
    }
}
