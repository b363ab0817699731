//! What a run found: the record that is kept, and the tables that people read.
//!
//! The record holds every raw sample; everything printed is made from it and can be made again.

mod record;
mod tables;

pub use record::{
    Calibration, Capture, Cell, Control, ControlPair, Cost, Effect, Experiment, Fault, Figures,
    Interval, LinkFacts, Load, LoadLatency, MachineFacts, MiddleboxOutcome, ProfileFacts, Record,
    RecordError, Replay, Residual, SCHEMA, Sample, ServerFacts, Summary, Waterfall,
    WaterfallPacket, Witness, read, write,
};
pub use tables::{matrix, replays, verdict};
