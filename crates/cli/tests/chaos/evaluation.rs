//! Evaluates a scenario: its row in the table, and what is wrong with it.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::kind::Kind;
use crate::run::Run;

/// The figures of a scenario.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// The kind of servers.
    pub(crate) servers: &'static str,
    /// The scenario.
    pub(crate) scenario: &'static str,
    /// Captured flights.
    pub(crate) flights: u64,
    /// Copies whose connection a node accepted.
    pub(crate) copies: u64,
    /// Copies to which a node responded.
    pub(crate) copies_answered: u64,
    /// Executions of flights beyond the honest client's own.
    pub(crate) copies_executed: u64,
    /// Maximum number of executions of one flight.
    pub(crate) flight_max: usize,
    /// Maximum number of executions of one request: those of its flight, and the honest client's resend
    /// after refused early data or status 425.
    pub(crate) request_max: usize,
    /// Requests that were executed more than once, including the client's resend.
    pub(crate) requests_twice: u64,
    /// Honest requests.
    pub(crate) honest: u64,
    /// Honest requests that were sent as early data.
    pub(crate) early_offered: u64,
    /// Honest requests whose early data was accepted.
    pub(crate) early_accepted: u64,
    /// Honest requests without a response.
    pub(crate) honest_lost: usize,
    /// Honest requests that got an error.
    pub(crate) honest_errors: usize,
    /// Honest requests that got status 425, because a copy arrived earlier.
    pub(crate) overtaken: u64,
    /// Reasons in the access logs for requests that were not executed early, with their counts.
    pub(crate) reasons: BTreeMap<String, u64>,
    /// What is wrong, one sentence each.
    pub(crate) faults: Vec<String>,
}

/// Evaluates a scenario. With incomplete logs, only the application is checked.
pub(crate) fn evaluate(run: &Run, log: &[Value], complete_logs: bool) -> Row {
    let kind = run.clients().kind;
    let log_counts = LogCounts::of(run.name(), log);
    let mut row = run.counts(|counts| Row {
        servers: kind.name(),
        scenario: run.name(),
        flights: counts.requests.values().filter(|sent| sent.flight).count() as u64,
        copies: counts.resent.sent,
        copies_answered: counts.resent.responses,
        copies_executed: 0,
        flight_max: 0,
        request_max: 0,
        requests_twice: 0,
        honest: counts.honest,
        early_offered: counts.offered,
        early_accepted: counts.accepted,
        honest_lost: counts.lost.len(),
        honest_errors: counts.errors.len(),
        overtaken: counts.too_early,
        reasons: log_counts.reasons.clone(),
        faults: counts.lost.iter().chain(&counts.errors).cloned().collect(),
    });
    let requests = run.counts(|counts| counts.requests.clone());
    for (target, sent) in &requests {
        let executions = run.clients().application.executions(target);
        let total = executions.nodes.len();
        // All executions except the client's resend came from bytes of the flight.
        let Some(flight) = total.checked_sub(sent.late) else {
            row.faults.push(format!("{target} got a response, but was never executed"));
            continue;
        };
        row.flight_max = row.flight_max.max(flight);
        row.request_max = row.request_max.max(total);
        row.requests_twice += u64::from(total > 1);
        row.copies_executed += flight.saturating_sub(sent.early) as u64;
        if kind != Kind::Shared {
            continue;
        }
        let nodes = &executions.nodes;
        if flight > 1 {
            row.faults.push(format!("{target}: flight executed {flight} times, by {nodes:?}"));
        }
        if total > 1 && !sent.got_425 {
            row.faults.push(format!("{target}: executed {total} times without 425, by {nodes:?}"));
        }
        if sent.early > flight {
            row.faults.push(format!("{target} got a response early, but was never executed"));
        }
        if executions.marked > flight {
            row.faults.push(format!("{target}: {} marked, {flight} flights", executions.marked));
        }
        let early = log_counts.early.get(target).copied().unwrap_or(0);
        // A request counts as executed once it is being sent, though it may never arrive if its client
        // leaves at that moment.
        if early > 1 || complete_logs && early < flight {
            row.faults.push(format!("{target}: the logs have {early} early, we {flight}"));
        }
    }
    row
}

/// Counts from the access logs.
#[derive(Default)]
struct LogCounts {
    /// Requests executed from early data, by target.
    early: BTreeMap<String, usize>,
    reasons: BTreeMap<String, u64>,
}

impl LogCounts {
    fn of(scenario: &str, log: &[Value]) -> Self {
        let mut log_counts = Self::default();
        let prefix = format!("/{scenario}/");
        for line in log {
            let Some(target) = line["target"].as_str().filter(|to| to.starts_with(&prefix)) else {
                continue;
            };
            if line["early"] == true && line["executed"] == true {
                *log_counts.early.entry(target.to_owned()).or_default() += 1;
            }
            let reason = match (&line["held"], line["early_data"].as_str()) {
                // The reason for refused early data is more specific.
                (Value::String(held), _) if held != "unrecorded" => format!("held: {held}"),
                (_, Some("accepted") | None) => continue,
                (_, Some(refused)) => format!("refused: {refused}"),
            };
            *log_counts.reasons.entry(reason).or_default() += 1;
        }
        log_counts
    }
}
