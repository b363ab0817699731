//! A puncturable pseudorandom function: one secret value for each index, until it is punctured.
//!
//! ```text
//! PuncturableFunction    epochs of issued indices; memory limit, counts, snapshot
//!   └ Segment               a binary tree of 32,768 indices
//!       ├ Cover                the remaining seeds of the tree, in order
//!       └ Seed                 one node's secret; the pseudorandom generator
//! ```
//!
//! A ticket that is sealed under the value at its own index can be opened until that index is
//! punctured. From then on nobody can compute the value: neither the server nor a thief of its whole
//! memory. That gives 0-RTT forward secrecy and replay protection without a session cache (Aviram,
//! Gellert, Jager: *Session Resumption Protocols and Efficient Forward Security for TLS 1.3 0-RTT*,
//! Journal of Cryptology 34, 2021, eprint 2019/228).
//!
//! No sockets, no clock and no threads: time is an argument, in seconds of any clock. A clock that is
//! never set makes epochs expire on time. Random bytes come from the system.
//!
//! # Examples
//!
//! ```
//! use firstflight_puncture::{Limits, PuncturableFunction};
//!
//! let mut function = PuncturableFunction::new(Limits::default());
//! let now = 5_000;
//! let (index, value) = function.issue(now);
//! assert_eq!(function.evaluate(&index).as_deref(), Some(&*value));
//!
//! // The first use wins; the value is gone.
//! assert!(function.puncture(&index));
//! assert!(!function.puncture(&index));
//! assert_eq!(function.evaluate(&index), None);
//!
//! // Unused indices expire.
//! let (unused, _) = function.issue(now);
//! function.expire_before(now + 1);
//! assert_eq!(function.evaluate(&unused), None);
//! ```
//!
//! # The construction
//!
//! The tree is that of Goldreich, Goldwasser and Micali (*How to Construct Random Functions*, Journal
//! of the ACM 33, 1986). Each node has a seed of 128 bits, and a generator computes the seeds of both
//! children from it. Initially only the root's seed is stored. Puncturing an index replaces the one
//! stored seed above its leaf by the seeds of the siblings along the way down: exactly the seeds from
//! which every other leaf, and not this one, can be computed. Puncturing neighbours leaves whole
//! subtrees without any seed, so used ranges cost nothing. The segment that issues also keeps the nodes
//! to the right of the index issued last, so that the next one takes two steps on average; nothing
//! below them was issued yet, so nothing below them is ever punctured while they are kept.
//!
//! Roots are independent random seeds, one for each segment of 32,768 indices, created when the first
//! of them is issued. So a path has 15 steps at most, and a segment whose indices are all used or
//! expired leaves nothing behind. An *epoch* is the indices that were issued within an hour; it
//! expires as a whole.
//!
//! The generator is AES-128 with the seed as its key, on blocks that contain the node's position
//! (epoch, segment, node) and which output is wanted. AES was chosen because processors have
//! instructions for it: a step costs some 50 ns there, and evaluating and puncturing an index 0.6 to
//! 2 µs with a million outstanding, and 3 µs with ten million. A position is never used with two
//! different seeds, and no two nodes share a block. So each guess of a key can be tested against one
//! node only, and having millions of nodes does not make an exhaustive search easier. An index's value
//! is two further outputs of its leaf, 256 bits.
//!
//! # What a thief of the state can compute
//!
//! Claim: the values of punctured and expired indices are indistinguishable from random bytes to
//! anyone who has the complete state after the puncture and all other values, if AES-128 is a
//! pseudorandom permutation.
//!
//! Sketch of the proof, after Goldreich, Goldwasser and Micali, for one punctured leaf; by a hybrid
//! argument over all punctured leaves it extends to them:
//!
//! 1. The path from the root to the leaf has the seeds s(0), ..., s(d). The state holds the siblings
//!    along the path, and none of the path's seeds: [`PuncturableFunction::puncture`] overwrites the
//!    one that was stored, and those in between exist only during the call and are overwritten at its
//!    end. A state that was punctured before at other leaves holds a part of these siblings, or
//!    descendants of them, all of which can be computed from them.
//! 2. s(0) is random and occurs nowhere else. So AES under s(0) can be replaced by a random
//!    permutation; s(1) and its sibling are then its outputs at two different blocks, which differ
//!    from two independent random strings by at most 2^-128. The state has the sibling only, which is
//!    independent of s(1).
//! 3. So s(1) is random and occurs nowhere else. Repeat for s(2), ..., s(d), and for the two outputs
//!    that are the value.
//!
//! An attacker's advantage is at most (d + 1) times that against AES, plus (d + 1) 2^-127, with d at
//! most 15. Expired indices lie under roots that were overwritten, so the same holds from step 2 on.
//!
//! # Memory
//!
//! An index that is issued and unused costs at most 40 bytes in any order of uses, 16 where half of
//! the indices have been used in random order, and almost nothing while its neighbours are unused too;
//! each started segment may add 512 bytes. `examples/memory.rs` measures it. [`Limits::max_bytes`]
//! bounds the total: beyond it the oldest segments are dropped, as if they had expired.
//!
//! Seeds are overwritten only in this process's memory. The system must not have written them to a swap
//! partition or a core dump before.

mod cover;
mod epoch;
mod function;
mod node;
mod seed;
mod segment;
mod snapshot;
mod stack;

pub use epoch::EpochId;
pub use function::{Counts, Limits, PuncturableFunction, TicketIndex, Value};
pub use snapshot::InvalidSnapshot;
pub use stack::wipe_stack;
