//! Browsers' visits in two records.

use super::{Change, Comparison, change};
use crate::{Record, visits};

/// The visits of browsers likewise, by their totals.
pub(super) fn compare(old: &Record, new: &Record, comparison: &mut Comparison) {
    let (old_times, new_times) = (totals(old), totals(new));
    let mut matched = vec![false; old.visit_cells.len()];
    for (place, cell) in new.visit_cells.iter().enumerate() {
        let mut others = old.visit_cells.iter();
        let name = visits::name(cell);
        let Some(before) = others.position(|c| c.visit == cell.visit && c.goes_with(cell)) else {
            comparison.only_new.push(name);
            continue;
        };
        matched[before] = true;
        let (Some(was), Some(is)) = (&old.visit_cells[before].summary, &cell.summary) else {
            comparison.cautions.push(format!("{name}: no good visit in one of the records."));
            continue;
        };
        comparison.changes.push(Change {
            cell: place,
            visits: true,
            name,
            round_trips: (was.round_trips, is.round_trips),
            ..change((&was.total, &is.total), (&old_times[before], &new_times[place]))
        });
    }
    let left = old.visit_cells.iter().zip(matched).filter(|(_, matched)| !matched);
    comparison.only_old.extend(left.map(|(cell, _)| visits::name(cell)));
}

/// Good totals of each cell of visits, as the browser has them.
fn totals(record: &Record) -> Vec<Vec<f64>> {
    let mut times = vec![Vec::new(); record.visit_cells.len()];
    for visit in record.visits.iter().filter(|visit| visit.fault.is_none()) {
        let total = visit.browser.as_ref().map(|browser| browser.response_end_ms);
        times[visit.cell].extend(total.filter(|time| time.is_finite()));
    }
    times
}
