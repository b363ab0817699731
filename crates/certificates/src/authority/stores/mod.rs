//! Where systems and browsers look for authorities, and what puts ours there or takes it out.
//!
//! [`places`] finds them, [`trust`] and [`untrust`] plan [`Step`]s, which [`Step::take`] takes.
//! Whoever only wants to know what would be done prints the steps: they read as commands of a
//! shell.

mod place;
mod plan;
mod step;

pub use place::{Kind, Place, SearchPaths, places};
pub use plan::{Plan, believes, trust, untrust};
pub use step::{Step, StepError};

/// What the common names of all our authorities start with.
pub(crate) const PREFIX: &str = "firstflight development authority ";
