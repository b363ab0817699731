//! The matrix: a row for each network and version, a column for each kind of handshake.

use super::{Head, Sheet};
use crate::axes::{Axis, QUIC, path, varying, version, with};
use crate::figure::bare;
use crate::{Cell, Record};

/// Cells that differ in network, version, kind and TFO alone: one matrix.
pub(crate) struct Group<'a> {
    /// In words: the server and what was asked of it.
    pub heading: String,
    /// The cells with their places in the record.
    pub cells: Vec<(usize, &'a Cell)>,
}

impl<'a> Group<'a> {
    pub(crate) fn first(&self) -> &'a Cell {
        self.cells[0].1
    }

    /// The versions of which there are drawings: the newest TLS over TCP, and QUIC. Where they were
    /// measured, older ones are in the tables.
    pub(crate) fn newest(&self) -> Vec<String> {
        let mut versions: Vec<String> = self.cells.iter().map(|(_, cell)| version(cell)).collect();
        versions.sort_unstable();
        versions.dedup();
        let quic =
            versions.iter().position(|version| version == QUIC).map(|at| versions.remove(at));
        versions.pop().into_iter().chain(quic).collect()
    }

    /// The cell there.
    pub(crate) fn at(&self, row: &Row, column: &Column) -> Option<(usize, &'a Cell)> {
        let here = |cell: &Cell| {
            cell.profile == row.profile
                && cell.rtt_ms == row.rtt_ms
                && version(cell) == row.version
                && column.has(cell)
        };
        self.cells.iter().find(|(_, cell)| here(cell)).copied()
    }
}

/// A row of a matrix.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub profile: String,
    pub rtt_ms: f64,
    /// As in [`version`].
    pub version: String,
}

/// A column of a matrix.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Column {
    pub kind: String,
    pub tfo: bool,
    pub token: bool,
}

impl Column {
    /// In words.
    pub(crate) fn name(&self) -> String {
        with(&self.kind, self.tfo, self.token)
    }

    /// Whether a cell belongs there.
    pub(crate) fn has(&self, cell: &Cell) -> bool {
        (&*cell.kind, cell.tfo, cell.token) == (&*self.kind, self.tfo, self.token)
    }

    /// Whether its connections bring what a first visitor has not, beside a ticket.
    pub(crate) fn helped(&self) -> bool {
        self.tfo || self.token
    }
}

/// The matrices of a record, without the second arms of A/A controls.
pub(crate) fn groups(record: &Record) -> Vec<Group<'_>> {
    const OUTER: [Axis; 8] = [
        Axis::Experiment,
        Axis::Client,
        Axis::Server,
        Axis::Workload,
        Axis::Http,
        Axis::Size,
        Axis::Group,
        Axis::Certificate,
    ];
    let varying = varying(record.cells.iter().filter(|cell| !cell.control));
    let mut groups: Vec<(Vec<String>, Group<'_>)> = Vec::new();
    for (place, cell) in record.cells.iter().enumerate().filter(|(_, cell)| !cell.control) {
        let key: Vec<String> = OUTER.iter().map(|axis| axis.of(cell)).collect();
        match groups.iter_mut().find(|(other, _)| *other == key) {
            Some((_, group)) => group.cells.push((place, cell)),
            None => {
                let heading = heading(&varying, cell);
                groups.push((key, Group { heading, cells: vec![(place, cell)] }));
            }
        }
    }
    // What reads the same belongs to different experiments.
    let headings: Vec<String> = groups.iter().map(|(_, group)| group.heading.clone()).collect();
    for (_, group) in &mut groups {
        let same = headings.iter().filter(|heading| **heading == group.heading).count();
        let experiment = &group.first().experiment;
        if same > 1 && *experiment != group.first().workload && !experiment.is_empty() {
            group.heading = format!("{}, experiment {experiment}", group.heading);
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

/// Networks from the longest path to the shortest, in each the versions from old to new.
pub(crate) fn rows(group: &Group<'_>) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (_, cell) in &group.cells {
        let row =
            Row { profile: cell.profile.clone(), rtt_ms: cell.rtt_ms, version: version(cell) };
        if !rows.contains(&row) {
            rows.push(row);
        }
    }
    rows.sort_by(|a, b| {
        let network = b.rtt_ms.total_cmp(&a.rtt_ms).then_with(|| a.profile.cmp(&b.profile));
        network.then_with(|| a.version.cmp(&b.version))
    });
    rows
}

/// Kinds in their order, each without and with TFO or an address token.
pub(crate) fn columns(group: &Group<'_>) -> Vec<Column> {
    let mut columns: Vec<Column> = Vec::new();
    for (_, cell) in &group.cells {
        let column = Column { kind: cell.kind.clone(), tfo: cell.tfo, token: cell.token };
        if !columns.contains(&column) {
            columns.push(column);
        }
    }
    columns.sort_by_key(|column| {
        (kind_order(&column.kind), column.kind.clone(), column.tfo, column.token)
    });
    columns
}

/// Whether the networks have names of their own, or are but round-trip times.
pub(crate) fn network_column(group: &Group<'_>) -> &'static str {
    match group.cells.iter().all(|(_, cell)| path(cell) == format!("{} ms", cell.rtt_ms)) {
        true => "RTT",
        false => "network",
    }
}

pub(crate) fn kind_order(kind: &str) -> usize {
    ["full", "resumed", "0-RTT", "refused"].iter().position(|name| *name == kind).unwrap_or(4)
}

/// The table of one group: p50, p95 (unless `narrow`) and round trips in each field.
pub(crate) fn matrix(group: &Group<'_>, narrow: bool) -> Sheet {
    let columns = columns(group);
    let network = network_column(group);
    let lead = match narrow {
        true => "ms to the first byte: p50, round trips",
        false => "ms to the first byte: p50, p95, round trips",
    };
    let mut sheet = Sheet::new(&group.heading, lead, &[network, "TLS"]);
    sheet.head.extend(columns.iter().map(|column| Head { text: column.name(), right: true }));
    for row in rows(group) {
        let place = match group.cells.iter().find(|(_, cell)| cell.profile == row.profile) {
            Some((_, cell)) if network != "RTT" => path(cell),
            _ => row.rtt_ms.to_string(),
        };
        let mut fields = vec![place, row.version.clone()];
        fields.extend(columns.iter().map(|column| match group.at(&row, column) {
            None => String::new(),
            Some((_, cell)) => field(cell, narrow),
        }));
        sheet.rows.push(fields);
    }
    sheet
}

fn field(cell: &Cell, narrow: bool) -> String {
    let Some(summary) = &cell.summary else {
        return "no good sample".to_owned();
    };
    let p50 = bare(summary.first_byte.p50_ms);
    let p95 = summary.first_byte.p95_ms.map_or_else(|| "-".to_owned(), bare);
    let trips = summary.round_trips.map_or_else(|| "?".to_owned(), |count| count.to_string());
    match narrow {
        true => format!("{p50} {trips}"),
        false => format!("{p50} {p95} {trips}"),
    }
}

fn heading(varying: &[Axis], cell: &Cell) -> String {
    let what = match cell.workload.as_str() {
        "ping-pong" => "ping-pong".to_owned(),
        "get" if cell.response_bytes > 0 => {
            format!("HTTP GET of {}", Axis::Size.of(cell))
        }
        "get" => "HTTP GET".to_owned(),
        other => other.to_owned(),
    };
    let mut words = vec![format!("{}, {what}", cell.server)];
    if varying.contains(&Axis::Client) {
        words.push(format!("by {}", cell.client));
    }
    if varying.contains(&Axis::Http) && !cell.http.is_empty() {
        words.push(format!("HTTP/{}", cell.http));
    }
    for axis in [Axis::Group, Axis::Certificate] {
        let place = axis.of(cell);
        if varying.contains(&axis) && !place.is_empty() {
            words.push(place);
        }
    }
    let named = [&cell.workload, "matrix", ""].contains(&cell.experiment.as_str());
    if varying.contains(&Axis::Experiment) && !named {
        words.push(format!("experiment {}", cell.experiment));
    }
    words.join(", ")
}
