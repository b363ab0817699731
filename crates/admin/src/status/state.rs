//! What a server says of itself that is no figure.

use schemars::JsonSchema;
use serde::Serialize;

use super::Moment;

/// What a server says of itself that is no figure.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// The process.
    pub server: ServerState,
    /// Whether early data is taken now.
    pub early_data: EarlyDataState,
    /// Ticket keys.
    pub keys: KeysState,
    /// The flights that came more than once, the last one first.
    pub replays: Vec<Replay>,
    /// The sites' certificates.
    pub certificates: Vec<Certificate>,
}

/// The process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct ServerState {
    /// The program's version.
    pub version: String,
    /// The machine's name.
    pub host: String,
    /// The process id.
    pub pid: u32,
    /// The addresses listened on.
    pub addresses: Vec<String>,
    /// Whether it wants new connections.
    pub ready: bool,
    /// Why not, if not.
    pub not_ready_because: Option<String>,
    /// When it started to serve.
    pub started_at: Moment,
    /// Which configuration serves: 1 at the start, one more with each reload.
    pub generation: u64,
    /// When that configuration was taken up.
    pub loaded_at: Moment,
    /// The last try to load another one, if there was any.
    pub last_reload: Option<Reload>,
}

/// What became of a reload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Reload {
    /// When it was tried.
    pub at: Moment,
    /// Why the old configuration stayed; null: the new one serves.
    pub error: Option<String>,
}

/// Whether early data is taken now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct EarlyDataState {
    /// Whether the configuration wants it.
    pub enabled: bool,
    /// Why none is accepted now, by the names of the metric's reasons; null: it is.
    pub closed_because: Option<String>,
}

/// Ticket keys, and never a secret of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct KeysState {
    /// Where they come from: process, file or store.
    pub source: String,
    /// The zone that tickets name, if there is one.
    pub zone: Option<String>,
    /// How long a key is to be current, in seconds.
    pub period_seconds: u64,
    /// How long a ticket is good, in seconds.
    pub lifetime_seconds: u64,
    /// What an operator should know of them.
    pub warnings: Vec<String>,
    /// The keys, the oldest first.
    pub ring: Vec<KeyState>,
}

/// A ticket key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct KeyState {
    /// The name that its tickets carry in the clear, 32 hexadecimal digits.
    pub name: String,
    /// What it is for: previous, current, next or dead.
    pub state: String,
    /// When it becomes current.
    pub current_from: Moment,
    /// When this process last sealed a ticket under it.
    pub last_sealed: Option<Moment>,
    /// When this process last opened a ticket under it.
    pub last_opened: Option<Moment>,
}

/// A site's certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Certificate {
    /// The site's first name.
    pub site: String,
    /// All of the site's names.
    pub names: Vec<String>,
    /// Where it comes from: files, acme, development or self-signed.
    pub source: String,
    /// Whether there is none yet: what clients are shown then nobody trusts.
    pub missing: bool,
    /// When it expires; null: there is none.
    pub expires_at: Option<Moment>,
    /// When the authority is asked next; null: it is being asked, or there is no authority.
    pub next_try_at: Option<Moment>,
    /// When the authority issued it, or this process took it up from another one.
    pub last_success_at: Option<Moment>,
    /// Why there is no newer one, if the last try failed.
    pub last_error: Option<Failure>,
}

/// Something that failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Failure {
    /// When.
    pub at: Moment,
    /// Why, and the fix.
    pub reason: String,
    /// How many times in a row by now.
    pub in_a_row: u32,
}

/// A flight that came more than once, and whose copies were stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Replay {
    /// When a copy first came.
    pub first_at: Moment,
    /// When one came last.
    pub last_at: Moment,
    /// How many came.
    pub copies: u64,
    /// From which networks, at most a few: /24 of IPv4, /48 of IPv6. Over UDP an address may be
    /// forged.
    pub networks: Vec<String>,
    /// tcp or quic.
    pub transport: String,
}
