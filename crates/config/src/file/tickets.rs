//! The section `[tickets]`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use firstflight_tickets::Schedule;
use firstflight_units::{OptionalDurationText, print_duration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::resolve;
use crate::{KeySource, SettingError, TicketSettings};

/// Session tickets and the keys that encrypt them; see [keys.md](../operate/keys.md).
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct TicketSection {
    /// Where the ticket keys come from.
    ///
    /// By default `"punctured"`, and `"process"` with a section `[store]`.
    pub(crate) keys: Option<Keys>,
    /// With keys = `"file"`: the key file, created by `firstflight keys new`.
    pub(crate) file: Option<PathBuf>,
    /// With keys = `"store"`: file with the keys that encrypt the ticket keys in the store.
    pub(crate) key_encryption_file: Option<PathBuf>,
    /// With keys = `"store"`: how long a key encrypts new tickets, 60s to 168h.
    ///
    /// By default, a thief of the keys can decrypt at most a day of early data (with the default
    /// `lifetime`).
    #[serde(with = "OptionalDurationText")]
    #[schemars(extend("default" = print_duration(Schedule::default().rotation())))]
    pub(crate) rotation: Option<Duration>,
    /// With keys = `"store"`: lifetime of tickets, 1s to 168h (RFC 8446 section 4.6.1).
    ///
    /// By default clients away for longer can afford a full handshake.
    #[serde(with = "OptionalDurationText")]
    #[schemars(extend("default" = print_duration(Schedule::default().lifetime())))]
    pub(crate) lifetime: Option<Duration>,
    /// Zone of this node. Early data runs only in the zone that issued its ticket; other zones
    /// resume the session without it.
    ///
    /// By default the zone without a name.
    pub(crate) zone: Option<String>,
    /// Name of this node among those that share a store.
    ///
    /// By default the host name with a random suffix.
    pub(crate) node: Option<String>,
    /// Whether each ticket can be used only once. Sessions are then stored in the store.
    ///
    /// By default false: each connection costs a request to the store.
    pub(crate) single_use: bool,
    /// Whether clients are told that a ticket is valid for all names of the certificate
    /// (draft-ietf-tls-cross-sni-resumption), and whether sites with the same certificate files and
    /// rules for early data accept each other's. Tickets say so only if every name of the
    /// certificate is of such a site.
    ///
    /// By default false: few clients know it yet.
    pub(crate) across_names: bool,
}

/// Where ticket keys come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Keys {
    /// Generated in memory, and lost when this process ends: one for each ticket, destroyed when
    /// the ticket is used. Nobody can read early data that was recorded before, or open a copy of
    /// it.
    Punctured,
    /// Generated in memory, and lost when this process ends: one for many tickets, replaced twice a
    /// day. A client may use a ticket more than once.
    Process,
    /// A file that several processes can share.
    File,
    /// The store, where the nodes exchange them.
    Store,
}

impl TicketSection {
    /// Converts to settings. `has_store`: whether the file has a section `[store]`.
    pub(super) fn settings(
        self,
        has_store: bool,
        base: &Path,
    ) -> Result<TicketSettings, SettingError> {
        let keys = self.keys.unwrap_or(if has_store { Keys::Process } else { Keys::Punctured });
        self.check_combination(keys, has_store)?;
        check_name(self.zone.as_deref(), "zone")?;
        check_name(self.node.as_deref(), "node")?;
        let TicketSection { zone, node, single_use, across_names, .. } = self.clone();
        Ok(TicketSettings { keys: self.source(keys, base)?, zone, node, single_use, across_names })
    }

    fn source(self, keys: Keys, base: &Path) -> Result<KeySource, SettingError> {
        match keys {
            Keys::Process => Ok(KeySource::Process),
            Keys::Punctured => Ok(KeySource::Punctured),
            Keys::File => match self.file {
                Some(file) => Ok(KeySource::File(resolve(base, file))),
                None => {
                    Err(SettingError::new("keys", "keys = \"file\" needs file = \"ticket.keys\""))
                }
            },
            Keys::Store => {
                let default = Schedule::default();
                let key = if self.rotation.is_some() { "rotation" } else { "lifetime" };
                let rotation = self.rotation.unwrap_or(default.rotation());
                let lifetime = self.lifetime.unwrap_or(default.lifetime());
                let schedule = Schedule::new(rotation, lifetime)
                    .map_err(|error| SettingError::new(key, error.to_string()))?;
                let missing = "keys = \"store\" needs key_encryption_file, the file with the key \
                               under which they are sealed there";
                match self.key_encryption_file {
                    Some(file) => {
                        Ok(KeySource::Store { key_encryption: resolve(base, file), schedule })
                    }
                    None => Err(SettingError::new("keys", missing)),
                }
            }
        }
    }

    /// Checks that keys are used in a valid combination.
    fn check_combination(&self, keys: Keys, has_store: bool) -> Result<(), SettingError> {
        let only = |key: &'static str, source: &str| {
            Err(SettingError::new(key, format!("{key} is for keys = \"{source}\" only")))
        };
        if self.file.is_some() && keys != Keys::File {
            return only("file", "file");
        }
        if keys != Keys::Store {
            if self.key_encryption_file.is_some() {
                return only("key_encryption_file", "store");
            }
            let times = [("rotation", self.rotation), ("lifetime", self.lifetime)];
            if let Some((key, _)) = times.iter().find(|(_, time)| time.is_some()) {
                return only(key, "store");
            }
        }
        let needs_store = |key, what| {
            let reason = format!("{what} needs a store; add a section [store] with its url");
            Err(SettingError::new(key, reason))
        };
        match (has_store, keys, self.single_use) {
            (true, Keys::Punctured, _) => Err(SettingError::new("keys", PUNCTURED_WITH_STORE)),
            (false, Keys::Store, _) => needs_store("keys", "keys = \"store\""),
            (false, _, true) => needs_store("single_use", "single_use = true"),
            _ => Ok(()),
        }
    }

    pub(super) fn of(settings: &TicketSettings) -> Self {
        let mut section = Self {
            zone: settings.zone.clone(),
            node: settings.node.clone(),
            single_use: settings.single_use,
            across_names: settings.across_names,
            ..Self::default()
        };
        match settings.keys.clone() {
            KeySource::Punctured => section.keys = Some(Keys::Punctured),
            KeySource::Process => section.keys = Some(Keys::Process),
            KeySource::File(file) => (section.keys, section.file) = (Some(Keys::File), Some(file)),
            KeySource::Store { key_encryption, schedule } => {
                section.keys = Some(Keys::Store);
                section.key_encryption_file = Some(key_encryption);
                section.rotation = Some(schedule.rotation());
                section.lifetime = Some(schedule.lifetime());
            }
        }
        section
    }
}

/// The error for punctured keys with a store: only the process that issued such a ticket can open
/// it.
pub(crate) const PUNCTURED_WITH_STORE: &str = "keys = \"punctured\" are for a process alone, and the \
    other nodes of a store could not open its tickets; use keys = \"store\", or remove the section \
    [store]";

/// Checks that a name fits into records, tables and log lines.
fn check_name(text: Option<&str>, key: &'static str) -> Result<(), SettingError> {
    let Some(text) = text else { return Ok(()) };
    let good = (1..=MAX_NAME_BYTES).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_graphic());
    let reason = || {
        format!(
            "{key} is not a valid name; allowed are 1 to {MAX_NAME_BYTES} printable ASCII characters"
        )
    };
    if good { Ok(()) } else { Err(SettingError::new(key, reason())) }
}

/// Names of this length fit on a line of a table.
const MAX_NAME_BYTES: usize = 64;
