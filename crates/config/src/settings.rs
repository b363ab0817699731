//! What a server is to do: everything that flags and the configuration file can say.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use firstflight_otlp::TelemetrySettings;
use firstflight_store::StoreConfig;
use firstflight_tickets::Schedule;
use firstflight_tls::{CipherPolicy, CipherPreference, Version};

use crate::{AdminSettings, Content, Limits, Policy, WhenNotAllowed};

/// A server's configuration. [`ServerConfig::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Where it listens.
    pub listeners: Vec<Listener>,
    /// Connections that wait to be accepted. Default 4096, the kernel's own limit
    /// (`net.core.somaxconn`), so that a burst is not answered by retransmissions.
    pub backlog: u32,
    /// Where certificate and key come from, for every site that has none of its own.
    pub certificate: CertificateSource,
    /// What is served.
    pub content: Content,
    /// Versions, ciphers, tickets.
    pub tls: TlsSettings,
    /// HTTP/3.
    pub http3: Http3Settings,
    /// Early data.
    pub early_data: EarlyDataSettings,
    /// The store that the cluster's nodes share; `None`: this process is alone, and its strike
    /// register too.
    pub store: Option<StoreConfig>,
    /// Tickets and the keys that seal them.
    pub tickets: TicketSettings,
    /// Whether a connection takes further requests. Default yes.
    pub keep_alive: bool,
    /// Limits.
    pub limits: Limits,
    /// Where a line per request goes; `None`: nowhere.
    pub access_log: Option<AccessLogSettings>,
    /// Where operators look; `None`: nowhere.
    pub admin: Option<AdminSettings>,
    /// Traces and OTLP; `None`: no request has a trace.
    pub telemetry: Option<TelemetrySettings>,
    /// The process as such.
    pub process: ProcessSettings,
}

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The address; port 0 lets the system choose.
    pub address: SocketAddr,
    /// What is spoken there.
    pub protocol: ListenerProtocol,
    /// Whether HTTP/3 is served on the same port over UDP, if it is served at all
    /// ([`Http3Settings::enabled`]). Default yes.
    pub http3: bool,
    /// Networks whose connections begin with a PROXY header (v1 or v2), and have to. Default none:
    /// whoever may send it says who he is.
    pub proxy_protocol_from: Vec<IpNetwork>,
}

/// What is spoken on a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListenerProtocol {
    /// HTTP over TLS.
    #[default]
    Https,
    /// HTTP without TLS, where every answer is a 308 to the same URL with `https`.
    Redirect,
}

/// A range of addresses, such as `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpNetwork {
    /// The address; bits beyond the prefix are 0.
    pub address: IpAddr,
    /// How many leading bits count.
    pub prefix: u8,
}

/// The process as such.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessSettings {
    /// Worker threads; `None`: one a core.
    pub workers: Option<u16>,
    /// The user to become once all addresses are listened on and all keys are read; `None`: stay.
    pub user: Option<String>,
    /// The group; `None`: the user's.
    pub group: Option<String>,
    /// Whether changed files (configuration, certificates, OCSP responses) are taken up by
    /// themselves.
    pub watch: bool,
}

/// Where certificate and key come from.
#[derive(Clone, Debug)]
pub enum CertificateSource {
    /// Two PEM files, the chain's leaf first.
    Files {
        /// The chain.
        cert: PathBuf,
        /// The key.
        key: PathBuf,
    },
    /// Made at the start: ECDSA P-256, for localhost, the addresses listened on and `names`.
    SelfSigned {
        /// Further host names and addresses.
        names: Vec<String>,
        /// Where to write the certificate (not the key), for clients to trust it.
        save: Option<PathBuf>,
    },
}

/// Versions, ciphers, tickets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    /// Oldest version. Default 1.2: RFC 8996 has retired the older ones.
    pub min_version: Version,
    /// Newest version. Default 1.3.
    pub max_version: Version,
    /// Ciphers and groups. Default: the library's.
    pub ciphers: CipherPolicy,
    /// Whose order of ciphers counts. Default: what is cheap for client and server.
    pub cipher_preference: CipherPreference,
    /// Tickets a TLS 1.3 handshake. Default 2: one to use, one for a connection beside it.
    pub tickets: usize,
    /// Whether HTTP/2 is offered. Default yes.
    pub http2: bool,
    /// Where TLS secrets are written (`SSLKEYLOGFILE`). Default nowhere.
    pub key_log: Option<PathBuf>,
}

/// HTTP/3, over UDP on the same addresses and ports. It needs TLS 1.3 allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Http3Settings {
    /// Whether it is served. Default yes.
    pub enabled: bool,
    /// For how long clients of HTTP/1.1 and HTTP/2 may remember that HTTP/3 is to be had (RFC 7838);
    /// `None`: they are not told. Default one day.
    pub alt_svc: Option<Duration>,
    /// Bytes of a UDP payload before the path has shown that it takes more, 1200 to 1452. Default
    /// 1200, the least that every path for QUIC takes (RFC 9000 section 14).
    pub initial_mtu: u16,
    /// How long an address token is good; `None`: as long as a ticket, the default.
    pub token_lifetime: Option<Duration>,
    /// Handshakes in progress with clients that have not shown their addresses; above it, new ones
    /// have to show them first (Retry). Default 1,000: with round trips of 50 ms, 20,000 new
    /// clients a second.
    pub retry_above: usize,
    /// Handshakes in progress of all clients; above it, new ones get no answer. Default 5,000.
    pub refuse_above: usize,
}

/// Early data, the gate and the policy before it.
#[derive(Clone, Debug)]
pub struct EarlyDataSettings {
    /// Whether tickets allow early data and it is accepted. Default yes: the gate makes it safe.
    pub enabled: bool,
    /// What may run early.
    pub policy: Policy,
    /// What becomes of the rest.
    pub when_not_allowed: WhenNotAllowed,
    /// How far a ticket's stated age may be off. Default 10 s, as RFC 8446 section 8.3 suggests.
    pub freshness: Duration,
    /// Flights that the strike register remembers at a time. Default 2^20, about 36 MB in use.
    pub register_capacity: usize,
}

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

/// How a line of the access log looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Fields in a fixed order, the later ones as `name=value`.
    #[default]
    Text,
    /// A JSON object.
    Json,
}

/// The access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessLogSettings {
    /// The file; `None`: standard output.
    pub file: Option<PathBuf>,
    /// Text or JSON.
    pub format: LogFormat,
}

impl ServerConfig {
    /// `content` on `listen`, with a self-signed certificate and all defaults.
    pub fn new(listen: SocketAddr, content: Content) -> Self {
        Self {
            listeners: vec![Listener::new(listen)],
            backlog: 4096,
            certificate: CertificateSource::SelfSigned { names: Vec::new(), save: None },
            content,
            tls: TlsSettings::default(),
            http3: Http3Settings::default(),
            early_data: EarlyDataSettings::default(),
            store: None,
            tickets: TicketSettings::default(),
            keep_alive: true,
            limits: Limits::default(),
            access_log: None,
            admin: None,
            telemetry: None,
            process: ProcessSettings::default(),
        }
    }
}

impl IpNetwork {
    /// Whether an address lies in it. IPv4 addresses in IPv6's clothes count as what they are.
    pub fn contains(&self, address: IpAddr) -> bool {
        let differ = match (self.address, address.to_canonical()) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                u128::from(ours.to_bits() ^ theirs.to_bits()) << 96
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => ours.to_bits() ^ theirs.to_bits(),
            _ => return false,
        };
        differ.leading_zeros() >= self.prefix.into()
    }
}

impl Listener {
    /// HTTP over TLS and QUIC on `address`.
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            protocol: ListenerProtocol::default(),
            http3: true,
            proxy_protocol_from: Vec::new(),
        }
    }
}

impl Default for TlsSettings {
    fn default() -> Self {
        Self {
            min_version: Version::Tls12,
            max_version: Version::Tls13,
            ciphers: CipherPolicy::default(),
            cipher_preference: CipherPreference::default(),
            tickets: 2,
            http2: true,
            key_log: None,
        }
    }
}

impl Default for Http3Settings {
    fn default() -> Self {
        Self {
            enabled: true,
            alt_svc: Some(Duration::from_secs(24 * 3600)),
            initial_mtu: 1200,
            token_lifetime: None,
            retry_above: 1000,
            refuse_above: 5000,
        }
    }
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
