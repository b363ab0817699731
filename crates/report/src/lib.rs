//! What a run found: the record that is kept, and the tables that people read.
//!
//! The record holds every raw sample; everything printed is made from it and can be made again.

pub mod axes;
pub mod conditions;
mod figure;
mod record;
mod schema;
mod tables;
mod verdict;

pub use record::{
    Calibration, Capture, Cell, Control, ControlPair, Cost, Effect, Experiment, Fault, Figures,
    Interval, LinkFacts, Load, LoadLatency, MachineFacts, MiddleboxOutcome, ParseError,
    ProfileFacts, Record, RecordError, Replay, Residual, SCHEMA, Sample, ServerFacts, Summary,
    Waterfall, WaterfallPacket, Witness, parse, read, write,
};
pub use schema::json_schema;
pub use tables::{matrix, replays, verdict};
pub use verdict::{Verdict, verdicts};
