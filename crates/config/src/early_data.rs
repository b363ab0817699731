//! Early data.

use std::time::Duration;

use crate::{Policy, WhenNotAllowed};

/// Early data, the gate and the policy before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EarlyDataSettings {
    /// Whether tickets allow early data and it is accepted.
    pub enabled: bool,
    /// What may run early.
    pub policy: Policy,
    /// What becomes of the rest.
    pub when_not_allowed: WhenNotAllowed,
    /// How far a ticket's stated age may be off.
    pub freshness: Duration,
    /// Flights that the strike register remembers at a time.
    pub register_capacity: usize,
}

impl Default for EarlyDataSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            policy: Policy::default(),
            when_not_allowed: WhenNotAllowed::default(),
            freshness: Duration::from_secs(10),
            register_capacity: 1 << 20,
        }
    }
}
