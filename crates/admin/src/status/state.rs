//! The state of a server that is not in its metrics.

use schemars::JsonSchema;
use serde::Serialize;

use super::Moment;

/// The state of a server that is not in its metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// The server process.
    pub server: ServerState,
    /// Whether early data is accepted at the moment.
    pub early_data: EarlyDataState,
    /// Ticket keys.
    pub keys: KeyRingState,
    /// Flights that were received more than once, the newest first.
    pub replays: Vec<Replay>,
    /// The certificates of the sites.
    pub certificates: Vec<Certificate>,
}

/// The server process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct ServerState {
    /// Version of the program.
    pub version: String,
    /// Host name of the machine.
    pub host: String,
    /// Process id.
    pub pid: u32,
    /// Addresses that the server listens on.
    pub addresses: Vec<String>,
    /// Whether it accepts new connections.
    pub ready: bool,
    /// The reason if not.
    pub not_ready_because: Option<String>,
    /// When it started.
    pub started_at: Moment,
    /// Number of the configuration in use: 1 at the start, plus 1 with each reload.
    pub generation: u64,
    /// When that configuration was loaded.
    pub loaded_at: Moment,
    /// The last reload, if there was one.
    pub last_reload: Option<Reload>,
}

/// The outcome of a reload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Reload {
    /// Time of the reload.
    pub at: Moment,
    /// Why the reload failed; null if it succeeded.
    pub error: Option<String>,
}

/// Whether early data is accepted at the moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct EarlyDataState {
    /// Whether the configuration enables it.
    pub enabled: bool,
    /// Why none is accepted at the moment, as in the metrics; null if it is accepted.
    pub closed_because: Option<String>,
}

/// The ticket keys, without their secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct KeyRingState {
    /// Where they come from: `process`, `punctured`, `file` or `store`.
    pub source: String,
    /// The zone of the tickets, if there is one.
    pub zone: Option<String>,
    /// How long a key is current, in seconds.
    pub period_seconds: u64,
    /// How long a ticket is valid, in seconds.
    pub lifetime_seconds: u64,
    /// Warnings for an operator.
    pub warnings: Vec<String>,
    /// The keys, the oldest first.
    pub ring: Vec<KeyState>,
}

/// A ticket key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct KeyState {
    /// The name that its tickets carry unencrypted, 32 hexadecimal digits.
    pub name: String,
    /// `previous`, `current`, `next` or `dead`.
    pub state: String,
    /// When it becomes current.
    pub current_from: Moment,
    /// When this process last encrypted a ticket with it.
    pub last_sealed: Option<Moment>,
    /// When this process last decrypted a ticket with it.
    pub last_opened: Option<Moment>,
}

/// The certificate of a site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Certificate {
    /// The first name of the site.
    pub site: String,
    /// All names of the site.
    pub names: Vec<String>,
    /// Where it comes from: `files`, `acme`, `development` or `self-signed`.
    pub source: String,
    /// Whether there is none yet. Clients then get a certificate that they do not trust.
    pub missing: bool,
    /// When it expires; null if there is none.
    pub expires_at: Option<Moment>,
    /// When the next order starts; null during an order, or without an ACME authority.
    pub next_try_at: Option<Moment>,
    /// When the authority issued it, or another process passed it on; of one adopted from another
    /// node, the start of its validity.
    pub last_success_at: Option<Moment>,
    /// Why the last order failed, if it did.
    pub last_error: Option<Failure>,
}

/// A failure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Failure {
    /// Time of the failure.
    pub at: Moment,
    /// The cause, and what to do.
    pub reason: String,
    /// Number of consecutive failures.
    pub in_a_row: u32,
}

/// A flight that was received more than once, and whose copies were stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Replay {
    /// When the first copy was received.
    pub first_at: Moment,
    /// When the last copy was received.
    pub last_at: Moment,
    /// Number of copies.
    pub copies: u64,
    /// Some of the networks from which they came: /24 of IPv4, /48 of IPv6. Over UDP, addresses may be
    /// forged.
    pub networks: Vec<String>,
    /// `tcp` or `quic`.
    pub transport: String,
}
