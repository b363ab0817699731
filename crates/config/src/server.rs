//! What a server is to do, all of it.

use std::net::SocketAddr;

use firstflight_certificates::acme::AcmeConfig;
use firstflight_store::StoreConfig;
use firstflight_telemetry::otlp::TelemetrySettings;

use crate::{
    AccessLogSettings, AdminSettings, CertificateSource, Content, EarlyDataSettings, Http3Settings,
    Limits, Listener, LogSettings, ProcessSettings, Sites, TicketSettings, TlsSettings,
};

/// A server's configuration. `Default` listens nowhere and serves nothing, with all defaults;
/// [`ServerConfig::new`] says where and what.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerConfig {
    /// Where it listens.
    pub listeners: Vec<Listener>,
    /// Where certificate and key come from, for every site that has none of its own.
    pub certificate: CertificateSource,
    /// How certificates are had from an authority; `None`: no site has one of it.
    pub acme: Option<AcmeConfig>,
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
    /// Limits.
    pub limits: Limits,
    /// Where a line per request goes; `None`: nowhere.
    pub access_log: Option<AccessLogSettings>,
    /// What the server says about itself.
    pub log: LogSettings,
    /// Traces and OTLP; `None`: no request has a trace.
    pub telemetry: Option<TelemetrySettings>,
    /// Where operators look; `None`: nowhere.
    pub admin: Option<AdminSettings>,
    /// The process as such.
    pub process: ProcessSettings,
}

impl ServerConfig {
    /// `content` on `listen`, with a development certificate and all defaults.
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
            access_log: None,
            log: LogSettings::default(),
            telemetry: None,
            admin: None,
            process: ProcessSettings::default(),
        }
    }
}
