//! Verdicts: what a run was asked, and whether it holds.

use crate::{Load, Record, axes};

/// The response to one question, a test case for a pipeline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// What kind of question: `condition`, `labels`, `visits`, `replay`, `control`, `load`.
    pub group: String,
    /// What should hold.
    pub name: String,
    /// How many cells, servers or samples were asked.
    pub checked: usize,
    /// Where it does not hold, a sentence each with the figures; empty: it passed.
    pub findings: Vec<String>,
    /// What could not be asked, and why, a sentence each.
    pub left_out: Vec<String>,
    /// Why it could not be decided at all, which is no pass either.
    pub undecided: Option<String>,
}

impl Verdict {
    pub(crate) fn new(group: &str, name: &str) -> Self {
        Self { group: group.to_owned(), name: name.to_owned(), ..Self::default() }
    }

    /// A question that could not be decided.
    pub fn undecided(group: &str, name: &str, why: &str) -> Self {
        Self { undecided: Some(why.to_owned()), ..Self::new(group, name) }
    }

    /// Whether it holds everywhere.
    pub fn passed(&self) -> bool {
        self.findings.is_empty() && self.undecided.is_none()
    }
}

/// What every run is asked: that each connection and visit was what its cell asked for, that our
/// server executed no replay (`ours` is its name; what others do is reported, not judged), and that
/// the A/A control shows no more differences than chance, and that a load completed connections at
/// all.
pub fn verdicts(record: &Record, ours: &str) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    if !record.samples.is_empty() {
        verdicts.push(labels(record));
    }
    if !record.visits.is_empty() {
        verdicts.push(visits(record));
    }
    verdicts.extend(record.replays.iter().filter(|replay| replay.server == ours).map(|replay| {
        let mut verdict = Verdict::new("replay", &format!("{} executes no replay", replay.name()));
        verdict.checked = replay.tries;
        if replay.executed > 0 {
            verdict.findings.push(format!(
                "{} executed {} of {} resent flights",
                replay.name(),
                replay.executed,
                replay.tries
            ));
        }
        if replay.originals < replay.flights {
            verdict.undecided = Some(format!(
                "only {} of {} original flights were seen executed, so a count means nothing",
                replay.originals, replay.flights
            ));
        }
        verdict
    }));
    verdicts.extend(record.control.as_ref().map(|control| {
        let mut verdict = Verdict::new("control", "what is the same does not seem to differ");
        verdict.checked = control.pairs.len();
        if control.differing > control.allowed {
            verdict.findings.push(format!(
                "{} of {} A/A pairs differ, chance allows {}",
                control.differing,
                control.pairs.len(),
                control.allowed
            ));
        }
        verdict
    }));
    verdicts.extend(record.loads.iter().map(load));
    verdicts
}

fn load(load: &Load) -> Verdict {
    let over = if load.http == "3" { " over HTTP/3" } else { "" };
    let name = format!("{} completes {} connections{over} under load", load.server, load.kind);
    let mut verdict = Verdict::new("load", &name);
    verdict.checked = 1;
    if load.completed == 0 {
        let first = load.errors.first().map(|(error, count)| format!("; {count} times {error}"));
        verdict.findings.push(format!("none was completed{}", first.unwrap_or_default()));
    }
    verdict
}

fn visits(record: &Record) -> Verdict {
    let mut verdict = Verdict::new("visits", "each visit is what its cell asked for");
    verdict.checked = record.visits.len();
    let finding = |visit: &crate::Visit| {
        let why = visit.fault.as_ref().map(crate::tables::why).unwrap_or_default();
        format!("{} {why}", crate::visits::name(&record.visit_cells[visit.cell]))
    };
    verdict.findings = record.visit_failures().map(finding).collect();
    verdict
}

fn labels(record: &Record) -> Verdict {
    let mut verdict = Verdict::new("labels", "each connection is what its cell asked for");
    verdict.checked = record.samples.len();
    let names = axes::names(record);
    verdict.findings = record
        .failures()
        .map(|sample| {
            let cell = &names[sample.cell];
            let why = sample.fault.as_ref().map(crate::tables::why).unwrap_or_default();
            format!("{cell} {why}")
        })
        .collect();
    verdict
}
