//! The calls that all browsers have, and their settings.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::{BrowserError, Frame, Navigation};

/// What [`Browser::open_window`](crate::Browser::open_window) opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// A tab.
    Tab,
    /// A window of the same profile.
    Window,
    /// A window that shares no state with the profile. In Chromium it is a private window. In Firefox it
    /// is a container: WebDriver BiDi opens no private windows.
    Private,
}

/// The network behaviour of a browser. In any case, the browser sends nothing by itself: no updates,
/// reports or captive portal checks, and no DNS queries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Whether to send early data, over TCP (RFC 8446 section 2.3) and QUIC (RFC 9001 section 4.6).
    /// Sessions are resumed in any case.
    pub early_data: bool,
    /// Whether and when to use HTTP/3.
    pub quic: Quic,
    /// Additional trusted certificates: PEM files with one or more certificates each.
    pub trust: Vec<PathBuf>,
    /// Names with their addresses. Other names are not resolved.
    pub hosts: Vec<(String, IpAddr)>,
    /// File for the secrets of its connections (`SSLKEYLOGFILE`).
    pub key_log: Option<PathBuf>,
    /// Whether to offer X25519MLKEM768. With `None` the browser decides; both offer it. Cannot be
    /// disabled in Chromium.
    pub post_quantum: Option<bool>,
    /// Whether to use the HTTP cache. Without it every visit fetches everything.
    pub cache: bool,
    /// Whether the browser may open connections speculatively, as by default. They hide the duration of
    /// handshakes.
    pub speculation: bool,
    /// Additional settings for experiments: command line flags of Chromium, whose features are added to
    /// those of the other settings, or preferences of Firefox as `name=value`, where the value is `true`,
    /// `false`, an integer or else a string.
    pub extra: Vec<String>,
}

/// Whether and when a browser uses HTTP/3.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Quic {
    /// Never.
    #[default]
    Off,
    /// From the first request to these origins (`host:port`), and to others if advertised.
    Known(Vec<String>),
    /// If a server has advertised it (Alt-Svc, RFC 7838).
    Advertised,
}

/// A browser of one kind.
pub(crate) trait Driver: Send {
    fn id(&self) -> u32;
    fn navigate(&mut self, url: &str, timeout: Duration) -> Result<Navigation, BrowserError>;
    fn navigate_with_frames(
        &mut self,
        url: &str,
        timeout: Duration,
    ) -> Result<(Navigation, Vec<Frame>), BrowserError>;
    fn close_connections(&mut self) -> Result<(), BrowserError>;
    fn screenshot(&mut self) -> Result<Vec<u8>, BrowserError>;
    fn evaluate(&mut self, script: &str) -> Result<Value, BrowserError>;
    fn command(&mut self, method: &str, parameters: Value) -> Result<Value, BrowserError>;
    fn open_window(&mut self, window: Window) -> Result<String, BrowserError>;
    fn window(&self) -> String;
    fn show(&mut self, window: &str) -> Result<(), BrowserError>;
    fn close(&mut self) -> io::Result<()>;
}
