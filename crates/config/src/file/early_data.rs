//! The section `[early_data]`.

use std::collections::BTreeMap;
use std::time::Duration;

use firstflight_units::DurationText;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{EarlyDataSettings, Mode, Policy, SettingError, WhenNotAllowed};

/// Early data, and what of it may run. How it is kept from running twice is told in
/// [early-data.md](early-data.md).
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct EarlyDataSection {
    /// Whether tickets allow early data and it is accepted.
    ///
    /// By default they do and it is: the gate makes it safe.
    pub(crate) enabled: bool,
    /// What may run early where no path and no route says otherwise.
    ///
    /// By default safe methods: RFC 8470 section 4 expects no more of a client.
    pub(crate) default: Mode,
    /// What becomes of an early request that may not run early.
    ///
    /// By default it is held, because browsers show a 425 to their user.
    pub(crate) when_not_allowed: WhenNotAllowed,
    /// How far the age that a client states for its ticket may be off. More than 0s; with a store
    /// 60s at most.
    ///
    /// By default what RFC 8446 section 8.3 suggests.
    #[serde(with = "DurationText")]
    pub(crate) freshness: Duration,
    /// Flights that the strike register remembers at a time. When it is full no early data is
    /// accepted; nothing is forgotten.
    ///
    /// The default takes about 36 MB when it is reached.
    pub(crate) register_capacity: usize,
    /// What may run early below a path, on all sites. The longest path that is a prefix of the
    /// request's, by whole segments, decides, of these and of routes with an `early_data` of their
    /// own; of the very same path the route's counts.
    pub(crate) paths: BTreeMap<String, Mode>,
}

impl EarlyDataSection {
    pub(super) fn settings(self) -> Result<EarlyDataSettings, SettingError> {
        let mut policy = Policy::new(self.default);
        for (path, mode) in &self.paths {
            let wrong = |reason| SettingError::new(path.clone(), reason).under("paths");
            policy = policy.rule(path, *mode).map_err(|error| wrong(error.to_string()))?;
            if self.paths.contains_key(&format!("{path}/")) {
                return Err(wrong(format!("{path:?} and \"{path}/\" are one path; keep one")));
            }
        }
        if self.freshness.is_zero() {
            let reason = "a freshness of 0 would refuse all early data; set enabled = false for \
                          that, or allow more than 0s";
            return Err(SettingError::new("freshness", reason));
        }
        Ok(EarlyDataSettings {
            enabled: self.enabled,
            policy,
            when_not_allowed: self.when_not_allowed,
            freshness: self.freshness,
            register_capacity: self.register_capacity,
        })
    }

    pub(super) fn of(settings: &EarlyDataSettings) -> Self {
        Self {
            enabled: settings.enabled,
            default: settings.policy.default_mode(),
            when_not_allowed: settings.when_not_allowed,
            freshness: settings.freshness,
            register_capacity: settings.register_capacity,
            paths: settings.policy.rules().collect(),
        }
    }
}

impl Default for EarlyDataSection {
    fn default() -> Self {
        Self::of(&EarlyDataSettings::default())
    }
}
