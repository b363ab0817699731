//! How settings are written, lengths of time and what is read from text; and how a peer's text is
//! shown ([`printable`]).
//!
//! Each of the types stands for a way of writing, by which serde reads and writes a field and
//! schemars describes it. A room's settings so keep the types that they are used by:
//!
//! ```
//! use std::time::Duration;
//!
//! use firstflight_units::{Length, Text};
//!
//! #[derive(serde::Deserialize, serde::Serialize, schemars::JsonSchema)]
//! struct Settings {
//!     /// How long a request may take.
//!     #[serde(with = "Length")]
//!     timeout: Duration,
//!     /// Where to.
//!     #[serde(with = "Text::<std::net::SocketAddr>")]
//!     address: std::net::SocketAddr,
//! }
//! ```

mod length;
mod off;
mod printable;
mod text;

pub use length::{Length, LengthOrOff, OptionalLength, parse_duration, print_duration};
pub use off::OrOff;
pub use printable::{is_unprintable, printable, printable_bytes, printable_json, printable_lines};
pub use text::{OptionalText, Text, TextList};
