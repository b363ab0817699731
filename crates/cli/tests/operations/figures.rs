//! The figures of a run, and their check.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::path::Path;

use firstflight_bench::LoadResult;
use serde::Serialize;
use serde_json::Value;

use crate::operator::OperatorActions;

/// The figures.
#[derive(Serialize)]
pub(crate) struct Figures<'a> {
    actions: &'a OperatorActions,
    /// Totals of the loads.
    seconds: f64,
    rate: f64,
    completed: u64,
    failed: u64,
    not_started: u64,
    early_accepted: u64,
    early_refused: u64,
    /// Copies of flights with a response.
    copies: u64,
    /// Requests that the application received, and executed requests in the access log.
    executed: u64,
    executed_by_log: u64,
    /// Flights of which more than one request was executed.
    executed_twice: u64,
    processes_errors: Vec<String>,
}

impl<'a> Figures<'a> {
    pub(crate) fn new(
        actions: &'a OperatorActions,
        results: &[LoadResult],
        copies: u64,
        log: &[Value],
        executed: u64,
    ) -> Self {
        let sum = |of: fn(&LoadResult) -> u64| results.iter().map(of).sum();
        let mut executions: HashMap<&str, u64> = HashMap::new();
        for line in log.iter().filter(|line| line["executed"] == true) {
            // A connection of the loads has one request, and its copies have the same client random.
            let random = line["client_random"].as_str().unwrap_or_default();
            *executions.entry(random).or_default() += 1;
        }
        let errors = results.iter().flat_map(|result| {
            let name = format!("{} {}", result.transport.name(), result.kind.name());
            result.errors.iter().map(move |error| format!("{name}: {error:?}"))
        });
        Self {
            actions,
            seconds: results.iter().map(|result| result.seconds).fold(0.0, f64::max),
            rate: results.iter().map(|result| result.rate).sum(),
            completed: sum(|result| result.completed),
            failed: sum(LoadResult::failed),
            not_started: sum(|result| result.not_started),
            early_accepted: sum(|result| result.handshakes.early_accepted),
            early_refused: sum(|result| result.handshakes.early_refused),
            copies,
            executed,
            executed_by_log: executions.values().sum(),
            executed_twice: executions.values().filter(|count| **count > 1).count() as u64,
            processes_errors: errors.collect(),
        }
    }

    /// Writes `operations.txt` and `operations.json`.
    pub(crate) fn write(&self, directory: &Path, results: &[LoadResult]) {
        fs::write(directory.join("operations.txt"), format!("{self}\n")).unwrap();
        let all = serde_json::json!({ "verdict": self, "loads": results });
        let text = serde_json::to_string_pretty(&all).unwrap();
        fs::write(directory.join("operations.json"), text + "\n").unwrap();
    }

    /// # Panics
    /// If something failed or was executed twice, or if there was no load.
    pub(crate) fn check(&self, stderr: &str) {
        assert_eq!(self.failed, 0, "{:?}", self.processes_errors);
        assert_eq!(self.executed_twice, 0, "flights were executed twice");
        assert_eq!(self.executed, self.executed_by_log, "the log tells all executions");
        assert!(!stderr.contains("panicked") && !stderr.contains("lines lost"), "{stderr}");
        assert!(self.early_accepted > 0 && self.copies > 0, "nothing was tried");
        assert_eq!(self.actions.upgrades, 1);
    }
}

impl fmt::Display for Figures<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let actions = self.actions;
        writeln!(
            f,
            "{} reloads ({} with another policy, {} with another certificate), {} key rotations, \
             {} upgrade",
            actions.reloads,
            actions.policies_changed,
            actions.certificates_replaced,
            actions.keys_rotated,
            actions.upgrades
        )?;
        writeln!(
            f,
            "slowest reload {:.1} ms, upgrade {:.1} ms",
            actions.slowest_reload_ms, actions.upgrade_ms
        )?;
        writeln!(
            f,
            "{:.0} connections a second for {:.0} s, a request each: {} completed, {} failed, \
             {} not started",
            self.rate, self.seconds, self.completed, self.failed, self.not_started
        )?;
        writeln!(
            f,
            "early data: {} accepted, {} refused and sent again",
            self.early_accepted, self.early_refused
        )?;
        write!(
            f,
            "copies sent by the attacker: {}; requests executed: {}; flights executed twice: {}",
            self.copies, self.executed, self.executed_twice
        )
    }
}
