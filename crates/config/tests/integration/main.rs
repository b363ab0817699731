//! The configuration file: errors, reference, and what is written read again.

mod errors;
mod reference;
mod round_trip;
