//! Decisions about flights when nodes share the strike register in a store.
//!
//! A node that cannot reach the store does not know what other nodes have executed. So a flight's
//! claim is settled *before* TLS accepts early data (RFC 8446 section 8.2). If it is won, the
//! requests may run early. If it is lost, they get 425 after the handshake. If it is unknown, TLS
//! refuses early data, nothing of the flight runs early, and the client sends its requests again by
//! itself.
//!
//! A node can use its own [`crate::StrikeRegister`] as a filter in front of the store. The filter may
//! hold only flights whose claim *is settled*, won or lost: every further claim of such a flight is
//! lost, so the store need not be queried. This needs no trust in the store, since a lost claim
//! executes nothing. A filter that is full or new only causes more queries. A flight whose claim is
//! pending or unknown must not be in it: an honest original would get 425 after a copy that nobody
//! has executed.

mod breaker;
mod config;
mod continuity;
mod epoch;
mod gate;
mod observation;

pub use breaker::Breaker;
pub use config::SharedConfig;
pub use continuity::{Continuity, Mark};
pub use epoch::{Epoch, Slots};
pub use gate::{SharedGate, SharedRefusal};
pub use observation::{
    Confirmation, DropReason, EpochWrite, Heartbeat, HeartbeatActions, Role, StoreObservation,
    StoreReply, Unknown, check_observation, check_record_end,
};
