//! Drives real browsers: finds installed ones, starts them headless with their own profile, opens
//! pages, and ends them with all their processes.
//!
//! ```text
//! installed     finds browsers on this machine
//! browser       Browser: the calls that all browsers have; its settings
//! chromium      Chromium by the Chrome DevTools Protocol, over pipes
//! firefox       Firefox by WebDriver BiDi, over a WebSocket
//! navigation    the timings of a page that was opened
//! connection    commands, responses and events; transport carries them
//! profile       the directory of a browser, and the certificates that it trusts
//! environment   where a browser runs: this machine or a network namespace
//! ```
//!
//! # Examples
//!
//! ```
//! use firstflight_browser::{BrowserKind, Installed};
//!
//! for kind in BrowserKind::ALL {
//!     match Installed::find(kind) {
//!         Ok(browser) => println!("{} {}", kind.name(), browser.version),
//!         Err(error) => println!("{error}"),
//!     }
//! }
//! ```
//!
//! # Observed behaviour
//!
//! With Firefox ESR 153.7 and Chromium 156 of Debian 12, as root and as root of a user namespace:
//!
//! - **Unwanted traffic.** In a namespace with a default route, neither sends a packet except for the
//!   pages that it opens. For Firefox, the preferences of its driver are not enough: it must not
//!   query HTTPS records, and without `MOZ_REMOTE_SETTINGS_DEVTOOLS` a preference cannot change its
//!   settings server. Names that are not in [`Settings::hosts`] go to a proxy that does not exist
//!   (Firefox) or are not resolved (Chromium).
//! - **Names.** Firefox's preference for addresses (`network.dns.forceResolve`) allows one address for
//!   all names. A service for Firefox's own tests allows one for each name, and needs
//!   `--remote-allow-system-access`.
//! - **Trust.** Certificates go into NSS's database, also for Chromium. A server's self-signed
//!   certificate works like an authority's. Over QUIC, Chromium requires a root that it was shipped
//!   with, except for hosts in `--origin-to-force-quic-on`. The exception is per host, but forced QUIC
//!   is per port: so each host is listed there with port 1, and advertised HTTP/3 works.
//!   `--ignore-certificate-errors-spki-list` does not have this effect.
//! - **HTTP/3 from the first request.** Firefox starts to load its list of HTTP/3 servers at its first
//!   request, and cannot use the list before. So [`Browser::open`] makes Firefox send a request to
//!   loopback.
//! - **Early data.** In Chromium it is a feature over TCP (`EnableTLS13EarlyData`, off by default), and
//!   a field trial parameter over QUIC (`disable_tls_zero_rtt`, not set). With early data disabled,
//!   Chromium still resumes sessions; Firefox resumes over TCP, but not over QUIC.
//! - **X25519MLKEM768.** Both offer it. It can be disabled in Firefox, but not in Chromium.
//! - **Return visits** need the connections of the previous visit to be closed.
//!   [`Browser::close_connections`] closes those over TCP and QUIC and keeps sessions: Chromium by the
//!   button on `chrome://net-internals/#sockets`, Firefox by `net:cancel-all-connections`. A hundred
//!   visits had no hang, and took 0.2 s each on a busy machine with two cores.
//! - **New profiles.** A start takes about 1 s (Chromium) or 3.5 s (Firefox; 2.5 s with an existing
//!   profile). A private window of Chromium and a container of Firefox ([`Window::Private`]) have no
//!   state either, and do not need a new browser process. Memory: about 140 and 310 MB.
//! - **Cache.** It is disabled by the driver (Chromium, which then sends `Cache-Control: no-cache`) and
//!   by preferences (Firefox). If WebDriver BiDi disables it, Firefox treats each visit as a forced
//!   reload, which closes connections.
//! - **Clocks.** Firefox has microseconds without `privacy.reduceTimerPrecision`. Chromium has tenths of
//!   a millisecond, and paints in steps of frames.
//! - **Processes.** The crash handlers of both leave the process group, and end when the browser has
//!   ended. Without them (`--disable-crashpad-for-testing`) Chromium 156 crashes when it is driven by
//!   pipes. If this process is killed, Chromium ends because its pipe closes, and Firefox because of a
//!   shell beside it.

mod browser;
mod chromium;
mod connection;
mod driver;
mod environment;
mod error;
mod firefox;
mod installed;
mod navigation;
mod profile;
mod transport;

use std::time::Duration;

pub use browser::{Browser, WindowId};
pub use driver::{Quic, Settings, Window};
pub use environment::{BrowserProcess, Environment, LocalMachine};
pub use error::BrowserError;
pub use installed::{BrowserKind, Installed};
pub use navigation::{Entry, Frame, Navigation};

/// Limits a start, and each command except a navigation. A start takes one or two seconds on an idle
/// machine.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);
