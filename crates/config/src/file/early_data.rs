//! The section `[early_data]`.

use std::collections::BTreeMap;
use std::time::Duration;

use firstflight_units::DurationText;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{EarlyDataSettings, Mode, Policy, SettingError, WhenNotAllowed};

/// Early data and what may run from it. How replays are prevented:
/// [early-data.md](../operate/early-data.md).
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct EarlyDataSection {
    /// Whether tickets allow early data and the server accepts it.
    ///
    /// By default true: each flight runs once.
    pub(crate) enabled: bool,
    /// What may run early where no path and no route has its own mode.
    ///
    /// By default what RFC 8470 section 4 expects of clients.
    pub(crate) default: Mode,
    /// What happens to an early request that may not run early.
    ///
    /// By default held: browsers show a 425 to their users.
    pub(crate) when_not_allowed: WhenNotAllowed,
    /// Maximum ticket-age skew: how far the ticket age that a client states may be off. More than
    /// 0s, up to 60s. Punctured ticket keys do not use it.
    ///
    /// By default as RFC 8446 section 8.3 suggests.
    #[serde(with = "DurationText")]
    pub(crate) freshness: Duration,
    /// Capacity of the strike register, in flights. When it is full, no early data is accepted.
    /// Idempotency keys and nonces have a second register of this capacity, which keeps each for its
    /// whole lifetime; when it is full, new ones get 503.
    ///
    /// By default about 38 MB when full.
    pub(crate) register_capacity: usize,
    /// What may run early below a path, on all sites. The longest prefix decides, as for routes;
    /// routes with their own `early_data` take part, and win for equal paths.
    pub(crate) paths: BTreeMap<String, Mode>,
}

impl EarlyDataSection {
    pub(super) fn settings(self) -> Result<EarlyDataSettings, SettingError> {
        let mut policy = Policy::new(self.default);
        for (path, mode) in &self.paths {
            let problem = |reason| SettingError::new(path.clone(), reason).under("paths");
            policy = policy.rule(path, *mode).map_err(|error| problem(error.to_string()))?;
            if self.paths.contains_key(&format!("{path}/")) {
                return Err(problem(format!("{path:?} and \"{path}/\" are one path; keep one")));
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
