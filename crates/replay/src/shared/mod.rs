//! The gate when the strike register is shared: one store, many nodes.
//!
//! A node cannot know what others did while it could not ask, so what it could not ask about must
//! never come as far as execution. Therefore a flight's claim is settled *before* TLS says that it
//! accepts early data: won, and its requests may run early; lost, and they are held to be answered
//! 425; unknown, and early data is refused by TLS, so that nothing of the flight runs early and the
//! client sends its request again by itself (RFC 8446 section 8.2).
//!
//! A node's own [`crate::StrikeRegister`] may stand in front as a filter. It is exact if it holds
//! flights whose claim *came out*, won or lost, and no others: the claim of such a flight is taken
//! for good, so whoever comes with it again has lost, and the store need not be asked. It needs no
//! trust in the store, since losing executes nothing; and a filter that is full or was lost with
//! its process only asks more often. A flight whose claim is under way or unknown must not be in
//! it: an honest original after a copy that nobody executed would get 425.

mod breaker;
mod config;
mod continuity;
mod epoch;
mod gate;
mod heartbeat;
mod sighting;

pub use breaker::Breaker;
pub use config::SharedConfig;
pub use continuity::{Continuity, Mark};
pub use epoch::{Epoch, Slots};
pub use gate::{SharedGate, SharedRefusal};
pub use heartbeat::{Break, Confirmation, EpochWrite, Heartbeat, HeartbeatActions, Role};
pub use sighting::{StoreObservation, StoreReply, Unknown, judge};
