//! Strike register and gate: no early-data flight is executed twice, no honest request is lost.
//!
//! TLS accepts a first flight that is resent byte for byte as often as it comes (RFC 8446
//! section 8, appendix E.5). The [`Gate`] decides for every early request whether it may run at
//! once, whether it waits for the end of its handshake, and what becomes of it then. The
//! [`StrikeRegister`] is its memory: one record per flight that was executed.
//!
//! Everything here is sans-IO: no socket, no clock, no runtime. Each call takes `now`, the time
//! since an arbitrary start on a monotonic clock.
//!
//! # Why it holds
//!
//! A copy of a flight never completes its handshake, since only the client that made the flight
//! can compute its Finished. So a flight's bytes run either *early*, on whichever connection won
//! the claim, or *after the handshake*, on the honest connection. Three rules keep the two apart:
//!
//! 1. Early execution needs a claim, and a claim leaves a record. The record lives until TLS
//!    refuses every further copy for its ticket age (+-60 s in BoringSSL) and until the slowest
//!    handshake that TLS let in before that has ended. Hence an honest flight that an attacker
//!    delayed by a minute still finds the record of the copy that overtook it.
//! 2. Execution after the handshake looks for that record first, and leaves one itself while a
//!    copy could still run early. If there is no room for it, nobody runs early until the copies
//!    are stale ([`Refusal::RegisterFull`]).
//! 3. Where records may be missing (after a start with ticket keys that outlive a process, after
//!    the loss of a store, after the wall clock was set back) nothing runs early for a whole
//!    recording window ([`GateConfig::recording_window`]).
//!
//! A held request whose flight another connection has claimed is answered 425 (Too Early): to
//! run it would execute the flight twice, to drop it would lose it (RFC 8470 section 5.2).
//!
//! # What it does not promise
//!
//! A client that resends a request by itself, after a 425 or a lost connection, sends a new
//! request; RFC 8446 section 8 leaves that to the choice of safe methods. And the register is one
//! process's own: a copy sent to another node that has the same ticket keys runs there once too.

mod flight;
mod gate;
mod register;
mod shared;

pub use flight::{ClaimKey, Flight};
pub use gate::{Admission, Decision, Gate, GateConfig, HoldReason, Refusal, Release, Startup};
pub use register::{Claim, RegisterStatistics, StrikeRegister};
pub use shared::{
    Acceptance, Break, Breaker, Confirmation, Continuity, Epoch, EpochWrite, Heartbeat, Orders,
    Role, SharedConfig, SharedGate, SharedRefusal, Sighting, StoreAnswer, Unknown, judge,
};
