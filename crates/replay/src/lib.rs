//! Strike register and gate: no early-data flight is executed twice, no honest request is lost.
//!
//! TLS accepts a first flight that is resent byte for byte as often as it comes (RFC 8446
//! section 8, appendix E.5). The [`Gate`] decides for every early request whether it may run at
//! once, whether it waits for the end of its handshake, and what becomes of it then. Its memory is
//! a strike register: one record per flight that was executed. There are two kinds:
//!
//! - *One process's own*, the [`StrikeRegister`], for a server that shares its ticket keys with
//!   nobody.
//! - *One that nodes share*, in a store, for a cluster with the same ticket keys. The
//!   [`SharedGate`] decides over what the store answers; [`Continuity`] and [`judge`] say whether
//!   its word counts; a [`Breaker`] leaves a dead one alone. The store itself is not here.
//!
//! Everything here is sans-IO: no socket, no clock, no runtime. Each call takes `now`, the time
//! since an arbitrary start on a monotonic clock.
//!
//! # Why it holds in one process
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
//!    the wall clock was set back) nothing runs early for a whole recording window
//!    ([`GateConfig::recording_window`]).
//!
//! A held request whose flight another connection has claimed is answered 425 (Too Early): to
//! run it would execute the flight twice, to drop it would lose it (RFC 8470 section 5.2).
//!
//! # Why it holds in a cluster
//!
//! No node can look for a record after the handshake if the store is gone by then. So a flight's
//! claim is settled *before* TLS answers its ClientHello, and there is no execution after the
//! handshake for which a record would be needed:
//!
//! 1. Won, and the ticket age fresh: the requests may run early. Only one claim of a flight is won,
//!    since the record outlives all the time in which any node finds the flight fresh
//!    ([`SharedConfig::record_life`]).
//! 2. Lost: TLS accepts early data, and requests that the policy would let run early are answered
//!    425 once their handshake is complete. To refuse them would make the client send again what a
//!    copy has executed.
//! 3. Anything else: TLS refuses early data, and the flight is executed nowhere. The client sends
//!    its request again by itself, one round trip later.
//! 4. What a store says counts only if it has recorded without a gap for a recording window
//!    ([`SharedConfig::recording_window`]), and if its clock agrees with the node's.
//!
//! `tests/model` checks this over all interleavings.
//!
//! # What it does not promise
//!
//! A client that resends a request by itself, after a 425 or a lost connection, sends a new
//! request; RFC 8446 section 8 leaves that to the choice of safe methods. The same section's second
//! attack is of this kind: a copy runs at one node, while the client is refused at another and
//! sends its request again. The record of a won or lost claim prevents that for as long as it
//! lives, and nothing prevents it while the store is not known to have recorded, or in another zone.
//!
//! And a register is no wider than its records. Servers that share ticket keys but no store, or
//! that move from their own registers to a store while flights are fresh, execute a copy once each.

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
