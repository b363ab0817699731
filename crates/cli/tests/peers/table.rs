//! The table, as Markdown and JSON.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use firstflight_audit::Finding;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::peer::{NGINX_HTTP3, PEERS, Peer};
use crate::row::Row;

/// The outcome for a request whose first flight was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// It ran once.
    Once,
    /// It ran again.
    Again,
    /// It ran again, but only by a flight that nobody but its client can build.
    AgainByClient,
    NotApplicable,
    Undecided,
}

impl Outcome {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Again => "again",
            Self::AgainByClient => "again, by the client itself",
            Self::NotApplicable => "not applicable",
            Self::Undecided => "undecided",
        }
    }
}

/// A measured cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Cell {
    /// [`Peer::slug`](crate::peer::Peer::slug).
    pub(crate) peer: String,
    /// [`Row::slug`].
    pub(crate) row: String,
    pub(crate) result: Outcome,
    /// How often the request ran, if the witness counted.
    pub(crate) executions: Option<u64>,
    pub(crate) summary: String,
    pub(crate) evidence: Vec<String>,
    /// The command that measures it again.
    pub(crate) command: String,
}

impl Cell {
    fn new(peer: Peer, row: Row, result: Outcome, summary: String) -> Self {
        let (peer_slug, row) = (peer.slug.to_owned(), row.slug().to_owned());
        let mut command = format!("make audit-peers PEER={peer_slug} ROW={row}");
        if peer.must_be_given() {
            command += &format!(" {NGINX_HTTP3}=PATH");
        }
        let peer = peer_slug;
        Self { peer, row, result, executions: None, summary, evidence: Vec::new(), command }
    }

    pub(crate) fn inapplicable(peer: Peer, row: Row, reason: &str) -> Self {
        Self::new(peer, row, Outcome::NotApplicable, reason.to_owned())
    }

    pub(crate) fn undecided(peer: Peer, row: Row, reason: String) -> Self {
        Self::new(peer, row, Outcome::Undecided, reason)
    }

    /// From a check of an audit. `logged` are the executions that the server itself has logged, if no
    /// witness counts.
    pub(crate) fn found(
        peer: Peer,
        row: Row,
        finding: &Finding,
        result: Outcome,
        logged: Option<u64>,
    ) -> Self {
        let mut evidence = finding.evidence.clone();
        evidence.extend(logged.map(|count| {
            format!("the server logged {count} execution{}", if count == 1 { "" } else { "s" })
        }));
        // One line for each request of the check.
        let counted = finding.evidence.iter().filter_map(|line| {
            line.strip_prefix("the witness counted ")?.split(' ').next()?.parse().ok()
        });
        let executions = logged.or(counted.max());
        Self { executions, evidence, ..Self::new(peer, row, result, finding.summary.clone()) }
    }

    /// The text in the table.
    fn shown(&self) -> String {
        match (self.result, self.executions) {
            (Outcome::Once, _) => "once".to_owned(),
            (Outcome::Again, Some(count)) => format!("**{count}×**"),
            (Outcome::Again, None) => "**again**".to_owned(),
            (Outcome::AgainByClient, _) => "client only".to_owned(),
            (Outcome::NotApplicable, _) if self.summary.contains("does not run") => {
                "waits".to_owned()
            }
            (Outcome::NotApplicable, _) if self.summary.contains("gets no response") => {
                "no response".to_owned()
            }
            (Outcome::NotApplicable, _) => "–".to_owned(),
            (Outcome::Undecided, _) => "?".to_owned(),
        }
    }
}

static CELLS: Mutex<Vec<Cell>> = Mutex::new(Vec::new());

/// Adds a cell to the table.
pub(crate) fn add(cell: Cell) {
    CELLS.lock().unwrap().push(cell);
}

/// Prints the table, and writes the data into the directory `AUDIT_PEERS_RESULTS`.
pub(crate) fn publish() {
    let cells = CELLS.lock().unwrap().clone();
    if cells.is_empty() {
        return;
    }
    for (transport, quic) in [("TCP", false), ("QUIC", true)] {
        let table = markdown(&cells, quic);
        if !table.is_empty() {
            println!("over {transport}:\n\n{table}");
        }
    }
    for cell in &cells {
        println!("{}::{}: {}: {}", cell.peer, cell.row, cell.result.name(), cell.summary);
    }
    let Some(directory) = std::env::var_os("AUDIT_PEERS_RESULTS") else { return };
    let mut peers = Vec::new();
    for peer in PEERS {
        if cells.iter().any(|cell| cell.peer == peer.slug) {
            let transport = if peer.quic { "quic" } else { "tcp" };
            peers.push(json!({
                "peer": peer.slug,
                "name": peer.name,
                "transport": transport,
                "version": peer.version(),
            }));
        }
    }
    let order = |cell: &Cell| {
        let peer = PEERS.iter().position(|peer| peer.slug == cell.peer);
        (peer, Row::ALL.iter().position(|row| row.slug() == cell.row))
    };
    let mut cells = cells;
    cells.sort_by_key(order);
    let rows = Row::ALL.map(|row| json!({ "row": row.slug(), "name": row.name() }));
    let date = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let data = json!({ "schema": 2, "date": date, "peers": peers, "rows": rows, "cells": cells });
    let text = serde_json::to_string_pretty(&data).unwrap() + "\n";
    fs::write(PathBuf::from(directory).join("audit-peers.json"), text).unwrap();
}

/// The table of a transport, with a row for each scenario and a column for each peer that has early
/// data there. Empty without columns.
fn markdown(cells: &[Cell], quic: bool) -> String {
    let find = |peer: &Peer, row: Row| {
        cells.iter().find(|cell| cell.peer == peer.slug && cell.row == row.slug())
    };
    let has_column = |peer: &&Peer| {
        let same = find(peer, Row::SameInstance);
        peer.quic == quic
            && cells.iter().any(|cell| cell.peer == peer.slug)
            && same.is_none_or(|cell| cell.result != Outcome::NotApplicable)
    };
    let peers: Vec<&Peer> = PEERS.iter().filter(has_column).collect();
    if peers.is_empty() {
        return String::new();
    }
    let line = |words: Vec<String>| format!("| {} |\n", words.join(" | "));
    let mut text = line(
        [vec!["copy".to_owned()], peers.iter().map(|peer| peer.name.to_owned()).collect()].concat(),
    );
    text += &format!("|{}\n", "---|".repeat(peers.len() + 1));
    for row in Row::ALL.into_iter().filter(|row| quic || !row.needs_quic()) {
        let shown = peers.iter().map(|peer| find(peer, row).map_or(String::new(), Cell::shown));
        text += &line([row.name().to_owned()].into_iter().chain(shown).collect());
    }
    text
}

/// The data that the documents show.
const DATA: &str = "results/2026-11-29-vm/audit-peers.json";

/// Asserts that the tables in the documents are those of the data.
pub(crate) fn assert_documented() -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let data: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(root.join(DATA)).unwrap()).unwrap();
    let cells: Vec<Cell> = serde_json::from_value(data["cells"].clone()).unwrap();
    let page = fs::read_to_string(root.join("docs/evidence/audit.md")).unwrap();
    for expected in [markdown(&cells, false), markdown(&cells, true)] {
        if !page.contains(&expected) {
            return Err(format!(
                "docs/evidence/audit.md needs this table, from {DATA}:\n{expected}"
            ));
        }
    }
    Ok(())
}
