//! What a scenario has shown: its row in the table, and whether that is what it has to show.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::kind::Kind;
use crate::run::Run;

/// The figures of a scenario.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// What ran on the nodes.
    pub(crate) servers: &'static str,
    /// The scenario.
    pub(crate) scenario: &'static str,
    /// Captured flights.
    pub(crate) flights: u64,
    /// Copies that a node took.
    pub(crate) copies: u64,
    /// Copies whose ClientHello a node has processed and answered.
    pub(crate) copies_answered: u64,
    /// Executions of flights beyond the honest client's own.
    pub(crate) copies_executed: u64,
    /// Most executions of one flight.
    pub(crate) flight_max: usize,
    /// Most executions of one request: its flight's, and the honest client's own resend after its
    /// early data was refused, or the response was 425.
    pub(crate) request_max: usize,
    /// Requests that were executed more than once, as the client's resend counts too.
    pub(crate) requests_twice: u64,
    /// Honest requests.
    pub(crate) honest: u64,
    /// Of those the ones sent as early data, and the ones so answered.
    pub(crate) early_offered: u64,
    /// See above.
    pub(crate) early_accepted: u64,
    /// Honest requests without a response.
    pub(crate) honest_lost: usize,
    /// Honest requests answered by an error.
    pub(crate) honest_errors: usize,
    /// Honest requests told 425 because a copy had overtaken them.
    pub(crate) overtaken: u64,
    /// How often the access logs gave which reason for a request that was not run early.
    pub(crate) reasons: BTreeMap<String, u64>,
    /// What is wrong with that, a sentence each.
    pub(crate) faults: Vec<String>,
}

/// Counts a scenario. Without whole logs the application alone is the judge.
pub(crate) fn judge(run: &Run, log: &[Value], whole: bool) -> Row {
    let kind = run.world().kind;
    let logged = Logged::of(run.name(), log);
    let mut row = run.tally(|tally| Row {
        servers: kind.name(),
        scenario: run.name(),
        flights: tally.requests.values().filter(|sent| sent.flight).count() as u64,
        copies: tally.resent.sent,
        copies_answered: tally.resent.answered,
        copies_executed: 0,
        flight_max: 0,
        request_max: 0,
        requests_twice: 0,
        honest: tally.honest,
        early_offered: tally.offered,
        early_accepted: tally.accepted,
        honest_lost: tally.lost.len(),
        honest_errors: tally.errors.len(),
        overtaken: tally.too_early,
        reasons: logged.reasons.clone(),
        faults: tally.lost.iter().chain(&tally.errors).cloned().collect(),
    });
    let requests = run.tally(|tally| tally.requests.clone());
    for (target, sent) in &requests {
        let executions = run.world().upstream.executions(target);
        let total = executions.nodes.len();
        // What the client did not have executed by a resend was executed from the flight's bytes.
        let Some(flight) = total.checked_sub(sent.late) else {
            row.faults.push(format!("{target} was answered, and never executed"));
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
        if sent.early > flight {
            row.faults.push(format!("{target} was answered early, and never executed"));
        }
        if executions.marked > flight {
            row.faults.push(format!("{target}: {} marked, {flight} flights", executions.marked));
        }
        let early = logged.early.get(target).copied().unwrap_or(0);
        if early > 1 || whole && early != flight {
            row.faults.push(format!("{target}: the logs have {early} early, we {flight}"));
        }
    }
    row
}

/// What the access logs say.
#[derive(Default)]
struct Logged {
    /// Requests run from early data, by target.
    early: BTreeMap<String, usize>,
    reasons: BTreeMap<String, u64>,
}

impl Logged {
    fn of(scenario: &str, log: &[Value]) -> Self {
        let mut logged = Self::default();
        let prefix = format!("/{scenario}/");
        for line in log {
            let Some(target) = line["target"].as_str().filter(|to| to.starts_with(&prefix)) else {
                continue;
            };
            if line["early"] == true && line["executed"] == true {
                *logged.early.entry(target.to_owned()).or_default() += 1;
            }
            let reason = match (&line["held"], line["early_data"].as_str()) {
                // What early data was refused for says more.
                (Value::String(held), _) if held != "unrecorded" => format!("held: {held}"),
                (_, Some("accepted") | None) => continue,
                (_, Some(refused)) => format!("refused: {refused}"),
            };
            *logged.reasons.entry(reason).or_default() += 1;
        }
        logged
    }
}
