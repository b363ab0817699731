//! What 0-RTT does, shown at a server that runs: a first visit, a returning one whose request is
//! early data, and the returning one's flight once more as an attacker would send it.
//!
//! The visits go through a [`Relay`] in this process, which is the witness: it sees who waited for
//! whom, and has the flight that is sent again. [`take`] makes the tour, [`Story`] is what was
//! seen.

mod error;
mod relay;
mod story;
mod visit;

pub use error::TourError;
pub use relay::{Passage, Relay};
pub use story::{Copy, Story, Visit};
pub use visit::{Counts, Tour, take};
