//! Formats of settings (durations, addresses, other text), and escaping of untrusted text.
//!
//! ```text
//! duration       durations such as `10s`
//! text           values with `Display` and `FromStr`; tables that `false` switches off
//! printable      untrusted text, escaped for terminals and logs
//! ```
//!
//! The types of `duration` and `text` are serde adapters: a settings struct has the types that its
//! users need (`Duration`, `SocketAddr`), and the adapter defines how a field is read, written and
//! described in the JSON schema.
//!
//! # Examples
//!
//! ```
//! use std::time::Duration;
//!
//! use firstflight_units::{DurationText, Text, printable};
//!
//! #[derive(serde::Deserialize, serde::Serialize, schemars::JsonSchema)]
//! struct Settings {
//!     /// How long a request may take.
//!     #[serde(with = "DurationText")]
//!     timeout: Duration,
//!     /// Where to listen.
//!     #[serde(with = "Text::<std::net::SocketAddr>")]
//!     address: std::net::SocketAddr,
//! }
//!
//! let text = r#"{"timeout": "1m 30s", "address": "[::1]:443"}"#;
//! let settings: Settings = serde_json::from_str(text).unwrap();
//! assert_eq!(settings.timeout, Duration::from_secs(90));
//!
//! assert_eq!(printable("a\u{1b}[2J"), r"a\u{1b}[2J");
//! ```

mod duration;
mod printable;
mod text;

pub use duration::{
    DurationOrOff, DurationText, OptionalDurationText, parse_duration, print_duration,
};
pub use printable::{is_unprintable, printable, printable_bytes, printable_json, printable_lines};
pub use text::{OptionalText, OrOff, Text, TextList};
