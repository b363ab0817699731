use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The version of the record's form; raised when a field changes its meaning.
pub const SCHEMA: u32 = 1;

/// One run of the lab, whole.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LabRecord {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The program's version.
    pub version: String,
    /// When the run began, in UTC, RFC 3339.
    pub date: String,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// The seed that ordered the samples; the same seed and plan give the same order.
    pub seed: u64,
    /// Where it ran.
    pub machine: MachineFacts,
    /// What the servers were, by name: their versions.
    pub servers: Vec<(String, String)>,
    /// How the link did.
    pub link: LinkFacts,
    /// The cells with their figures, in the order of the tables.
    pub cells: Vec<Cell>,
    /// Every sample, in the order in which they were begun.
    pub samples: Vec<Sample>,
    /// What came of the replays, a row a server.
    pub replays: Vec<Replay>,
}

/// The machine of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MachineFacts {
    /// Kernel release.
    pub kernel: String,
    /// The processor's name.
    pub processor: String,
    /// How many processors were there to use.
    pub processors: usize,
}

/// The emulated link of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LinkFacts {
    /// Congestion control of every route.
    pub congestion_control: String,
    /// Initial window in segments.
    pub initial_window: u32,
    /// Packets that it delivered.
    pub packets: u64,
    /// Its own lateness in microseconds: median.
    pub lateness_p50_us: f64,
    /// 99th percentile.
    pub lateness_p99_us: f64,
    /// Worst.
    pub lateness_max_us: f64,
    /// Kernel settings that the machine refused.
    pub refused_settings: Vec<String>,
    /// Whether processors were kept from falling asleep.
    pub keep_awake: bool,
}

/// One cell of the matrix and what was measured in it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cell {
    /// The server under test.
    pub server: String,
    /// `ping-pong` or `get`.
    pub workload: String,
    /// Round-trip time of the path in milliseconds.
    pub rtt_ms: f64,
    /// TLS version: `1.0` to `1.3`.
    pub tls: String,
    /// `full`, `resumed` or `0-RTT`.
    pub kind: String,
    /// Whether TCP Fast Open was asked for.
    pub tfo: bool,
    /// The figures; `None` if no sample was good.
    pub summary: Option<Summary>,
}

/// The figures of a cell, over its good samples.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// Good samples.
    pub samples: usize,
    /// From the connect call to the first byte of the answer in the client, in milliseconds.
    pub min_ms: f64,
    /// Median.
    pub p50_ms: f64,
    /// 95 % confidence interval of the median by order statistics.
    pub p50_interval_ms: (f64, f64),
    /// 95th percentile, from 59 samples on.
    pub p95_ms: Option<f64>,
    /// Worst.
    pub max_ms: f64,
    /// The same time as the packets have it, without client and kernel: median.
    pub wire_p50_ms: f64,
    /// Round trips from the first packet to the first byte of the answer, counted from packets;
    /// what all but one in twenty samples took, `None` if fewer agree.
    pub round_trips: Option<u32>,
}

/// One connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Which cell, by its place in [`LabRecord::cells`].
    pub cell: usize,
    /// When it began, in milliseconds since the measuring began.
    pub at_ms: f64,
    /// From the connect call to the first byte of the answer; `None` if there was none.
    pub time_ms: Option<f64>,
    /// From the first packet to the first byte of the answer on the wire, both delays included.
    pub wire_ms: Option<f64>,
    /// Round trips, counted from packets.
    pub round_trips: Option<u32>,
    /// What its packets show, in words.
    pub label: Option<String>,
    /// How late the link delivered its latest packet, in microseconds.
    pub lateness_us: f64,
    /// Why it does not enter the figures.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fault: Option<Fault>,
}

/// Why a sample does not enter the figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "why")]
pub enum Fault {
    /// The machine stalled: the link was late, or packets were sent twice.
    Spoiled(String),
    /// Its packets show something else than its cell asked for. This fails the run.
    Mislabelled(String),
    /// The connection failed. This fails the run.
    Failed(String),
}

/// What became of the replays at one server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Replay {
    /// The server.
    pub server: String,
    /// Captured first flights.
    pub flights: usize,
    /// Tries over all flights.
    pub tries: usize,
    /// How often the server executed a replayed request, by its own log.
    pub executed: usize,
    /// Bytes that a try got back, on average (an attacker cannot read them).
    pub bytes_per_try: f64,
    /// How often the flights' own requests were executed: once each, or the counting is wrong.
    pub originals: usize,
}

impl LabRecord {
    /// Samples with a fault that fails the run.
    pub fn failures(&self) -> impl Iterator<Item = &Sample> {
        self.samples
            .iter()
            .filter(|sample| matches!(sample.fault, Some(Fault::Mislabelled(_) | Fault::Failed(_))))
    }

    /// Good samples that took another number of round trips than most of their cell.
    pub fn deviating(&self) -> usize {
        let usual = |sample: &&Sample| {
            let summary = self.cells[sample.cell].summary.as_ref();
            summary.and_then(|summary| summary.round_trips) == sample.round_trips
        };
        self.samples.iter().filter(|s| s.fault.is_none()).filter(|s| !usual(s)).count()
    }

    /// Samples that the machine spoiled.
    pub fn spoiled(&self) -> usize {
        self.samples.iter().filter(|s| matches!(s.fault, Some(Fault::Spoiled(_)))).count()
    }
}

/// A record that cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} the record {path}: {source}")]
pub struct RecordError {
    verb: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// Writes a record as JSON.
///
/// # Errors
/// [`RecordError`] with the file.
pub fn write(record: &LabRecord, path: &Path) -> Result<(), RecordError> {
    let failed = |source| RecordError { verb: "write", path: path.to_owned(), source };
    let mut out = BufWriter::new(File::create(path).map_err(failed)?);
    serde_json::to_writer(&mut out, record).map_err(|error| failed(error.into()))?;
    out.write_all(b"\n").and_then(|()| out.flush()).map_err(failed)
}

/// Reads a record back.
///
/// # Errors
/// [`RecordError`] with the file.
pub fn read(path: &Path) -> Result<LabRecord, RecordError> {
    let failed = |source| RecordError { verb: "read", path: path.to_owned(), source };
    let file = BufReader::new(File::open(path).map_err(failed)?);
    serde_json::from_reader(file).map_err(|error| failed(error.into()))
}
