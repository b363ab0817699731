//! The tables of all counts, on standard output and in the results.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;

use crate::running::PROGRAM;

/// Cases of one kind, and those that went wrong.
#[derive(Clone, Debug, Serialize)]
struct Cases {
    what: String,
    cases: usize,
    skipped: usize,
    failed: usize,
}

/// One attack, and what it cost.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Attack {
    pub(crate) protocol: &'static str,
    pub(crate) what: &'static str,
    /// KiB that the attacker sent.
    pub(crate) sent: usize,
    /// How the server ended the connection.
    pub(crate) end: String,
    /// Seconds on a processor.
    pub(crate) cpu: f64,
    /// KiB by which the server's memory rose at most.
    pub(crate) memory: u64,
    /// Honest requests served meanwhile, and the slowest one, in milliseconds.
    pub(crate) honest: u32,
    pub(crate) slowest: f64,
}

#[derive(Default, Serialize)]
struct All {
    cases: Vec<Cases>,
    attacks: Vec<Attack>,
    figures: Vec<(String, String)>,
}

static ALL: Mutex<All> =
    Mutex::new(All { cases: Vec::new(), attacks: Vec::new(), figures: Vec::new() });

fn all<T>(change: impl FnOnce(&mut All) -> T) -> T {
    change(&mut ALL.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Records how many cases there were, and how many failed.
pub(crate) fn cases(what: &str, cases: usize, skipped: usize, failed: usize) {
    all(|all| all.cases.push(Cases { what: what.to_owned(), cases, skipped, failed }));
}

/// Records an attack.
pub(crate) fn attack(attack: Attack) {
    all(|all| all.attacks.push(attack));
}

/// Records another measured value.
pub(crate) fn figure(what: &str, value: String) {
    all(|all| all.figures.push((what.to_owned(), value)));
}

/// Whether this is `make conformance`: everything, and to the end.
pub(crate) fn is_long() -> bool {
    results().is_some()
}

/// The duration in seconds, rounded to milliseconds.
pub(crate) fn seconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1000.0).round() / 1000.0
}

/// Prints the tables, and writes them to the directory `CONFORMANCE_RESULTS`.
pub(crate) fn publish() {
    let about = about();
    let (text, json) = all(|all| {
        all.cases.sort_by(|a, b| a.what.cmp(&b.what));
        all.attacks.sort_by_key(|attack| (attack.protocol, attack.what));
        all.figures.sort();
        let json = serde_json::json!({ "schema": 1, "about": about, "counted": all });
        (format!("{}\n\n{}", about.join("; "), words(all)), json)
    });
    println!("{text}");
    if let Some(directory) = results() {
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("conformance.txt"), text).unwrap();
        let json = serde_json::to_string_pretty(&json).unwrap() + "\n";
        fs::write(directory.join("conformance.json"), json).unwrap();
    }
}

fn results() -> Option<PathBuf> {
    std::env::var_os("CONFORMANCE_RESULTS").map(PathBuf::from)
}

fn words(all: &All) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{:<44} {:>6} {:>8} {:>7}", "", "cases", "skipped", "failed");
    for Cases { what, cases, skipped, failed } in &all.cases {
        let _ = writeln!(text, "{what:<44} {cases:>6} {skipped:>8} {failed:>7}");
    }
    if !all.attacks.is_empty() {
        let _ = writeln!(
            text,
            "\n{:<8} {:<34} {:>9} {:>7} {:>9} {:>7} {:>8}  the end",
            "attack", "", "sent KiB", "CPU s", "memory", "honest", "slowest"
        );
    }
    for attack in &all.attacks {
        let _ = writeln!(
            text,
            "{:<8} {:<34} {:>9} {:>7.2} {:>5} KiB {:>7} {:>5.0} ms  {}",
            attack.protocol,
            attack.what,
            attack.sent,
            attack.cpu,
            attack.memory,
            attack.honest,
            attack.slowest,
            attack.end
        );
    }
    if !all.figures.is_empty() {
        text.push('\n');
    }
    for (what, value) in &all.figures {
        let _ = writeln!(text, "{what:<44} {value}");
    }
    text
}

/// The date, the machine, the versions of the programs, and the kind of build.
fn about() -> Vec<String> {
    let version = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().ok()?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        Some(text.lines().next()?.split_whitespace().take(3).collect::<Vec<_>>().join(" "))
    };
    let commands: [(&str, &[&str]); 6] = [
        ("date", &["-u", "+%FT%TZ"]),
        ("uname", &["-sr"]),
        (PROGRAM, &["--version"]),
        ("h2load", &["--version"]),
        ("nginx", &["-v"]),
        ("haproxy", &["-v"]),
    ];
    let mut about: Vec<_> =
        commands.iter().filter_map(|(program, arguments)| version(program, arguments)).collect();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    about.push(format!("{cores} cores"));
    about.push(
        if cfg!(debug_assertions) { "built for tests" } else { "built for release" }.to_owned(),
    );
    about
}
