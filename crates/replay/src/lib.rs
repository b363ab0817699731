//! Strike register and gate: no early-data flight is executed twice, no honest request is lost.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use firstflight_replay::{ClaimKey, EpochScope, Gate, GateConfig, Offer, Refusal, TicketEpochs};
//!
//! let epochs = Arc::new(TicketEpochs::new(EpochScope::Process));
//! let gate = Gate::new(GateConfig::default(), epochs.clone());
//! let now = Duration::from_secs(100);
//! let offer = |digest, skew| Offer::new(ClaimKey::of_flight(digest), skew, now, epochs.current());
//!
//! // One connection wins the claim of a flight. A copy of it loses, and is never executed.
//! assert!(gate.claim(&offer(&[1; 32], 0), now).unwrap().won());
//! assert!(!gate.claim(&offer(&[1; 32], 0), now).unwrap().won());
//! // A ticket age that is off by more than 10 s: TLS refuses early data.
//! assert_eq!(gate.claim(&offer(&[2; 32], 30), now), Err(Refusal::TicketAge));
//! ```
//!
//! TLS accepts a first flight that is resent byte for byte as often as it comes (RFC 8446
//! section 8, appendix E.5). So each flight has a *claim* that one connection wins. It is settled
//! when TLS would accept the flight's early data, before anything of the handshake is sent: won,
//! and its requests may run early; lost, and they wait for the end of the handshake to be answered
//! 425; else TLS refuses early data, the client resends its requests after the handshake, and the
//! flight is spent before the first of them runs. The memory is a strike register: one record for
//! each flight. There are two kinds:
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
//! 2. A client whose early data is refused resends its requests on the same connection. Before the
//!    first of them runs, the flight is recorded as *barred*, so that no copy is accepted later,
//!    whatever the refusal was for and whatever is configured by then. The record lives until no
//!    copy is fresh, however wrong the stated ticket age was. If a copy was accepted before, the
//!    requests get 425 instead ([`Gate::spend`]).
//! 3. Where records may be missing (a new register, a clock that was set, no room) a new ticket
//!    epoch starts: tickets issued before bring no early data any more ([`TicketEpochs`]).
//! 4. Nothing of this looks at a request, at the policy, or at what TLS was told to accept, which
//!    may therefore change at any time.
//!
//! The request of a lost flight gets 425 (Too Early): to run it would execute the flight
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
//! 2. Lost: TLS accepts early data, and the requests get 425 once their handshake is
//!    complete. To refuse them would make the client send again what a copy has executed.
//! 3. Anything else: TLS refuses early data. The client sends
//!    its request again by itself, one round trip later.
//! 4. What a store says counts only if it has recorded without a gap for a recording window
//!    ([`SharedConfig::recording_window`]), and if its clock agrees with the node's.
//!
//! `tests/model` checks this over all interleavings.
//!
//! # What it does not promise
//!
//! A client that resends a request by itself, after a 425 or a lost connection, sends a new
//! request; RFC 8446 section 8 leaves that to the choice of safe methods.
//!
//! An attacker may let a copy run first and hold the original back. As long as the copy's record
//! lives (66 s in one process) the original gets 425. After that its early data is
//! refused for its age, its client resends, and nothing tells that request from one that was never
//! run. To answer 425 to all who come so late would bar every client with a slow clock for good.
//!
//! And a register is no wider than its records: a flight that is refused in one zone, or by one of
//! several processes that share ticket keys but no store, is recorded there. A copy that is sent to
//! the zone or the process that issued the ticket runs there.

mod epochs;
mod flight;
mod gate;
mod inheritance;
mod question;
mod register;
mod shared;

pub use epochs::{EpochScope, TicketEpochs};
pub use flight::{ClaimKey, Decision, Flight, HoldReason, Offer, Release};
pub use gate::{Gate, GateConfig, Refusal, Spent};
pub use inheritance::{BadInheritance, Inheritance};
pub use question::{Answer, HandoffQuery};
pub use register::{Claim, RegisterStatistics, StrikeRegister};
pub use shared::{
    Break, Breaker, Confirmation, Continuity, Epoch, EpochWrite, Heartbeat, HeartbeatActions, Mark,
    Role, SharedConfig, SharedGate, SharedRefusal, Slots, StoreObservation, StoreReply, Unknown,
    judge,
};
