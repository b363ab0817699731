//! The section `[tickets]`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use firstflight_tickets::Schedule;
use firstflight_units::{OptionalDurationText, print_duration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::beside;
use crate::{KeySource, SettingError, TicketSettings};

/// Session tickets, and the keys that seal them; more in [keys.md](keys.md).
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct TicketSection {
    /// Where the keys come from.
    ///
    /// By default this process makes them: nobody else has them, and they end with it.
    pub(crate) keys: Keys,
    /// With keys = `"file"`: the file, which `firstflight keys new` makes.
    pub(crate) file: Option<PathBuf>,
    /// With keys = `"store"`: the file with the keys under which they are sealed there.
    pub(crate) key_encryption_file: Option<PathBuf>,
    /// With keys = `"store"`: how long a key is in use for new tickets, 60s to 168h.
    ///
    /// By default half a day: with a life as long, whoever takes the keys can read early data of a
    /// day at most.
    #[serde(with = "OptionalDurationText")]
    #[schemars(extend("default" = print_duration(Schedule::default().rotation())))]
    pub(crate) rotation: Option<Duration>,
    /// With keys = `"store"`: how long a ticket is good, 1s to 168h (RFC 8446 section 4.6.1).
    ///
    /// By default half a day: a client that stays away for longer can well afford a full handshake.
    #[serde(with = "OptionalDurationText")]
    #[schemars(extend("default" = print_duration(Schedule::default().lifetime())))]
    pub(crate) lifetime: Option<Duration>,
    /// The zone that tickets name. Early data runs only in the zone that issued its ticket; another
    /// resumes the session without.
    ///
    /// By default no name, which is a zone too.
    pub(crate) zone: Option<String>,
    /// This node's name among those that share a store.
    ///
    /// By default its host's name with something random.
    pub(crate) node: Option<String>,
    /// Whether each ticket can be used once only, its session lying in the store.
    ///
    /// By default not: it costs each connection a question to the store.
    pub(crate) single_use: bool,
}

/// Where ticket keys come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Keys {
    /// Made by this process, for itself alone.
    #[default]
    Process,
    /// A file that several processes share.
    File,
    /// The store, where the nodes offer them to one another.
    Store,
}

impl TicketSection {
    /// The settings, of a file with or without a section `[store]`.
    pub(super) fn settings(
        self,
        has_store: bool,
        base: &Path,
    ) -> Result<TicketSettings, SettingError> {
        self.check_company(has_store)?;
        check_name(self.zone.as_deref(), "zone")?;
        check_name(self.node.as_deref(), "node")?;
        let TicketSection { zone, node, single_use, .. } = self.clone();
        Ok(TicketSettings { keys: self.source(base)?, zone, node, single_use })
    }

    fn source(self, base: &Path) -> Result<KeySource, SettingError> {
        match self.keys {
            Keys::Process => Ok(KeySource::Process),
            Keys::File => match self.file {
                Some(file) => Ok(KeySource::File(beside(base, file))),
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
                        Ok(KeySource::Store { key_encryption: beside(base, file), schedule })
                    }
                    None => Err(SettingError::new("keys", missing)),
                }
            }
        }
    }

    /// Keys that need others, or have no meaning beside them.
    fn check_company(&self, has_store: bool) -> Result<(), SettingError> {
        let only = |key: &'static str, source: &str| {
            Err(SettingError::new(key, format!("{key} is for keys = \"{source}\" only")))
        };
        if self.file.is_some() && self.keys != Keys::File {
            return only("file", "file");
        }
        if self.keys != Keys::Store {
            if self.key_encryption_file.is_some() {
                return only("key_encryption_file", "store");
            }
            let times = [("rotation", self.rotation), ("lifetime", self.lifetime)];
            if let Some((key, _)) = times.iter().find(|(_, time)| time.is_some()) {
                return only(key, "store");
            }
        }
        let lonely = |key, what| {
            let reason = format!("{what} needs a store; give a section [store] with its url");
            Err(SettingError::new(key, reason))
        };
        match (has_store, self.keys, self.single_use) {
            (false, Keys::Store, _) => lonely("keys", "keys = \"store\""),
            (false, _, true) => lonely("single_use", "single_use = true"),
            _ => Ok(()),
        }
    }

    pub(super) fn of(settings: &TicketSettings) -> Self {
        let mut section = Self {
            zone: settings.zone.clone(),
            node: settings.node.clone(),
            single_use: settings.single_use,
            ..Self::default()
        };
        match settings.keys.clone() {
            KeySource::Process => {}
            KeySource::File(file) => (section.keys, section.file) = (Keys::File, Some(file)),
            KeySource::Store { key_encryption, schedule } => {
                section.keys = Keys::Store;
                section.key_encryption_file = Some(key_encryption);
                section.rotation = Some(schedule.rotation());
                section.lifetime = Some(schedule.lifetime());
            }
        }
        section
    }
}

/// Whether it fits into records, tables and log lines.
fn check_name(text: Option<&str>, key: &'static str) -> Result<(), SettingError> {
    let Some(text) = text else { return Ok(()) };
    let good =
        (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    let reason =
        || format!("{key} is no name; allowed are 1 to {MAX_NAME} printable ASCII characters");
    if good { Ok(()) } else { Err(SettingError::new(key, reason())) }
}

/// What still fits a line.
const MAX_NAME: usize = 64;
