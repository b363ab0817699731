//! Strike register and gate: no early-data flight is executed twice, no honest request is lost.
//!
//! TLS accepts a first flight that is resent byte for byte as often as it comes (RFC 8446
//! section 8, appendix E.5). So each flight has a *claim* that one connection wins. It is settled
//! when TLS would accept the flight's early data, before anything of the handshake is sent: won,
//! and its requests may run early; lost, and they wait for the end of the handshake to be answered
//! 425; else TLS refuses early data, and the flight is executed nowhere. The memory is a strike
//! register: one record for each flight that TLS found good. There are two kinds:
//!
//! - *One process's own*, the [`StrikeRegister`] of a [`Gate`], for a server that shares its ticket
//!   keys with nobody.
//! - *One that nodes share*, in a store, for a cluster with the same ticket keys. The
//!   [`SharedGate`] decides over what the store answers; [`Continuity`] and [`judge`] say whether
//!   its word counts; a [`Breaker`] leaves a dead one alone. The store itself is not here.
//!
//! Everything here is sans-IO: no socket, no clock, no runtime. Each call takes `now`, the time
//! since an arbitrary start on a monotonic clock.
//!
//! # Why it holds in one process
//!
//! 1. A flight's bytes run on the connection that won its claim and on no other, early or after its
//!    handshake. Only one connection wins: the record lives until TLS refuses every further copy
//!    for its ticket age (+-60 s in BoringSSL).
//! 2. What is refused is recorded too, as *barred*: no copy is accepted beside what the client
//!    sends again after its handshake. If there is no room for the record, nothing is accepted
//!    until the flight is stale ([`Refusal::RegisterFull`]).
//! 3. Where records may be missing (after a start with ticket keys that outlive a process, after
//!    the clock was set back) nothing is accepted for a whole recording window
//!    ([`GateConfig::recording_window`]).
//! 4. Nothing of this looks at a request or at the policy, which may therefore change at any time.
//!
//! The request of a lost flight is answered 425 (Too Early): to run it would execute the flight
//! twice, to drop it would lose it (RFC 8470 section 5.2). A copy cannot even be answered that: it
//! never completes its handshake, since only the client that made the flight can compute its
//! Finished.
//!
//! The module `gate_model` checks this over all interleavings.
//!
//! # Why it holds in a cluster
//!
//! The same, but for what a store can say:
//!
//! 1. Won, and the ticket age fresh: the requests may run early. Only one claim of a flight is won,
//!    since the record outlives all the time in which any node finds the flight fresh
//!    ([`SharedConfig::record_life`]).
//! 2. Lost: TLS accepts early data, and the requests are answered 425 once their handshake is
//!    complete. To refuse them would make the client send again what a copy has executed.
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
//! lives. Nothing prevents it where records may be missing, in another zone, and where TLS itself
//! refuses the original: an attacker may let a copy run and hold the original back for more than a
//! minute.
//!
//! And a register is no wider than its records. Servers that share ticket keys but no store, or
//! that move from their own registers to a store while flights are fresh, execute a copy once each.

mod flight;
mod gate;
mod inheritance;
mod question;
mod register;
mod shared;

pub use flight::{ClaimKey, Decision, Flight, HoldReason, Offer, Release};
pub use gate::{Gate, GateConfig, Refusal, Startup};
pub use inheritance::{BadInheritance, Inheritance};
pub use question::{Answer, Question};
pub use register::{Claim, RegisterStatistics, StrikeRegister};
pub use shared::{
    Break, Breaker, Confirmation, Continuity, Epoch, EpochWrite, Heartbeat, Orders, Role,
    SharedConfig, SharedGate, SharedRefusal, Sighting, StoreAnswer, Unknown, judge,
};
