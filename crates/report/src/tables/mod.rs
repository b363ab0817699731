//! The tables of a record as text, for the terminal, Markdown and HTML.

mod access;
mod claims;
mod clients;
mod comparisons;
mod experiments;
mod matrix;
mod phases;
mod visits;

use crate::Record;
use crate::format::format_us;

pub(crate) use access::access;
pub(crate) use claims::table as claims;
pub(crate) use clients::clients;
pub(crate) use comparisons::{
    blueprint, control, effects, in_round_trips, loss, ordered_effects, page, ping_pong, range,
    residuals,
};
pub(crate) use experiments::{
    cold_starts, costs, loads, middleboxes, model, replays, stalls, with_variant,
};
pub(crate) use matrix::{Group, columns, figures, groups, matrix, network_column, rows};
pub(crate) use phases::{bytes, curl, phases, times};
pub(crate) use visits::{
    NetworkSeries, browsers, disagreements, network_series, ordered as ordered_visit_effects,
    percent, returning, visit_cells, visit_effects, visit_phases, visits_each, walk_through,
    walkthrough_pairs,
};

/// A table with its title and explanations.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub title: String,
    /// What the figures mean.
    pub lead: String,
    pub head: Vec<Head>,
    pub rows: Vec<Vec<String>>,
    /// How many rows a terminal shows; HTML and Markdown have all.
    pub terminal_rows: Option<usize>,
    /// Notes below the table.
    pub notes: Vec<String>,
}

/// The head of a column.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub text: String,
    /// Whether the column is right-aligned.
    pub right: bool,
}

impl Table {
    pub(crate) fn new(title: &str, lead: &str, head: &[&str]) -> Self {
        Self {
            title: title.to_owned(),
            lead: lead.to_owned(),
            head: head.iter().map(|text| Head::of(text)).collect(),
            ..Self::default()
        }
    }

    /// Returns `None` if there are no rows, so the section is omitted.
    fn filled(self) -> Option<Self> {
        (!self.rows.is_empty()).then_some(self)
    }
}

impl Head {
    /// A `>` before the text right-aligns the column.
    pub(crate) fn of(text: &str) -> Self {
        match text.strip_prefix('>') {
            Some(text) => Self { text: text.to_owned(), right: true },
            None => Self { text: text.to_owned(), right: false },
        }
    }
}

/// The tables of a record except its matrices, in reading order.
pub(crate) fn others(record: &Record) -> Vec<Table> {
    let tables = [
        walk_through(record),
        returning(record),
        visit_phases(record),
        visit_effects(record),
        visit_cells(record),
        disagreements(record),
        claims(record),
        access(record),
        ping_pong(record),
        curl(record),
        phases(record),
        page(record),
        loss(record),
        blueprint(record),
        clients(record),
        effects(record),
        control(record),
        bytes(record),
        residuals(record),
        replays(record),
        middleboxes(record),
        stalls(record),
        cold_starts(record),
        loads(record),
        costs(record),
        calibrations(record),
    ];
    tables.into_iter().flatten().collect()
}

/// The calibration of the link by UDP echoes.
pub(crate) fn calibrations(record: &Record) -> Option<Table> {
    let link = record.link.as_ref()?;
    let mut table = Table::new(
        "The link's own error",
        "UDP echoes over each path: time there and back less the configured RTT, in microseconds.",
        &["network", "when", ">echoes", ">min us", ">p50 us", ">p99 us"],
    );
    for calibration in &link.calibrations {
        table.rows.push(vec![
            calibration.profile.clone(),
            if calibration.before { "before" } else { "after" }.to_owned(),
            calibration.probes.to_string(),
            format_us(calibration.min_us),
            format_us(calibration.p50_us),
            format_us(calibration.p99_us),
        ]);
    }
    table.filled()
}

/// The networks.
pub(crate) fn profiles(record: &Record) -> Option<Table> {
    let mut table = Table::new(
        "Networks",
        "",
        &["name", ">RTT ms", ">down Mbit/s", ">up Mbit/s", "more", "source"],
    );
    for profile in &record.profiles {
        let rate = |mbps: Option<f64>| mbps.map_or("\u{2013}".to_owned(), |mbps| mbps.to_string());
        table.rows.push(vec![
            profile.name.clone(),
            profile.rtt_ms.to_string(),
            rate(profile.down_mbps),
            rate(profile.up_mbps),
            profile.more.clone(),
            profile.source.clone(),
        ]);
    }
    table.filled()
}

/// The servers under test.
pub(crate) fn servers(record: &Record) -> Option<Table> {
    let mut table = Table::new("Servers", "", &["name", "version", "to know"]);
    for server in &record.servers {
        table.rows.push(vec![server.name.clone(), server.version.clone(), server.notes.join("; ")]);
    }
    table.filled()
}

/// The captures beside the record.
pub(crate) fn captures(record: &Record) -> Option<Table> {
    let mut table = Table::new(
        "Captures",
        "pcapng with the TLS secrets embedded: they open decrypted in Wireshark.",
        &["file", "what", ">connections"],
    );
    for capture in &record.captures {
        table.rows.push(vec![
            capture.file.clone(),
            capture.what.clone(),
            capture.connections.to_string(),
        ]);
    }
    table.filled()
}
