//! What an audit finds.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The result of a check, the worst first.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// A requirement is not met.
    Fail,
    /// Permitted, and a risk.
    Warn,
    /// Could not be decided; the summary says why.
    Inconclusive,
    /// The requirement is met.
    Pass,
    /// The server does not offer what is checked.
    NotApplicable,
}

impl Verdict {
    /// All verdicts, the worst first.
    pub const ALL: [Self; 5] =
        [Self::Fail, Self::Warn, Self::Inconclusive, Self::Pass, Self::NotApplicable];

    /// The verdict in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fail => "fail",
            Self::Warn => "warn",
            Self::Inconclusive => "inconclusive",
            Self::Pass => "pass",
            Self::NotApplicable => "not applicable",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The result of a check, before it is reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) verdict: Verdict,
    /// One sentence.
    pub(crate) summary: String,
    /// What was sent and received, a line each.
    pub(crate) evidence: Vec<String>,
    /// Whether the summary says what to do, so that the remedy of the check does not apply.
    pub(crate) has_own_remedy: bool,
}

impl Outcome {
    pub(crate) fn new(verdict: Verdict, summary: impl Into<String>) -> Self {
        Self { verdict, summary: summary.into(), evidence: Vec::new(), has_own_remedy: false }
    }

    /// Marks a summary that says what to do.
    pub(crate) fn with_own_remedy(self) -> Self {
        Self { has_own_remedy: true, ..self }
    }

    /// The worst outcome, or the first of several, with the evidence of all.
    pub(crate) fn worst(outcomes: Vec<Self>) -> Option<Self> {
        let evidence = outcomes.iter().flat_map(|outcome| outcome.evidence.clone()).collect();
        let worst = outcomes.into_iter().min_by_key(|outcome| outcome.verdict)?;
        Some(worst.with(evidence))
    }

    pub(crate) fn with(mut self, evidence: Vec<String>) -> Self {
        self.evidence = evidence;
        self
    }
}

/// The reported result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// The check's name, as for `--explain`.
    pub check: String,
    /// What it checks, in a few words.
    pub title: String,
    /// The section of the RFC that requires it.
    pub section: String,
    /// The result.
    pub verdict: Verdict,
    /// The result in a sentence.
    pub summary: String,
    /// What was sent and received, a line each.
    pub evidence: Vec<String>,
    /// What to do about it, for the server that was recognised.
    pub remedy: Option<String>,
    /// The connections of the check, in the order in which they were opened.
    #[serde(default)]
    pub connections: Vec<Connection>,
}

/// A connection of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Connection {
    /// The server's address.
    pub address: String,
    /// The local port, by which it is found in a capture.
    pub local_port: Option<u16>,
    /// When it was opened, in milliseconds since the start of the audit.
    pub opened_ms: u64,
    /// Bytes that were sent before any response could be read.
    pub first_flight_bytes: u64,
    /// The SHA-256 of these bytes. A copy has that of its original.
    pub first_flight_sha256: String,
    /// Bytes that were sent in all, without headers of TCP and UDP.
    pub sent_bytes: u64,
    /// Bytes that were received in all.
    pub received_bytes: u64,
}

/// The report of an audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// Version of this format: 1.
    pub schema: u32,
    /// The URL.
    pub target: String,
    /// The address that was tested.
    pub address: String,
    /// When it was tested, as in RFC 3339.
    pub date: String,
    /// The server, by its own words, and as it was recognised.
    pub server: String,
    /// Whether executions were counted by a witness; else they were concluded from responses.
    pub witness: bool,
    /// All findings, the worst first.
    pub findings: Vec<Finding>,
}

impl Report {
    /// The version of the format.
    pub const SCHEMA: u32 = 1;

    /// The worst verdict: what an exit code depends on.
    pub fn worst(&self) -> Option<Verdict> {
        self.findings.iter().map(|finding| finding.verdict).min()
    }

    /// How many findings have this verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.findings.iter().filter(|finding| finding.verdict == verdict).count()
    }

    /// The result in a sentence.
    pub fn headline(&self) -> String {
        let counts: Vec<String> = Verdict::ALL
            .into_iter()
            .filter(|verdict| self.count(*verdict) > 0)
            .map(|verdict| format!("{} {verdict}", self.count(verdict)))
            .collect();
        let counts = counts.join(", ");
        let verdict_of = |check: &str| {
            let mut found = self.findings.iter().filter(|finding| finding.check == check);
            found.next().map(|finding| finding.verdict)
        };
        let replays = [
            "replay-at-once",
            "replay-concurrent",
            "replay-addresses",
            "replay-connection-ids",
            "replay-nodes",
            "replay-delayed",
            "refused-flight",
        ];
        let what = match replays.map(verdict_of) {
            all if all.contains(&Some(Verdict::Fail)) => "executes replayed early data",
            all if all.contains(&Some(Verdict::Pass)) && !all.contains(&Some(Verdict::Warn)) => {
                match all.contains(&Some(Verdict::Inconclusive)) {
                    true => "executed no replayed early data, as far as it could be tested",
                    false => "executed no replayed early data",
                }
            }
            all if all.iter().all(Option::is_none) => "was not tested with replays",
            all if all.iter().all(|v| matches!(v, None | Some(Verdict::NotApplicable))) => {
                "has no early data to replay"
            }
            _ => "may execute replayed early data",
        };
        format!("{} {what}: {counts}.", self.target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(findings: &[(&str, Verdict)]) -> Report {
        let finding = |(check, verdict): &(&str, Verdict)| Finding {
            check: (*check).to_owned(),
            title: String::new(),
            section: String::new(),
            verdict: *verdict,
            summary: String::new(),
            evidence: Vec::new(),
            remedy: None,
            connections: Vec::new(),
        };
        Report {
            schema: Report::SCHEMA,
            target: "https://a/".to_owned(),
            address: String::new(),
            date: String::new(),
            server: String::new(),
            witness: false,
            findings: findings.iter().map(finding).collect(),
        }
    }

    #[test]
    fn the_headline_follows_the_replays() {
        use Verdict::{Fail, Inconclusive, NotApplicable, Pass, Warn};
        let headline = |a, b| report(&[("replay-at-once", a), ("replay-delayed", b)]).headline();
        assert_eq!(
            headline(Fail, Pass),
            "https://a/ executes replayed early data: 1 fail, 1 pass."
        );
        assert_eq!(headline(Pass, Pass), "https://a/ executed no replayed early data: 2 pass.");
        assert!(
            headline(Pass, Inconclusive)
                .contains("early data, as far as it could be tested: 1 inc")
        );
        assert!(headline(Pass, Warn).contains("may execute"));
        assert!(headline(NotApplicable, NotApplicable).contains("has no early data"));
        let others = report(&[("unsafe-method", Pass)]).headline();
        assert_eq!(others, "https://a/ was not tested with replays: 1 pass.");
        assert_eq!(report(&[("offers", Warn), ("binder", Pass)]).worst(), Some(Warn));
    }
}
