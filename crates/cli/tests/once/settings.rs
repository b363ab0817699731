//! The configuration of a server, and what an operator switches in it.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::client::Transport;

/// A setting whose other value makes TLS refuse flights that were made before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Switch {
    /// `early_data.enabled`.
    EarlyData,
    /// `tls.http2`: another application protocol.
    Http2,
    /// `tls.groups`: HelloRetryRequest.
    Groups,
    /// `limits.header_size` and `limits.streams`: other QUIC parameters.
    QuicLimits,
    /// The first name of the site, to which tickets belong.
    Names,
}

impl Switch {
    /// All of them.
    pub(crate) const ALL: [Self; 5] =
        [Self::EarlyData, Self::Http2, Self::Groups, Self::QuicLimits, Self::Names];

    /// The name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::EarlyData => "early_data",
            Self::Http2 => "http2",
            Self::Groups => "groups",
            Self::QuicLimits => "quic_limits",
            Self::Names => "names",
        }
    }

    /// What it concerns.
    pub(crate) fn transports(self) -> &'static [Transport] {
        match self {
            Self::Http2 => &[Transport::Http2],
            Self::QuicLimits => &[Transport::Http3],
            _ => &[Transport::Http1, Transport::Http3],
        }
    }
}

/// What a server is started with.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// `[early_data] freshness`.
    pub(crate) freshness: Duration,
    /// `[limits] header_timeout`. Copies of a flight over QUIC are one connection as long as that.
    pub(crate) header_timeout: Duration,
    /// `[tickets]`.
    pub(crate) keys: Keys,
    /// `[store]`.
    pub(crate) store: Option<Store>,
}

/// Where ticket keys come from.
#[derive(Clone, Debug)]
pub(crate) enum Keys {
    /// The process alone.
    Process,
    /// A key file.
    File(PathBuf),
    /// The store, encrypted under the keys in this file.
    Store(PathBuf),
}

/// What nodes share.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    /// Where it is.
    pub(crate) url: String,
    /// What keys in it start with.
    pub(crate) prefix: String,
}

impl Settings {
    /// The suite's own: freshness as it is by default.
    pub(crate) fn new(keys: Keys, store: Option<Store>) -> Self {
        Self {
            freshness: Duration::from_secs(10),
            header_timeout: Duration::from_secs(5),
            keys,
            store,
        }
    }

    /// The configuration file, with one setting switched.
    pub(crate) fn file(
        &self,
        shared: &Path,
        upstream: SocketAddr,
        switch: Option<Switch>,
    ) -> String {
        let is = |wanted| switch == Some(wanted);
        let names = match is(Switch::Names) {
            true => r#"["renamed.test", "localhost"]"#,
            false => r#"["localhost", "renamed.test"]"#,
        };
        let groups = if is(Switch::Groups) { "groups = \"P-256\"\n" } else { "" };
        let (header_size, streams) =
            if is(Switch::QuicLimits) { (65536, 50) } else { (32768, 100) };
        let mut text = format!(
            "[process]\nwatch = false\n\
             [tls]\ncertificate = {certificate:?}\nkey = {key:?}\nhttp2 = {http2}\n{groups}\
             [limits]\nheader_timeout = \"{header_timeout}ms\"\nheader_size = {header_size}\n\
             streams = {streams}\ndrain_timeout = \"5s\"\n\
             [http3]\nretry_above = 5000\n\
             [early_data]\nenabled = {early}\nfreshness = \"{freshness}ms\"\n\
             register_capacity = 65536\n\
             [access_log]\nfile = \"log\"\nformat = \"json\"\n\
             [[site]]\nnames = {names}\n[[site.route]]\npath = \"/\"\nupstream = \"app\"\n\
             [upstream.app]\nservers = [\"http://{upstream}\"]\n",
            certificate = shared.join("cert.pem"),
            key = shared.join("key.pem"),
            http2 = !is(Switch::Http2),
            header_timeout = self.header_timeout.as_millis(),
            early = !is(Switch::EarlyData),
            freshness = self.freshness.as_millis(),
        );
        if let Some(store) = &self.store {
            // A machine may be busy; a window after the store's start should not take long.
            let _ = write!(
                text,
                "[store]\nurl = {:?}\nprefix = {:?}\nbudget = \"300ms\"\nclock_margin = \"1s\"\n",
                store.url, store.prefix
            );
        }
        let _ = match &self.keys {
            Keys::Process => Ok(()),
            Keys::File(file) => write!(text, "[tickets]\nkeys = \"file\"\nfile = {file:?}\n"),
            Keys::Store(file) => {
                write!(text, "[tickets]\nkeys = \"store\"\nkey_encryption_file = {file:?}\n")
            }
        };
        text
    }
}
