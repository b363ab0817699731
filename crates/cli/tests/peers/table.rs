//! The table, as Markdown and JSON.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use firstflight_audit::Finding;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::peer::Peer;
use crate::row::{self, Row};

/// What became of a request whose first flight was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// It ran once.
    Once,
    /// It ran again.
    Again,
    NotApplicable,
    Undecided,
}

impl Outcome {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Again => "again",
            Self::NotApplicable => "not applicable",
            Self::Undecided => "undecided",
        }
    }
}

/// A measured cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Cell {
    /// [`Peer::slug`].
    pub(crate) peer: String,
    /// [`Row::slug`].
    pub(crate) row: String,
    pub(crate) result: Outcome,
    /// How often the request ran, if the witness counted.
    pub(crate) executions: Option<u64>,
    pub(crate) summary: String,
    pub(crate) evidence: Vec<String>,
    /// What measures it again.
    pub(crate) command: String,
}

impl Cell {
    fn new(peer: Peer, row: Row, result: Outcome, summary: String) -> Self {
        let (peer, row) = (peer.slug().to_owned(), row.slug().to_owned());
        let command = format!("make audit-peers PEER={peer} ROW={row}");
        Self { peer, row, result, executions: None, summary, evidence: Vec::new(), command }
    }

    pub(crate) fn inapplicable(peer: Peer, row: Row, reason: &str) -> Self {
        Self::new(peer, row, Outcome::NotApplicable, reason.to_owned())
    }

    pub(crate) fn undecided(peer: Peer, row: Row, reason: String) -> Self {
        Self::new(peer, row, Outcome::Undecided, reason)
    }

    /// From a check of an audit.
    pub(crate) fn found(peer: Peer, row: Row, finding: &Finding) -> Self {
        let counted = finding.evidence.iter().find_map(|line| {
            line.strip_prefix("the witness counted ")?.strip_suffix(" executions")?.parse().ok()
        });
        let result = row::outcome(finding.verdict);
        Self {
            executions: counted,
            evidence: finding.evidence.clone(),
            ..Self::new(peer, row, result, finding.summary.clone())
        }
    }

    /// What stands in the table.
    fn shown(&self) -> String {
        match (self.result, self.executions) {
            (Outcome::Once, _) => "once".to_owned(),
            (Outcome::Again, Some(count)) => format!("**{count}×**"),
            (Outcome::Again, None) => "**again**".to_owned(),
            (Outcome::NotApplicable, _) if self.summary.contains("does not run") => {
                "waits".to_owned()
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
    println!("{}", markdown(&cells));
    for cell in &cells {
        println!("{}::{}: {}: {}", cell.peer, cell.row, cell.result.name(), cell.summary);
    }
    let Some(directory) = std::env::var_os("AUDIT_PEERS_RESULTS") else { return };
    let mut peers = Vec::new();
    for peer in Peer::ALL {
        if cells.iter().any(|cell| cell.peer == peer.slug()) {
            peers.push(
                json!({ "peer": peer.slug(), "name": peer.name(), "version": peer.version() }),
            );
        }
    }
    let order = |cell: &Cell| {
        let peer = Peer::ALL.iter().position(|peer| peer.slug() == cell.peer);
        (peer, Row::ALL.iter().position(|row| row.slug() == cell.row))
    };
    let mut cells = cells;
    cells.sort_by_key(order);
    let rows = Row::ALL.map(|row| json!({ "row": row.slug(), "name": row.name() }));
    let date = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let data = json!({ "schema": 1, "date": date, "peers": peers, "rows": rows, "cells": cells });
    let text = serde_json::to_string_pretty(&data).unwrap() + "\n";
    fs::write(PathBuf::from(directory).join("audit-peers.json"), text).unwrap();
}

/// The table with a row for each scenario and a column for each peer that has early data over TCP.
fn markdown(cells: &[Cell]) -> String {
    let find = |peer: Peer, row: Row| {
        cells.iter().find(|cell| cell.peer == peer.slug() && cell.row == row.slug())
    };
    let has_column = |peer: &Peer| {
        let same = find(*peer, Row::SameInstance);
        cells.iter().any(|cell| cell.peer == peer.slug())
            && same.is_none_or(|cell| cell.result != Outcome::NotApplicable)
    };
    let peers: Vec<Peer> = Peer::ALL.into_iter().filter(has_column).collect();
    let line = |words: Vec<String>| format!("| {} |\n", words.join(" | "));
    let mut text = line(
        [vec!["copy".to_owned()], peers.iter().map(|it| it.name().to_owned()).collect()].concat(),
    );
    text += &format!("|{}\n", "---|".repeat(peers.len() + 1));
    for row in Row::ALL {
        let shown = peers.iter().map(|peer| find(*peer, row).map_or(String::new(), Cell::shown));
        text += &line([row.name().to_owned()].into_iter().chain(shown).collect());
    }
    text
}

/// The data that the documents show.
const DATA: &str = "results/2026-11-23-vm/audit-peers.json";

/// Asserts that the table in the documents is that of the data.
pub(crate) fn assert_documented() -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let data: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(root.join(DATA)).unwrap()).unwrap();
    let cells: Vec<Cell> = serde_json::from_value(data["cells"].clone()).unwrap();
    let expected = markdown(&cells);
    let page = fs::read_to_string(root.join("docs/evidence/audit.md")).unwrap();
    match page.contains(&expected) {
        true => Ok(()),
        false => Err(format!("docs/evidence/audit.md needs this table, from {DATA}:\n{expected}")),
    }
}
