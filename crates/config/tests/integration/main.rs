//! The configuration file: errors, reference, and writing.

mod errors;
mod reference;
mod round_trip;
