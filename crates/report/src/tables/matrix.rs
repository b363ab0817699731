//! The matrix: a row for each network and version, a column for each kind of handshake.

use super::{Head, Table};
use crate::axes::{
    Axis, OWN_CLIENT, QUIC, compares_clients, kind_order, kind_with_options, path, varying, version,
};
use crate::format::{both_ways, format_ms};
use crate::{Cell, Record};

/// The cells of one matrix: they differ only in network, version, kind and TFO.
pub(crate) struct Group<'a> {
    /// The server and the workload as text.
    pub heading: String,
    /// The cells with their indices in the record.
    pub cells: Vec<(usize, &'a Cell)>,
}

impl<'a> Group<'a> {
    pub(crate) fn first(&self) -> &'a Cell {
        self.cells[0].1
    }

    /// The versions that charts show: the newest TLS over TCP, and QUIC. Tables have all versions.
    pub(crate) fn newest(&self) -> Vec<String> {
        let mut versions: Vec<String> = self.cells.iter().map(|(_, cell)| version(cell)).collect();
        versions.sort_unstable();
        versions.dedup();
        let quic =
            versions.iter().position(|version| version == QUIC).map(|at| versions.remove(at));
        versions.pop().into_iter().chain(quic).collect()
    }

    /// The cell in this row and column.
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
    /// The name of the column.
    pub(crate) fn name(&self) -> String {
        kind_with_options(&self.kind, self.tfo, self.token)
    }

    /// Whether a cell belongs to this column.
    pub(crate) fn has(&self, cell: &Cell) -> bool {
        (&*cell.kind, cell.tfo, cell.token) == (&*self.kind, self.tfo, self.token)
    }

    /// Whether its connections use an option: TCP Fast Open or an address token.
    pub(crate) fn has_options(&self) -> bool {
        self.tfo || self.token
    }
}

/// The matrices of a record, without the second arms of A/A controls and without the cells that
/// compare clients.
pub(crate) fn groups(record: &Record) -> Vec<Group<'_>> {
    const OUTER: [Axis; 9] = [
        Axis::Experiment,
        Axis::Client,
        Axis::Server,
        Axis::Workload,
        Axis::Http,
        Axis::Size,
        Axis::Group,
        Axis::Cipher,
        Axis::Certificate,
    ];
    let is_in_matrix = |cell: &&Cell| !cell.control && !compares_clients(cell);
    let varying = varying(record.cells.iter().filter(is_in_matrix));
    let mut groups: Vec<(Vec<String>, Group<'_>)> = Vec::new();
    for (place, cell) in record.cells.iter().enumerate().filter(|(_, cell)| is_in_matrix(cell)) {
        let key: Vec<String> = OUTER.iter().map(|axis| axis.value(cell)).collect();
        match groups.iter_mut().find(|(other, _)| *other == key) {
            Some((_, group)) => group.cells.push((place, cell)),
            None => {
                let heading = heading(&varying, cell);
                groups.push((key, Group { heading, cells: vec![(place, cell)] }));
            }
        }
    }
    // Groups with equal headings belong to different experiments.
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

/// Networks from the longest to the shortest path, each with its versions from old to new.
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

/// Kinds in order, each without and with TFO or an address token.
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

/// The head of the network column: `network`, or `RTT` if all networks are plain round-trip times.
pub(crate) fn network_column(group: &Group<'_>) -> &'static str {
    match group.cells.iter().all(|(_, cell)| path(cell) == format!("{} ms", cell.rtt_ms)) {
        true => "RTT",
        false => "network",
    }
}

/// The table of one group: p50, p95 (unless `narrow`) and round trips in each field.
pub(crate) fn matrix(group: &Group<'_>, narrow: bool) -> Table {
    let columns = columns(group);
    let network = network_column(group);
    let lead = match narrow {
        true => "ms to the first byte: p50, round trips",
        false => "ms to the first byte: p50, p95, round trips",
    };
    let mut table = Table::new(&group.heading, lead, &[network, "TLS"]);
    table.head.extend(columns.iter().map(|column| Head { text: column.name(), right: true }));
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
        table.rows.push(fields);
    }
    table
}

fn field(cell: &Cell, narrow: bool) -> String {
    let Some(summary) = &cell.summary else {
        return "no good sample".to_owned();
    };
    let p50 = format_ms(summary.first_byte.p50_ms);
    let p95 = summary.first_byte.p95_ms.map_or_else(|| "-".to_owned(), format_ms);
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
            format!("HTTP GET of {}", Axis::Size.value(cell))
        }
        "get" => "HTTP GET".to_owned(),
        other => other.to_owned(),
    };
    let mut words = vec![format!("{}, {what}", cell.server)];
    if varying.contains(&Axis::Client) && cell.client != OWN_CLIENT {
        words.push(format!("by {}", cell.client));
    }
    if varying.contains(&Axis::Http) && !cell.http.is_empty() {
        words.push(format!("HTTP/{}", cell.http));
    }
    for axis in [Axis::Group, Axis::Cipher, Axis::Certificate] {
        let place = axis.value(cell);
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

/// The cells of a group with all their figures.
pub(crate) fn figures(group: &Group<'_>) -> Table {
    let mut table = Table::new(
        &group.heading,
        "ms to the first byte; p50 with its 95 % interval; bytes to the server / to the client",
        &[
            "network",
            "TLS",
            "kind",
            ">samples",
            ">min",
            ">p50",
            ">95 %",
            ">p95",
            ">p99",
            ">p99.9",
            ">max",
            ">mean",
            ">wire p50",
            ">round trips",
            ">handshake B",
            ">first byte B",
        ],
    );
    for (_, cell) in &group.cells {
        let Some(summary) = &cell.summary else { continue };
        let figures = &summary.first_byte;
        let some = |value: Option<f64>| value.map_or("-".to_owned(), format_ms);
        table.rows.push(vec![
            crate::axes::path(cell),
            crate::axes::version(cell),
            crate::axes::kind(cell),
            summary.samples.to_string(),
            format_ms(figures.min_ms),
            format_ms(figures.p50_ms),
            format!(
                "{}\u{2013}{}",
                format_ms(figures.p50_interval_ms.0),
                format_ms(figures.p50_interval_ms.1)
            ),
            some(figures.p95_ms),
            some(figures.p99_ms),
            some(figures.p999_ms),
            format_ms(figures.max_ms),
            format_ms(figures.mean_ms),
            some(summary.wire_p50_ms),
            summary.round_trips.map_or("?".to_owned(), |trips| trips.to_string()),
            summary.handshake_bytes.map_or("-".to_owned(), both_ways),
            summary.first_byte_bytes.map_or("-".to_owned(), both_ways),
        ]);
    }
    table
}
