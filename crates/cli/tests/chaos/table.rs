//! The table of all scenarios, on standard output and in the results.

use std::fmt::Write;
use std::fs;

use crate::plan::Plan;
use crate::scenarios::ROWS;
use crate::verdict::Row;

/// Prints what was counted, and writes it where the plan says.
pub(crate) fn publish(plan: &Plan) {
    let mut rows = ROWS.lock().unwrap().clone();
    rows.sort_by_key(|(number, _)| *number);
    let rows: Vec<Row> = rows.into_iter().map(|(_, row)| row).collect();
    if rows.is_empty() {
        return;
    }
    let text = table(&rows);
    println!("{text}");
    if let Some(directory) = &plan.results {
        fs::create_dir_all(directory).unwrap();
        fs::write(directory.join("chaos.txt"), text).unwrap();
        let json = serde_json::to_string_pretty(&rows).unwrap() + "\n";
        fs::write(directory.join("chaos.json"), json).unwrap();
    }
}

fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{:<22} {:<20} {:>7} {:>7} {:>8} {:>6} {:>7} {:>6} {:>5} {:>6} {:>4} {:>6}",
        "servers",
        "scenario",
        "flights",
        "copies",
        "executed",
        "flight",
        "request",
        "honest",
        "lost",
        "errors",
        "425",
        "early"
    );
    for row in rows {
        let share = 100.0 * row.early_accepted as f64 / row.early_offered.max(1) as f64;
        let _ = writeln!(
            text,
            "{:<22} {:<20} {:>7} {:>7} {:>8} {:>6} {:>7} {:>6} {:>5} {:>6} {:>4} {:>5.0}%",
            row.servers,
            row.scenario,
            row.flights,
            row.copies,
            row.copies_executed,
            row.flight_max,
            row.request_max,
            row.honest,
            row.honest_lost,
            row.honest_errors,
            row.overtaken,
            share
        );
    }
    text
}
