//! The table of all scenarios, on standard output and in the results.

use std::fmt::Write;
use std::fs;
use std::process::Command;

use crate::evaluation::Row;
use crate::kind::PROGRAM;
use crate::plan::Plan;
use crate::scenarios::ROWS;
use firstflight_testkit::program_path;

const LEGEND: &str = "\
flights: captured first flights with early data; copies: resent byte for byte, and taken by a node
executed: executions of flights beyond the honest client's own
flight, request: most executions of one flight; the same with the client's own resend of a request
                 whose early data was refused
honest: requests of the honest client; lost: without a response; errors: with another status
425: told Too Early, because the attacker let a copy overtake the flight, and sent again
early: share of honest early data that was taken\n";

/// Prints the table, and writes it to the results directory of the plan.
pub(crate) fn publish(plan: &Plan) {
    let mut rows = ROWS.lock().unwrap().clone();
    rows.sort_by_key(|(number, _)| *number);
    let rows: Vec<Row> = rows.into_iter().map(|(_, row)| row).collect();
    if rows.is_empty() {
        return;
    }
    let about = about();
    let text = format!("{}\n\n{}\n{LEGEND}", about.join("; "), table(&rows));
    println!("{text}");
    if let Some(directory) = &plan.results {
        fs::create_dir_all(directory).unwrap();
        fs::write(directory.join("chaos.txt"), text).unwrap();
        let json = serde_json::json!({ "schema": 1, "about": about, "rows": rows });
        let json = serde_json::to_string_pretty(&json).unwrap() + "\n";
        fs::write(directory.join("chaos.json"), json).unwrap();
    }
}

/// The date, the machine and the versions of the programs.
fn about() -> Vec<String> {
    let version = |program: &str, arguments: &[&str]| {
        let output = Command::new(program_path(program)).args(arguments).output().ok()?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        // The name and the version, without build options.
        Some(text.lines().next()?.split_whitespace().take(3).collect::<Vec<_>>().join(" "))
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let commands: [(&str, &[&str]); 6] = [
        ("date", &["-u", "+%FT%TZ"]),
        ("uname", &["-sr"]),
        (PROGRAM, &["--version"]),
        ("redis-server", &["--version"]),
        ("nginx", &["-v"]),
        ("haproxy", &["-v"]),
    ];
    let mut about: Vec<_> =
        commands.iter().filter_map(|(program, arguments)| version(program, arguments)).collect();
    about.push(format!("{cores} cores"));
    about
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
