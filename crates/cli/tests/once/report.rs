//! The table of all cases, on standard output and in the results.

use std::fmt::Write;
use std::fs;
use std::sync::Mutex;

use serde::Serialize;

use crate::plan::Plan;
use crate::stage::Servers;

/// Identifies a row.
#[derive(Clone, Debug)]
pub(crate) struct Label {
    /// The case.
    pub(crate) case: String,
    /// The servers.
    pub(crate) servers: Servers,
}

impl Label {
    /// The label of this case on these servers.
    pub(crate) fn new(case: impl Into<String>, servers: Servers) -> Self {
        Self { case: case.into(), servers }
    }
}

/// One honest request and the copies of its flight.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// The case.
    pub(crate) case: String,
    /// The servers.
    pub(crate) servers: &'static str,
    /// The transport.
    pub(crate) transport: &'static str,
    /// When copies were sent.
    pub(crate) attack: &'static str,
    /// How many seconds the stated age was greater than the ticket's.
    pub(crate) shift: i64,
    /// The decision about the honest request's early data.
    pub(crate) early: &'static str,
    /// Its status; `-` if there was no response.
    pub(crate) status: String,
    /// How often the request was executed.
    pub(crate) executed: usize,
    /// The nodes that executed it, in order.
    pub(crate) executed_by: Vec<usize>,
    /// How many of the executions were marked `Early-Data: 1`.
    pub(crate) marked_early: usize,
    /// Copies that were sent.
    pub(crate) copies: u64,
    /// Copies that got a response.
    pub(crate) answered: u64,
    /// What is wrong with these numbers.
    pub(crate) faults: Vec<&'static str>,
    /// The client's view.
    #[serde(skip)]
    pub(crate) client: String,
    /// The entries of the access logs.
    pub(crate) log: Vec<String>,
}

impl Row {
    /// Demands that the honest request's early data was accepted.
    pub(crate) fn early(mut self) -> Self {
        if self.early != "accepted" {
            self.faults.push("not early");
        }
        self
    }
}

/// The rows of all cases so far, with the number of their case.
static ROWS: Mutex<Vec<(usize, Row)>> = Mutex::new(Vec::new());

/// Adds a case's rows to the table.
///
/// # Errors
/// What is wrong with them.
pub(crate) fn check(number: usize, rows: Vec<Row>) -> Result<(), String> {
    let faults = rows.iter().filter(|row| !row.faults.is_empty()).map(|row| {
        let Row { case, transport, servers, attack, executed_by, .. } = row;
        let faults = row.faults.join(", ");
        let (client, log) = (&row.client, row.log.join("\n"));
        format!("{case}, {transport}, {servers}, {attack}: {faults}: by nodes {executed_by:?}\n{client}\n{log}")
    });
    let faults: Vec<_> = faults.collect();
    let mut all = ROWS.lock().unwrap();
    all.extend(rows.into_iter().map(|row| (number, row)));
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
}

const LEGEND: &str = "\
shift: seconds by which the client overstates its ticket's age
early: what became of the honest request's early data; code: of its response
runs: how often the request was executed, which has to be once
copies: of the first flight, byte for byte, from the first moment on (eager) or not before they are
        fresh (patient); heard: those that got a response\n";

/// Prints the table, and writes it to the results directory of the plan.
pub(crate) fn publish(plan: &Plan) {
    let mut rows = ROWS.lock().unwrap().clone();
    if rows.is_empty() {
        return;
    }
    rows.sort_by_key(|(number, _)| *number);
    let rows: Vec<Row> = rows.into_iter().map(|(_, row)| row).collect();
    let text = table(&rows) + LEGEND;
    println!("{text}");
    if let Some(directory) = plan.results.as_ref().filter(|_| plan.long) {
        fs::create_dir_all(directory).unwrap();
        fs::write(directory.join("once.txt"), text).unwrap();
        let json = serde_json::json!({ "schema": 1, "rows": rows });
        let json = serde_json::to_string_pretty(&json).unwrap() + "\n";
        fs::write(directory.join("once.json"), json).unwrap();
    }
}

/// At most 100 columns.
fn table(rows: &[Row]) -> String {
    let mut text = format!(
        "{:<22} {:<15} {:<6} {:<7} {:>6} {:<8} {:>4} {:>4} {:>6} {:>5} result\n",
        "case", "servers", "over", "copies", "shift", "early", "code", "runs", "sent", "heard"
    );
    for row in rows {
        let result = if row.faults.is_empty() { "ok" } else { row.faults[0] };
        let _ = writeln!(
            text,
            "{:<22} {:<15} {:<6} {:<7} {:>+6} {:<8} {:>4} {:>4} {:>6} {:>5} {result}",
            row.case,
            row.servers,
            row.transport,
            row.attack,
            row.shift,
            row.early,
            row.status,
            row.executed,
            row.copies,
            row.answered,
        );
    }
    let wrong = rows.iter().filter(|row| !row.faults.is_empty()).count();
    let _ = writeln!(text, "{} rows, {wrong} of them wrong\n", rows.len());
    text
}
