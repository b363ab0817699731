//! What a run found: the record that is kept, and everything that people and pipelines read of it.
//!
//! The record holds every raw sample; everything printed is made from it and can be made again:
//!
//! - [`summary`] for a terminal, [`html::render`], [`markdown::render`], [`csv`];
//! - [`conditions`] that must not be, [`compare`] with an earlier record, and their [`Verdict`]s as
//!   text ([`verdict_lines`]), Markdown or [`junit`].
//!
//! [`figures`], [`effects`] and [`control`] make its figures from the samples, by [`statistics`].

pub mod axes;
mod comparison;
pub mod conditions;
pub mod csv;
mod distribution;
mod drawing;
mod effects;
mod figure;
mod headline;
pub mod html;
pub mod junit;
pub mod markdown;
mod pictures;
mod published;
mod record;
mod schema;
mod sheets;
pub mod statistics;
mod tables;
mod verdict;
mod visits;

pub use comparison::{Change, Comparison, compare};
pub use distribution::{figures, usual};
pub use effects::{control, effects};
pub use pictures::Pictures;
pub use record::{
    BrowserFacts, BrowserTimings, Calibration, Capture, Cell, Control, ControlPair, Cost, Effect,
    Experiment, Fault, Figures, Filmstrip, Frame, Interval, LinkFacts, Load, LoadLatency,
    MachineFacts, MiddleboxOutcome, ParseError, ProfileFacts, Record, RecordError, Replay,
    Residual, SCHEMA, Sample, ServerFacts, Summary, Visit, VisitCell, VisitEffect, VisitPackets,
    VisitSummary, Waterfall, WaterfallPacket, Witness, parse, read, write,
};
pub use schema::json_schema;
pub use tables::{summary, verdict, verdicts as verdict_lines};
pub use verdict::{Verdict, verdicts};
