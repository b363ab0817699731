//! The checks, one file each.

mod changed_name;
mod changed_protocol;
mod early_data_header;
mod early_data_limit;
mod fast_open;
mod flipped_ticket;
mod key_life;
mod offers;
mod overtaken_flight;
mod refused_flight;
mod replay;
mod replay_addresses;
mod replay_at_once;
mod replay_concurrent;
mod replay_connection_ids;
mod replay_delayed;
mod replay_nodes;
mod reused_ticket;
mod slow_early_data;
#[cfg(test)]
pub(crate) mod tests;
mod ticket_age;
mod ticket_lifetime;
mod too_early;
mod unfinished;
mod unsafe_method;
mod wrong_binder;

use crate::finding::Outcome;
use crate::probe::{Probe, Stop};
pub(crate) use crate::software::Concern;

/// A check.
pub struct Check {
    /// Its name, as in `--explain NAME`.
    pub name: &'static str,
    /// What it checks, in a few words.
    pub title: &'static str,
    /// The section of the RFC that requires it.
    pub section: &'static str,
    /// What it sends, what it expects, and why that matters.
    pub explanation: &'static str,
    pub(crate) needs: Needs,
    pub(crate) concern: Concern,
    pub(crate) run: fn(&Probe<'_>) -> Result<Outcome, Stop>,
}

/// What a server must offer for a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    Nothing,
    Resumption,
    EarlyData,
    EarlyDataOverQuic,
    /// Early data, and more than one address.
    OtherAddresses,
    /// Early data, and a witness behind the server.
    Witness,
}

impl Check {
    /// The check with this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        CHECKS.iter().copied().find(|check| check.name == name)
    }
}

/// All checks, in the order in which they run: the slow ones last.
pub const CHECKS: &[&Check] = &[
    &offers::CHECK,
    &replay_at_once::CHECK,
    &replay_concurrent::CHECK,
    &replay_addresses::CHECK,
    &replay_connection_ids::CHECK,
    &replay_nodes::CHECK,
    &overtaken_flight::CHECK,
    &unsafe_method::CHECK,
    &too_early::CHECK,
    &reused_ticket::CHECK,
    &early_data_header::CHECK,
    &ticket_age::CHECK,
    &wrong_binder::CHECK,
    &flipped_ticket::CHECK,
    &changed_name::CHECK,
    &changed_protocol::CHECK,
    &early_data_limit::CHECK,
    &fast_open::CHECK,
    &ticket_lifetime::CHECK,
    &replay_delayed::CHECK,
    &refused_flight::CHECK,
    &unfinished::CHECK,
    &slow_early_data::CHECK,
    &key_life::CHECK,
];
