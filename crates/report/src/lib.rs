//! What a run found: the record that is kept, and the tables that people read.
//!
//! The record holds every raw sample; everything printed is made from it and can be made again.

mod record;
mod tables;

pub use record::{
    Cell, Fault, LabRecord, LinkFacts, MachineFacts, Replay, SCHEMA, Sample, Summary, read, write,
};
pub use tables::{matrix, replays, verdict};
