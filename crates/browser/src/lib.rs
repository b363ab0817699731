//! Real browsers: found on this machine, started without a window and with a profile of their own,
//! driven, and ended with all their processes.
//!
//! ```
//! use firstflight_browser::{Installed, Make};
//!
//! for make in [Make::Chromium, Make::Firefox] {
//!     match Installed::find(make) {
//!         Ok(browser) => println!("{} {}", make.name(), browser.version),
//!         Err(error) => println!("{error}"),
//!     }
//! }
//! ```
//!
//! Chromium is spoken to by the Chrome DevTools Protocol over pipes, Firefox by WebDriver BiDi over
//! a WebSocket. Nothing here knows where a browser runs: whoever starts it gives a [`Place`], which
//! is this machine or a network namespace.
//!
//! # What was found by trying
//! With Firefox ESR 153.7 and Chromium 156 of Debian 12, as root and as root of a user namespace:
//!
//! - **Quiet.** Seen in a namespace with a default route: neither sends a packet but for the pages
//!   that it is told to open. Firefox needs more for it than its driver's own preferences: no HTTPS
//!   records (it asks name servers for them by itself), and `MOZ_REMOTE_SETTINGS_DEVTOOLS`, without
//!   which a preference cannot move its settings' server. Names that are not in
//!   [`Settings::hosts`] go to a proxy that is not there (Firefox) or nowhere (Chromium).
//! - **Names.** Firefox's preference for addresses (`network.dns.forceResolve`) has one for all
//!   names; its own tests have a service for more, which needs `--remote-allow-system-access`.
//! - **Trust.** Certificates go into NSS's database, also for Chromium. A self-signed certificate
//!   of a server will do as well as an authority's. Over QUIC, Chromium wants a root that it came
//!   with, except for hosts in `--origin-to-force-quic-on`. The exception is for the host, QUIC at
//!   once is for the port: so each host is named there with port 1, and an advertised HTTP/3 works.
//!   `--ignore-certificate-errors-spki-list` does not do this.
//! - **HTTP/3 at once.** Firefox takes no server for known before it has read its own list of them,
//!   which it starts with at its first request. So [`Browser::open`] makes it make one, to its own
//!   loopback.
//! - **Early data.** Chromium has it over TCP by a feature (`EnableTLS13EarlyData`, off), over QUIC
//!   by an experiment's parameter (`disable_tls_zero_rtt`, not set); it resumes without it too.
//!   Firefox without it resumes over TCP, and not at all over QUIC.
//! - **X25519MLKEM768.** Both offer it. Firefox can be told not to, Chromium cannot any more.
//! - **A return visit** needs the connections of the one before to end.
//!   [`Browser::forget_connections`] ends them over TCP and QUIC, sessions stay: Chromium by the
//!   button on `chrome://net-internals/#sockets`, Firefox by `net:cancel-all-connections`. A
//!   hundred visits with it before each: no hang, 0.2 s each on a busy machine of two cores.
//! - **Fresh profile.** Starting takes about 1 s (Chromium) and 3.5 s (Firefox; 2.5 with a profile
//!   that it had before). A private window ([`Window::Private`]) knows nothing either, without a
//!   start. Memory: about 140 and 310 MB.
//! - **Cache.** It is off by the driver (Chromium, which then says `Cache-Control: no-cache`) and
//!   by preferences (Firefox). By WebDriver BiDi, Firefox would take it for a forced reload, which
//!   closes connections.
//! - **Clocks.** Firefox gives microseconds without `privacy.reduceTimerPrecision`; Chromium
//!   gives tenths of a millisecond, and paints in steps of frames.
//! - **Processes.** Crash handlers of both leave the process group, and end when they see that
//!   they are alone. Without them (`--disable-crashpad-for-testing`) Chromium 156 crashes when it is
//!   driven by pipes. If this process is killed, Chromium ends because its pipe does, and Firefox
//!   because of a shell beside it.

mod browser;
mod chromium;
mod dialogue;
mod error;
mod firefox;
mod home;
mod line;
mod make;
mod navigation;
mod pipes;
mod place;
mod settings;
mod socket;
mod trust;

use std::time::Duration;

pub use browser::{Browser, Window, WindowId};
pub use error::BrowserError;
pub use make::{Installed, Make};
pub use navigation::{Entry, Navigation, Picture};
pub use place::{OnThisMachine, Place, Running};
pub use settings::{Quic, Settings};

/// How long a browser has to start, and for anything that is no navigation. It takes a second or
/// two of a machine that is free.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);
