//! Checks of a run, and their outcomes.

use crate::conditions::CONDITION;
use crate::{Load, Record, axes};

/// The outcome of one check; a test case for a pipeline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckOutcome {
    /// The kind of check: `condition`, `stages`, `labels`, `visits`, `replay`, `control`, `load`.
    pub group: String,
    /// What should hold; for a condition, its text, which should hold nowhere.
    pub name: String,
    /// How many cells, servers or samples were checked.
    pub checked: usize,
    /// Where the check does not hold, a sentence each with the figures; empty if it passed.
    pub findings: Vec<String>,
    /// What could not be checked, and why, a sentence each.
    pub skipped: Vec<String>,
    /// Why the check could not be decided. An undecided check has not passed.
    pub undecided: Option<String>,
}

impl CheckOutcome {
    pub(crate) fn new(group: &str, name: &str) -> Self {
        Self { group: group.to_owned(), name: name.to_owned(), ..Self::default() }
    }

    /// A check that could not be decided.
    pub fn undecided(group: &str, name: &str, why: &str) -> Self {
        Self { undecided: Some(why.to_owned()), ..Self::new(group, name) }
    }

    /// What should hold.
    pub fn claim(&self) -> String {
        match self.group == CONDITION {
            true => format!("not ({})", self.name),
            false => self.name.clone(),
        }
    }

    /// The outcome in one sentence, without its findings.
    pub fn sentence(&self) -> String {
        let (group, name, checked, found) =
            (&self.group, &self.name, self.checked, self.findings.len());
        match (&self.undecided, group == CONDITION, found) {
            // The reason names the condition.
            (Some(why), true, _) => format!("UNDECIDED: {why}"),
            (Some(why), false, _) => format!("UNDECIDED: {group}: {name}: {why}"),
            (None, true, 0) => format!("passed: {name} is true for none of {checked}"),
            (None, true, _) => format!("FAILED: {name} is true for {found} of {checked}:"),
            _ if self.is_idle() => format!("not decidable: {group}: {name}"),
            (None, false, 0) => format!("passed: {group}: {name} ({checked} checked)"),
            (None, false, _) => format!("FAILED: {group}: {name} ({checked} checked)"),
        }
    }

    /// Whether the check could not have failed, for the reasons in [`skipped`](Self::skipped).
    pub fn is_idle(&self) -> bool {
        self.group != CONDITION && self.checked == 0 && self.passed() && !self.skipped.is_empty()
    }

    /// Whether the check holds everywhere.
    pub fn passed(&self) -> bool {
        self.findings.is_empty() && self.undecided.is_none()
    }
}

/// Runs the checks that apply to every run: each stage completed, each connection and visit was of the
/// kind that its cell requested, the server under development (named `ours`) executed no replay, the
/// A/A control has no more differences than chance allows, and each load run completed connections of
/// its kind. Replays at other servers are reported but not checked.
pub fn check_run(record: &Record, ours: &str) -> Vec<CheckOutcome> {
    let mut outcomes = Vec::new();
    if !record.failed_stages.is_empty() {
        let findings = record.failed_stages.clone();
        let outcome = CheckOutcome::new("stages", "each stage of the run completes");
        outcomes.push(CheckOutcome { checked: findings.len(), findings, ..outcome });
    }
    if !record.samples.is_empty() {
        outcomes.push(labels(record));
    }
    if !record.visits.is_empty() {
        outcomes.push(visits(record));
    }
    outcomes.extend(record.replays.iter().filter(|replay| replay.server == ours).map(|replay| {
        let mut outcome =
            CheckOutcome::new("replay", &format!("{} executes no replay", replay.name()));
        outcome.checked = replay.tries;
        if replay.executed > 0 {
            outcome.findings.push(format!(
                "{} executed {} of {} resent flights",
                replay.name(),
                replay.executed,
                replay.tries
            ));
        }
        outcome.undecided = replay.doubt();
        outcome
    }));
    outcomes.extend(record.control.as_ref().map(|control| {
        let mut outcome = CheckOutcome::new("control", "equal cells do not differ");
        if !control.is_decidable() {
            let (allowed, pairs) = (control.allowed, control.pairs.len());
            outcome.skipped.push(format!("{allowed} of {pairs} A/A pairs may differ by chance"));
            return outcome;
        }
        outcome.checked = control.pairs.len();
        if control.differing > control.allowed {
            outcome.findings.push(format!(
                "{} of {} A/A pairs differ, chance allows {}",
                control.differing,
                control.pairs.len(),
                control.allowed
            ));
        }
        outcome
    }));
    outcomes.extend(record.loads.iter().map(load));
    outcomes
}

fn load(load: &Load) -> CheckOutcome {
    let over = if load.http == "3" { " over HTTP/3" } else { "" };
    let name = format!("{} completes {} connections{over} under load", load.server, load.kind);
    let mut outcome = CheckOutcome::new("load", &name);
    outcome.checked = 1;
    if load.completed == 0 {
        let first = load.errors.first().map(|(error, count)| format!("; {count} times {error}"));
        outcome.findings.push(format!("none was completed{}", first.unwrap_or_default()));
    } else if load.as_requested == Some(0) {
        let (completed, kind) = (load.completed, &load.kind);
        outcome.findings.push(format!("none of {completed} completed connections was {kind}"));
    }
    outcome
}

fn visits(record: &Record) -> CheckOutcome {
    let outcome = CheckOutcome::new("visits", "each visit is of the requested kind");
    let names: Vec<String> = record.visit_cells.iter().map(crate::visits::name).collect();
    let finding = |visit: &crate::Visit| {
        let why = visit.fault.as_ref().map(crate::Fault::describe).unwrap_or_default();
        format!("{} {why}", names[visit.cell])
    };
    let findings = record.visit_failures().map(finding).collect();
    good_only_outcome(outcome, findings, (&names, &record.good_visits()), "visit")
}

fn labels(record: &Record) -> CheckOutcome {
    let outcome = CheckOutcome::new("labels", "each connection is of the requested kind");
    let names = axes::cell_names(record);
    let findings = record
        .failures()
        .map(|sample| {
            let cell = &names[sample.cell];
            let why = sample.fault.as_ref().map(crate::Fault::describe).unwrap_or_default();
            format!("{cell} {why}")
        })
        .collect();
    good_only_outcome(outcome, findings, (&names, &record.good_samples()), "sample")
}

/// The outcome of a check of samples or visits. Spoiled and disturbed ones are not counted: a cell
/// without good ones is skipped, and if no cell has good ones, the check is undecided.
fn good_only_outcome(
    outcome: CheckOutcome,
    findings: Vec<String>,
    (names, good): (&[String], &[usize]),
    what: &str,
) -> CheckOutcome {
    let without = names.iter().zip(good).filter(|(_, good)| **good == 0);
    let mut skipped: Vec<String> =
        without.map(|(name, _)| format!("no good {what} of {name}")).collect();
    let good = good.iter().sum::<usize>();
    let mut undecided = None;
    if good == 0 && findings.is_empty() && !skipped.is_empty() {
        let more = match skipped.len() {
            1 => String::new(),
            cells => format!(", and {} more", cells - 1),
        };
        undecided = Some(format!("{}{more}", skipped[0]));
        skipped.clear();
    }
    CheckOutcome { checked: good + findings.len(), findings, skipped, undecided, ..outcome }
}
