//! The configuration of a server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use firstflight_certificates::acme::AcmeConfig;
use firstflight_store::StoreConfig;
use firstflight_telemetry::otlp::TelemetrySettings;
use firstflight_tickets::Schedule;
use firstflight_tls::{CipherPolicy, CipherPreference, Version};

use crate::{
    AccessLogSettings, AdminSettings, Content, Http3Settings, IpNetwork, Limits, Listener,
    ListenerProtocol, LogSettings, Policy, ProcessSettings, Sites, WhenNotAllowed,
};

/// The configuration of a server. `Default` has no listeners and no content; [`ServerConfig::new`]
/// sets both.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerConfig {
    /// The listeners.
    pub listeners: Vec<Listener>,
    /// The certificate of sites without their own.
    pub certificate: CertificateSource,
    /// How certificates are ordered from an ACME authority; required by sites with `acme = true`.
    pub acme: Option<AcmeConfig>,
    /// What is served.
    pub content: Content,
    /// Versions, ciphers, tickets.
    pub tls: TlsSettings,
    /// HTTP/3.
    pub http3: Http3Settings,
    /// Early data.
    pub early_data: EarlyDataSettings,
    /// The store shared by the nodes of a cluster. `None`: the process has its own strike register.
    pub store: Option<StoreConfig>,
    /// Tickets and their keys.
    pub tickets: TicketSettings,
    /// Limits.
    pub limits: Limits,
    /// Proxies whose `X-Forwarded-For` identifies a request's client.
    pub trusted_proxies: Vec<IpNetwork>,
    /// The access log, if any.
    pub access_log: Option<AccessLogSettings>,
    /// The server's own log.
    pub log: LogSettings,
    /// Traces and OTLP export, if any.
    pub telemetry: Option<TelemetrySettings>,
    /// The admin listener, if any.
    pub admin: Option<AdminSettings>,
    /// The server process.
    pub process: ProcessSettings,
}

impl ServerConfig {
    /// Serves `content` on `listen`, with a development certificate and all defaults.
    pub fn new(listen: SocketAddr, content: Content) -> Self {
        Self { listeners: vec![Listener::new(listen)], content, ..Self::default() }
    }
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listeners: Vec::new(),
            certificate: CertificateSource::Development,
            acme: None,
            content: Content::Sites(Sites::default()),
            tls: TlsSettings::default(),
            http3: Http3Settings::default(),
            early_data: EarlyDataSettings::default(),
            store: None,
            tickets: TicketSettings::default(),
            limits: Limits::default(),
            trusted_proxies: Vec::new(),
            access_log: None,
            log: LogSettings::default(),
            telemetry: None,
            admin: None,
            process: ProcessSettings::default(),
        }
    }
}

impl ServerConfig {
    /// Whether clients may use TLS 1.3, which early data and HTTP/3 need.
    pub fn has_tls13(&self) -> bool {
        self.tls.max_version >= Version::Tls13
    }

    /// Whether HTTP/3 is served on a listener.
    pub fn serves_http3(&self, listener: &Listener) -> bool {
        self.http3.enabled
            && self.has_tls13()
            && listener.http3
            && listener.protocol == ListenerProtocol::Https
    }

    /// The files that a reload reads again: certificates, their keys, OCSP responses, users, ECH
    /// keys, authorities and passwords of upstreams and the store, and the admin token. Ticket key files
    /// are watched separately.
    pub fn files(&self) -> Vec<PathBuf> {
        let mut certificates = vec![&self.certificate];
        let mut files = Vec::new();
        if let Content::Sites(content) = &self.content {
            for site in &content.sites {
                certificates.extend(&site.certificate);
                files.extend(site.ocsp.clone());
                let others = site.other_certificates.iter();
                files.extend(others.flat_map(|(cert, key)| [cert.clone(), key.clone()]));
                files.extend(site.routes.iter().filter_map(|route| route.users.clone()));
            }
        }
        for source in certificates {
            if let CertificateSource::Files { cert, key } = source {
                files.extend([cert.clone(), key.clone()]);
            }
        }
        files.extend(self.tls.ech.iter().cloned());
        if let Content::Sites(content) = &self.content {
            files.extend(content.upstreams.values().filter_map(|pool| pool.ca.clone()));
        }
        if let Some(store) = &self.store {
            let authorities = store.tls.as_ref().and_then(|tls| tls.ca_file.clone());
            let passwords = [&store.password_file, &store.sentinel_password_file];
            files.extend(passwords.into_iter().flatten().cloned().chain(authorities));
        }
        files.extend(self.admin.as_ref().and_then(|admin| admin.token_file.clone()));
        files
    }
}

/// Early data and the policy of the gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EarlyDataSettings {
    /// Whether tickets allow early data and it is accepted.
    pub enabled: bool,
    /// The policy by path.
    pub policy: Policy,
    /// What happens to early requests that may not run early.
    pub when_not_allowed: WhenNotAllowed,
    /// The maximum ticket-age skew.
    pub freshness: Duration,
    /// The capacity of the strike register, in flights.
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

/// Tickets and their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TicketSettings {
    /// Where the keys come from. By default this process generates them.
    pub keys: KeySource,
    /// The zone of this node. Early data runs only in the zone that issued its ticket. `None` is
    /// the zone without a name.
    pub zone: Option<String>,
    /// The name of this node in the cluster; `None`: the host name with a random suffix.
    pub node: Option<String>,
    /// Whether each ticket can be used only once. Sessions are then stored in the store.
    pub single_use: bool,
    /// Whether clients may offer a ticket under all names of the site's certificate.
    pub across_names: bool,
}

/// Where ticket keys come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KeySource {
    /// Generated by this process, for itself only: one for each ticket, destroyed when the ticket is
    /// used. Not with a store.
    #[default]
    Punctured,
    /// Generated by this process, for itself only: one for many tickets.
    Process,
    /// A file that several processes can share.
    File(PathBuf),
    /// The store, where the nodes exchange them.
    Store {
        /// The file with the keys that encrypt the ticket keys in the store.
        key_encryption: PathBuf,
        /// How long keys are in use.
        schedule: Schedule,
    },
}

/// TLS versions, ciphers and tickets.
#[derive(Clone, Debug, PartialEq)]
pub struct TlsSettings {
    /// Oldest version.
    pub min_version: Version,
    /// Newest version.
    pub max_version: Version,
    /// Ciphers and groups. By default the library's.
    pub ciphers: CipherPolicy,
    /// Whose order of ciphers is used.
    pub cipher_preference: CipherPreference,
    /// The number of tickets issued by a full TLS 1.3 handshake. A resumed one issues one.
    pub tickets: usize,
    /// Whether HTTP/2 is offered.
    pub http2: bool,
    /// Whether certificates are compressed for clients that offer it (RFC 8879).
    pub compress_certificates: bool,
    /// Files with keys that decrypt ClientHellos (RFC 9849). Clients with an outdated configuration get
    /// that of the first.
    pub ech: Vec<PathBuf>,
    /// The file to which TLS secrets are written (`SSLKEYLOGFILE`), if any.
    pub key_log: Option<PathBuf>,
}

/// Where a certificate and its key come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateSource {
    /// Two PEM files; the chain has its leaf first.
    Files {
        /// The chain.
        cert: PathBuf,
        /// The key.
        key: PathBuf,
    },
    /// Issued by the development authority of the server's user, for localhost, the listeners'
    /// addresses and the sites' names; self-signed for names that the authority may not sign.
    Development,
    /// Generated at startup: ECDSA P-256, for localhost, the listeners' addresses and `names`. Only
    /// clients that are given it trust it.
    SelfSigned {
        /// Additional host names and addresses.
        names: Vec<String>,
        /// The file to which the certificate (not the key) is written, for clients to trust.
        save: Option<PathBuf>,
    },
    /// Ordered for the site's names from the ACME authority in [`crate::ServerConfig::acme`].
    Acme,
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
            compress_certificates: false,
            ech: Vec::new(),
            key_log: None,
        }
    }
}
