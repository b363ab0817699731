//! What this machine allows, tried out, and how to fix what it does not.

mod counters;
mod machine;
mod network;
mod trial;

use std::fmt;

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What it is about.
    pub name: &'static str,
    /// How it stands.
    pub state: State,
    /// What was found, as a clause.
    pub what: String,
    /// How to fix it, or what to do without it; nothing where nothing has to be.
    pub mend: Option<String>,
}

/// How something stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// As it should be.
    Good,
    /// Figures are worse for it, or something that can be chosen is not to be had.
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

/// Tries out all that the lab needs, and what makes its figures good. Takes a second or two.
///
/// Nothing of it remains: what changes the process is done in copies of it (fork) that end again.
/// To be called while the process has few threads, best only one, and before
/// [`crate::enter_user_namespace`]: then it finds what that would.
pub fn examine() -> Vec<Finding> {
    let (namespaces, network) = (network::namespaces(), network::packet_rings());
    let open = namespaces.state != State::Missing && network.state != State::Missing;
    let found = [
        ("namespaces", namespaces),
        ("ordinary users", network::ordinary_users()),
        ("container", machine::container(open)),
        ("packet sockets", network::packet_sockets()),
        ("emulated network", network),
        ("TUN devices", network::tun()),
        ("TCP Fast Open", machine::fast_open()),
        ("congestion control", machine::congestion_control()),
        ("hardware counters", counters::counters()),
        ("processors", machine::processors()),
        ("clock", machine::clock()),
        ("wake-ups", machine::wake_ups()),
    ];
    let finding = |(name, FindingState { state, what, mend }): (&'static str, FindingState)| {
        Finding { name, state, what, mend }
    };
    found.into_iter().map(finding).collect()
}

/// A finding without its name.
#[derive(Debug, PartialEq, Eq)]
struct FindingState {
    state: State,
    what: String,
    mend: Option<String>,
}

impl FindingState {
    fn good(what: impl Into<String>) -> Self {
        Self { state: State::Good, what: what.into(), mend: None }
    }

    fn limited(what: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { state: State::Limited, what: what.into(), mend: Some(mend.into()) }
    }

    fn missing(what: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { state: State::Missing, what: what.into(), mend: Some(mend.into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The state depends on the machine; that something was found, and a fix where one is due,
    /// does not.
    #[test]
    fn everything_is_looked_at_and_what_is_not_good_has_a_mend() {
        let findings = examine();
        assert_eq!(findings.len(), 12);
        for finding in &findings {
            assert!(!finding.what.is_empty(), "{finding:?}");
            assert_eq!(finding.mend.is_none(), finding.state == State::Good, "{finding:?}");
        }
        let network = |name: &str| findings.iter().find(|f| f.name == name).expect("looked at");
        if network("emulated network").state == State::Good {
            assert_ne!(network("namespaces").state, State::Missing);
            assert_ne!(network("packet sockets").state, State::Missing);
        }
    }
}
