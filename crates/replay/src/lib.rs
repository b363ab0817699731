//! At-most-once execution of TLS early data: a gate that decides about each first flight, and the
//! strike register that remembers them.
//!
//! ```text
//! Gate          settles the claim of each first flight, in one process
//!   ├ StrikeRegister    one record per flight, until no copy can be accepted
//!   └ TicketEpochs      which tickets may bring early data
//! Flight        a flight with its claim settled: decides about each of its requests
//! SharedGate    the same decisions, when nodes share a register in a store
//!   ├ Continuity, check_observation   whether the store's replies count
//!   └ Breaker           stops using a store that does not reply
//! RegisterSnapshot, HandoffQuery      what a process hands to its successor
//! ```
//!
//! Everything here is sans-IO: no socket, no clock, no runtime. Each call takes `now`, the time
//! since an arbitrary start on a monotonic clock.
//!
//! # Examples
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use firstflight_replay::{
//!     ClaimKey, EpochScope, FlightOffer, Gate, GateConfig, Refusal, TicketEpochs,
//! };
//!
//! let epochs = Arc::new(TicketEpochs::new(EpochScope::Process));
//! let gate = Gate::new(GateConfig::default(), epochs.clone());
//! let now = Duration::from_secs(100);
//! let offer = |digest, skew| {
//!     FlightOffer::new(ClaimKey::of_flight(digest), skew, now, epochs.current())
//! };
//!
//! // The first connection wins the flight's claim. A copy loses it, and is never executed.
//! assert!(gate.claim(&offer(&[1; 32], 0), now).unwrap().won());
//! assert!(!gate.claim(&offer(&[1; 32], 0), now).unwrap().won());
//! // If the ticket age is off by more than 10 s, TLS has to refuse early data.
//! assert_eq!(gate.claim(&offer(&[2; 32], 30), now), Err(Refusal::TicketAge));
//! ```
//!
//! # How it works
//!
//! TLS accepts a replayed first flight as often as it arrives (RFC 8446 section 8, appendix E.5).
//! So each flight has a *claim*, which one connection wins. The claim is settled when TLS would
//! accept the flight's early data, before anything of the handshake is sent:
//!
//! - Won: the flight's requests may run early.
//! - Lost: another connection has won. The requests wait for the end of the handshake, and get 425
//!   (Too Early).
//! - Neither: TLS refuses early data. The client sends its requests again after the handshake.
//!   Before the first of them runs, the flight is *spent*: recorded, so that no copy is accepted
//!   later.
//!
//! The memory is a strike register with one record per flight. A server that shares its ticket keys
//! with nobody uses the [`StrikeRegister`] of a [`Gate`]. The nodes of a cluster share a register in
//! a store, and decide with a [`SharedGate`]. The store itself is in another crate.
//!
//! # Why a flight runs at most once in one process
//!
//! 1. A flight's requests run on the connection that won its claim, and on no other. Only one
//!    connection wins: the record lives until TLS refuses every further copy because of its ticket
//!    age (60 s in BoringSSL).
//! 2. A client whose early data is refused sends its requests again on the same connection. Before
//!    the first of them runs, the flight is recorded as *barred*, so that no copy is accepted later,
//!    whatever the reason for the refusal was and however the configuration changes. The record
//!    lives until no copy can be fresh, however wrong the stated ticket age is, or until its ticket's
//!    epoch has ended and the register needs room. If a copy was accepted before, the requests get
//!    425 instead ([`Gate::spend`]).
//! 3. If records may be missing (a new register, a clock that was set, no room), a new ticket epoch
//!    starts, and tickets issued before bring no early data ([`TicketEpochs`]).
//! 4. None of this depends on requests, on the policy for early requests, or on whether TLS accepts
//!    early data. All of these may change at any time.
//!
//! A request of a lost flight gets 425 (RFC 8470 section 5.2), because running it would execute the
//! flight twice, and dropping it would lose it. An attacker's copy never gets a response: only the
//! client that made the flight can complete its handshake.
//!
//! The model in `gate_model.rs` checks this over all interleavings.
//!
//! # Why a flight runs at most once in a cluster
//!
//! The same holds, with the store's reply in place of the local register:
//!
//! 1. Won, and the ticket age is fresh: the requests may run early. Only one claim of a flight is
//!    won, because its record outlives the time in which any node finds the flight fresh
//!    ([`SharedConfig::record_lifetime`]).
//! 2. Lost: TLS accepts early data, and the requests get 425 after the handshake. If TLS refused
//!    early data, the client would send again what a copy has executed.
//! 3. Anything else: TLS refuses early data. The client sends its requests again by itself, one
//!    round trip later.
//! 4. A store's reply counts only if the store has recorded without a gap for a recording window
//!    ([`SharedConfig::recording_window`]), and its clock agrees with the node's.
//!
//! The model in `tests/integration/model` checks this over all interleavings.
//!
//! # Limits
//!
//! - A client that repeats a request after a 425 or a lost connection sends a new request. RFC 8446
//!   section 8 leaves that to the choice of safe methods.
//! - An attacker may let a copy run and hold the original back. While the copy's record lives (66 s
//!   in one process), the original gets 425. After that, the original's early data is refused
//!   because of its age, and its client sends the requests again. They cannot be distinguished
//!   from requests that never ran. Responding 425 to every late flight would lock out clients with
//!   slow clocks for good.
//! - A register covers only the flights recorded in it. A flight that is refused in one zone is
//!   recorded in that zone. A copy that is sent to the zone that issued the ticket runs there. The
//!   same holds for processes that share ticket keys but no store.

mod epochs;
mod flight;
mod gate;
mod handoff;
mod register;
mod shared;
mod snapshot;

pub use epochs::{EpochScope, TicketEpochs};
pub use flight::{
    ClaimKey, Decision, Flight, FlightOffer, HoldReason, MAX_TICKET_LIFETIME, Release,
};
pub use gate::{Gate, GateConfig, MAX_CLOCK_STEP, Refusal, SpendOutcome};
pub use handoff::{HandoffQuery, HandoffReply};
pub use register::{ClaimOutcome, RegisterStatistics, StrikeRegister};
pub use shared::{
    Breaker, Confirmation, Continuity, DropReason, Epoch, EpochWrite, Heartbeat, HeartbeatActions,
    Mark, Role, SharedConfig, SharedGate, SharedRefusal, Slots, StoreObservation, StoreReply,
    Unknown, check_observation, check_record_end,
};
pub use snapshot::{HandoffTime, InvalidRegister, RegisterSnapshot};
