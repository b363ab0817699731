//! The gate when the strike register is shared: one store, many nodes.
//!
//! A node cannot know what others did while it could not ask, so what it could not ask about must
//! never come as far as execution. Therefore a flight's claim is settled *before* TLS says that it
//! accepts early data: won, and its requests may run early; lost, and they are held to be answered
//! 425; unknown, and early data is refused by TLS, so that the flight is executed nowhere and the
//! client sends its request again by itself (RFC 8446 section 8.2).

mod config;
mod gate;
mod sighting;

pub use config::SharedConfig;
pub use gate::{Acceptance, SharedGate, SharedRefusal};
pub use sighting::{Epoch, Sighting, StoreAnswer, Unknown, judge};
