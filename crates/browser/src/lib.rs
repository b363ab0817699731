//! Real browsers: found on this machine, started without a window and with a profile of their own,
//! driven, and ended with all their processes.
//!
//! Chromium is spoken to by the Chrome DevTools Protocol over pipes, Firefox by WebDriver BiDi over
//! a WebSocket. Nothing here knows where a browser runs: whoever starts it gives a [`Place`].

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
pub const PATIENCE: Duration = Duration::from_secs(60);
