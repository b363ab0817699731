//! What a browser is told when it starts.

use std::net::IpAddr;
use std::path::PathBuf;

/// How a browser behaves in the network. It does nothing by itself in any case: no updates, no
/// reports, no look for a captive portal, no DNS but [`Settings::hosts`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Whether it sends early data, over TCP (RFC 8446 section 2.3) and over QUIC (RFC 9001 section
    /// 4.6). It resumes sessions in any case.
    pub early_data: bool,
    /// Whether and when it speaks HTTP/3.
    pub quic: Quic,
    /// Whom it trusts beside the authorities that it knows: PEM files with one or more
    /// certificates each.
    pub trust: Vec<PathBuf>,
    /// Names and where they lead. Nothing else leads anywhere.
    pub hosts: Vec<(String, IpAddr)>,
    /// Where it writes the secrets of its connections (`SSLKEYLOGFILE`).
    pub secrets: Option<PathBuf>,
    /// Whether it offers X25519MLKEM768; `None` leaves that to the browser, and both do. Chromium
    /// cannot be told not to.
    pub post_quantum: Option<bool>,
    /// Whether its HTTP cache is used. Without it every visit fetches everything.
    pub cache: bool,
    /// Whether it may open connections before they are needed, as browsers do by themselves. They
    /// hide how long a handshake takes.
    pub speculation: bool,
    /// More of its settings, for experiments: flags of Chromium's command line, or preferences of
    /// Firefox as `name=value`, where the value is `true`, `false`, a whole number or else a text.
    pub more: Vec<String>,
}

/// Whether and when a browser speaks HTTP/3.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Quic {
    /// Never.
    #[default]
    Off,
    /// At once to these origins, `host:port` each, and nowhere else unless advertised.
    Known(Vec<String>),
    /// When a server has advertised it (Alt-Svc, RFC 7838).
    Advertised,
}
