//! Round trips of each kind of handshake, counted from packets.

use maud::html;

use super::{Section, panels};
use crate::Record;
use crate::axes::version;
use crate::charts::{TripsChart, TripsRow, kind_class};
use crate::tables::{Group, columns, groups};

pub(super) fn trips(record: &Record) -> Option<Section> {
    let groups = groups(record);
    let drawings: Vec<_> = groups
        .iter()
        .filter_map(|group| Some((group, rows(group)?)))
        .enumerate()
        .map(|(at, (group, rows))| {
            let chart =
                TripsChart { id: &format!("trips-{at}"), title: &group.heading, rows: &rows };
            (group.heading.clone(), chart.draw())
        })
        .collect();
    if drawings.is_empty() {
        return None;
    }
    let body = html! {
        p { "Round trips from the first packet to the first byte of the response, counted from packets, on \
            the first network of each matrix." }
        (panels(&drawings))
    };
    let title = "Round trips to the first byte".to_owned();
    Some(Section { id: "trips", title, short: "Round trips", body })
}

/// A row for each kind of the newest version; `None` if no cell has a number of round trips.
fn rows(group: &Group<'_>) -> Option<Vec<TripsRow>> {
    let newest = group.newest();
    let network = &group.first().profile;
    let rows = columns(group).into_iter().filter_map(|column| {
        let mut cells = group.cells.iter().map(|(_, cell)| *cell);
        let cell = cells.find(|cell| {
            column.has(cell) && cell.profile == *network && newest.contains(&version(cell))
        })?;
        let trips = cell.summary.as_ref()?.round_trips?;
        Some(TripsRow { name: column.name(), class: kind_class(&column.kind), trips })
    });
    Some(rows.collect()).filter(|rows: &Vec<_>| !rows.is_empty())
}
