//! The process as such.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The process as such. Changes take a restart or an upgrade, but for `watch`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ProcessSettings {
    /// Worker threads, 1 and more.
    ///
    /// By default one a core.
    pub workers: Option<u16>,
    /// The user to become once all addresses are listened on and all keys are read.
    ///
    /// By default the one that started the process.
    pub user: Option<String>,
    /// The group to become.
    ///
    /// By default the user's.
    pub group: Option<String>,
    /// Whether changed files (configuration, certificates, OCSP responses) are taken up by
    /// themselves.
    ///
    /// By default they are: a certificate that was renewed and not taken up expires in use.
    pub watch: bool,
}

impl Default for ProcessSettings {
    fn default() -> Self {
        Self { workers: None, user: None, group: None, watch: true }
    }
}
