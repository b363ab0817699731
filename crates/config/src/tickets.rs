//! Tickets and the keys that seal them.

use std::path::PathBuf;

use firstflight_tickets::Schedule;

/// Tickets and the keys that seal them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TicketSettings {
    /// Where the keys come from. Default: this process.
    pub keys: KeySource,
    /// The zone that tickets name. Early data runs only where its ticket was issued; another zone
    /// resumes it without. `None`: no zone, which is a zone too.
    pub zone: Option<String>,
    /// This node's name among the cluster's; `None`: its host's name with something random.
    pub node: Option<String>,
    /// Whether each ticket can be used once only, its session lying in the store.
    pub single_use: bool,
}

/// Where ticket keys come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KeySource {
    /// Made by this process, for itself alone.
    #[default]
    Process,
    /// A file that several processes share.
    File(PathBuf),
    /// The store, where the nodes offer them to one another.
    Store {
        /// The file of the keys under which they are sealed there.
        key_encryption: PathBuf,
        /// How long they are in use.
        schedule: Schedule,
    },
}
