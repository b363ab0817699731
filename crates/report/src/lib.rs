//! The record of a measuring run, and the reports, checks and statistics made from it.
//!
//! ```text
//! html, markdown, terminal, csv, junit    formats for people, pipelines and spreadsheets
//!   headline, tables, charts              what the formats share: sentences, tables, drawings
//! conditions, comparison, checks          what should hold: in a run, or against an earlier one
//!   axes, visits                          cells of the matrix, cells of browser visits: names, values
//! effects                                 differences between cells, the A/A control
//! record                                  what was measured: one file, with every raw sample
//! statistics                              percentiles, intervals, differences of medians
//! ```
//!
//! # Examples
//!
//! ```
//! use firstflight_report::conditions::Condition;
//! use firstflight_report::{Cell, Figures, Record, Summary, markdown, terminal};
//!
//! let first_byte = Figures::from_values((0..100).map(|n| 20.0 + f64::from(n) / 10.0)).unwrap();
//! let cell = Cell {
//!     server: "nginx".to_owned(),
//!     workload: "ping-pong".to_owned(),
//!     kind: "0-RTT".to_owned(),
//!     rtt_ms: 20.0,
//!     summary: Some(Summary { samples: 100, first_byte, ..Summary::default() }),
//!     ..Cell::default()
//! };
//! let record = Record { cells: vec![cell], ..Record::default() };
//!
//! assert!(terminal::render(&record).contains("nginx, ping-pong"));
//! assert!(markdown::render(&record).contains("| RTT | TLS | 0-RTT |"));
//!
//! // A condition states what must not be true.
//! let condition = Condition::parse("p95(0rtt) > 1.2*rtt").unwrap();
//! let outcome = condition.check(&record, None).unwrap();
//! assert!(!outcome.passed());
//! ```
//!
//! # One record, many formats
//!
//! Programs that measure write a [`Record`] and know no format. This crate reads records and knows
//! no network. Each table is made once, as rows of text, and then printed, written as Markdown or
//! as HTML, so two formats of a run cannot contradict each other. Because the record holds every
//! raw sample, every report can be made again.
//!
//! # A check that cannot be decided does not pass
//!
//! A condition whose figure was not measured, or not from enough samples, is an error. Otherwise a
//! pipeline would stay green because somebody renamed a server. Only a check that could not have
//! failed, such as an A/A control of a single pair, fails nothing; it is shown as not decidable.

pub mod axes;
mod charts;
mod checks;
mod comparison;
pub mod conditions;
pub mod csv;
mod effects;
mod format;
mod headline;
pub mod html;
pub mod junit;
pub mod markdown;
mod published;
mod record;
mod server_costs;
pub mod statistics;
mod tables;
pub mod terminal;
mod visits;

pub use checks::{CheckOutcome, check_run};
pub use comparison::{Change, Comparison, compare};
pub use effects::{control, effects};
pub use html::Pictures;
pub use record::{
    BrowserFacts, BrowserTimings, Bytes, Calibration, Capture, Cell, ColdStart, Control,
    ControlPair, Cost, Effect, Experiment, Fault, Figures, Filmstrip, Frame, Interval, LinkFacts,
    Load, LoadLatency, MachineFacts, MiddleboxOutcome, ParseError, ProfileFacts, Record,
    RecordError, Replay, Residual, SCHEMA, Sample, ServerFacts, Stall, Summary, Visit, VisitCell,
    VisitEffect, VisitPackets, VisitSummary, Waterfall, WaterfallPacket, Witness, json_schema,
    parse, read, replace_file, write,
};
pub use server_costs::ServerCosts;
