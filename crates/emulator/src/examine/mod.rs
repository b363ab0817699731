//! Checks what this machine supports, and how to fix what it does not.

mod child;
mod hardware_counters;
mod machine;
mod network;

use std::fmt;

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What was checked.
    pub name: &'static str,
    /// The result.
    pub state: State,
    /// What was found, as a clause.
    pub what: String,
    /// How to fix it, or what to do without it; `None` if nothing has to be done.
    pub fix: Option<String>,
}

/// The outcome of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// It works.
    Good,
    /// Measurements are less accurate, or an optional feature is missing.
    Limited,
    /// The lab does not work without it.
    Missing,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Good => "good",
            Self::Limited => "limited",
            Self::Missing => "missing",
        })
    }
}

/// Checks everything that the lab needs, and what makes its measurements accurate. Takes a second
/// or two.
///
/// The process does not change: checks that would change it run in child processes (fork). Call it
/// while the process has few threads, best only one, and before [`crate::enter_user_namespace`],
/// which it checks too.
pub fn examine() -> Vec<Finding> {
    let (namespaces, network) = (network::namespaces(), network::packet_rings());
    let permits_lab = namespaces.state != State::Missing && network.state != State::Missing;
    let found = [
        ("namespaces", namespaces),
        ("ordinary users", network::ordinary_users()),
        ("container", machine::container(permits_lab)),
        ("packet sockets", network::packet_sockets()),
        ("emulated network", network),
        ("TUN devices", network::tun()),
        ("TCP Fast Open", machine::fast_open()),
        ("congestion control", machine::congestion_control()),
        ("hardware counters", hardware_counters::hardware_counters()),
        ("processors", machine::processors()),
        ("clock", machine::clock()),
        ("wake-ups", machine::wake_ups()),
    ];
    let finding = |(name, Assessment { state, what, fix }): (&'static str, Assessment)| Finding {
        name,
        state,
        what,
        fix,
    };
    found.into_iter().map(finding).collect()
}

/// A finding without its name.
#[derive(Debug, PartialEq, Eq)]
struct Assessment {
    state: State,
    what: String,
    fix: Option<String>,
}

impl Assessment {
    fn good(what: impl Into<String>) -> Self {
        Self { state: State::Good, what: what.into(), fix: None }
    }

    fn limited(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { state: State::Limited, what: what.into(), fix: Some(fix.into()) }
    }

    fn missing(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { state: State::Missing, what: what.into(), fix: Some(fix.into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The state depends on the machine, but every check has a result, and a fix where one is
    /// needed.
    #[test]
    fn every_check_has_a_result_and_a_fix_if_needed() {
        let findings = examine();
        assert_eq!(findings.len(), 12);
        for finding in &findings {
            assert!(!finding.what.is_empty(), "{finding:?}");
            assert_eq!(finding.fix.is_none(), finding.state == State::Good, "{finding:?}");
        }
        let network = |name: &str| findings.iter().find(|f| f.name == name).expect("a finding");
        if network("emulated network").state == State::Good {
            assert_ne!(network("namespaces").state, State::Missing);
            assert_ne!(network("packet sockets").state, State::Missing);
        }
    }
}
