//! What to know before early data is switched on: what checks verify, and what only an operator can
//! answer.

use crate::{Report, Verdict};

/// A line of the checklist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChecklistItem {
    /// What should be so.
    pub statement: &'static str,
    /// The names of the checks that verify it. If there are none, the operator has to.
    pub checks: &'static [&'static str],
}

impl ChecklistItem {
    /// The worst result of its checks in a report. `None` if none of them ran.
    pub fn verdict(&self, report: &Report) -> Option<Verdict> {
        let findings = report.findings.iter();
        let found = findings.filter(|finding| self.checks.contains(&&*finding.check));
        found.map(|finding| finding.verdict).min()
    }
}

/// The trade-offs of 0-RTT, a line each.
pub const CHECKLIST: &[ChecklistItem] = &[
    ChecklistItem {
        statement: "No copy of a first flight runs: at once, at the same time, held back, from another \
                    address, under another connection ID, or at another node.",
        checks: &[
            "replay-at-once",
            "replay-concurrent",
            "replay-delayed",
            "replay-addresses",
            "replay-connection-ids",
            "replay-nodes",
        ],
    },
    ChecklistItem {
        statement: "No request runs again whose early data was refused and whose client sent it again.",
        checks: &["refused-flight"],
    },
    ChecklistItem {
        statement: "A client whose flight was overtaken by a copy is told (425), and decides itself.",
        checks: &["overtaken-flight"],
    },
    ChecklistItem {
        statement: "Unsafe methods wait for the handshake or get 425, and the retry after it works.",
        checks: &["unsafe-method", "too-early"],
    },
    ChecklistItem {
        statement: "Upstreams learn which requests are early (Early-Data: 1).",
        checks: &["early-data-header"],
    },
    ChecklistItem {
        statement: "Tickets and first flights expire.",
        checks: &["offers", "ticket-age", "ticket-lifetime", "key-life"],
    },
    ChecklistItem {
        statement: "Changed flights and tickets are refused.",
        checks: &["wrong-binder", "flipped-ticket"],
    },
    ChecklistItem {
        statement: "A ticket that was used before ends no connection, and no request of its flights runs twice.",
        checks: &["reused-ticket"],
    },
    ChecklistItem {
        statement: "Data in a SYN (TCP Fast Open) is accepted, or not offered.",
        checks: &["fast-open"],
    },
    ChecklistItem {
        statement: "A ticket brings early data for its own name and protocol only.",
        checks: &["changed-name", "changed-protocol"],
    },
    ChecklistItem {
        statement: "Early data and unfinished handshakes are limited.",
        checks: &["early-data-limit", "unfinished", "slow-early-data"],
    },
    ChecklistItem {
        statement: "No request that may run early changes anything, whatever its method: a client that \
                    sends it again by itself makes a new request, which no server can tell apart.",
        checks: &[],
    },
    ChecklistItem {
        statement: "Nodes with the same ticket keys share their record of flights, or accept early data \
                    only for tickets of their own.",
        checks: &[],
    },
    ChecklistItem {
        statement: "Ticket keys are rotated, and it is known who can read them: early data is not secret \
                    from anyone who ever gets its ticket's key.",
        checks: &[],
    },
    ChecklistItem {
        statement: "A copy that does not run tells its sender nothing by caches or by timing (RFC 8446 \
                    appendix E.5).",
        checks: &[],
    },
    ChecklistItem {
        statement: "Clocks of all nodes are kept by a time service, and a restart or a clock that was set \
                    has been tried.",
        checks: &[],
    },
    ChecklistItem {
        statement: "Clients can handle 425: some browsers show it to their user.",
        checks: &[],
    },
    ChecklistItem {
        statement: "The gain is known: one round trip, on connections that resume.",
        checks: &[],
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CHECKS, Check, Finding};

    #[test]
    fn each_check_verifies_one_line() {
        let named: Vec<&str> = CHECKLIST.iter().flat_map(|item| item.checks).copied().collect();
        for name in &named {
            assert!(Check::find(name).is_some(), "there is no check {name}");
        }
        for check in CHECKS {
            let lines = named.iter().filter(|name| **name == check.name).count();
            assert_eq!(lines, 1, "lines that {} verifies", check.name);
        }
        assert!(CHECKLIST.iter().any(|item| item.checks.is_empty()), "lines for the operator");
    }

    #[test]
    fn the_worst_check_decides() {
        let finding = |check: &str, verdict| Finding {
            check: check.to_owned(),
            title: String::new(),
            section: String::new(),
            verdict,
            summary: String::new(),
            evidence: Vec::new(),
            remedy: None,
            connections: Vec::new(),
        };
        let report = Report {
            schema: Report::SCHEMA,
            target: String::new(),
            address: String::new(),
            date: String::new(),
            server: String::new(),
            witness: false,
            findings: vec![
                finding("replay-at-once", Verdict::Pass),
                finding("replay-delayed", Verdict::Fail),
                finding("unfinished", Verdict::Pass),
            ],
        };
        assert_eq!(CHECKLIST[0].verdict(&report), Some(Verdict::Fail));
        assert_eq!(CHECKLIST[1].verdict(&report), None);
    }
}
