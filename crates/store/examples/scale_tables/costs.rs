//! The cost of a claim, calculated from runs with batches of different sizes.

use firstflight_replay::SharedConfig;
use serde::Deserialize;

use crate::page::markdown;

/// A run with claims, as written by the example `store_load`.
#[derive(Deserialize)]
pub(crate) struct Run {
    pub(crate) name: String,
    pub(crate) replicas: u32,
    pub(crate) callers: Option<usize>,
    pub(crate) p50_us: f64,
    pub(crate) claims_a_batch: f64,
    pub(crate) client_cpu_us: Option<f64>,
    pub(crate) store_cpu_us: f64,
    pub(crate) replica_cpu_us: Option<f64>,
    pub(crate) bytes_in: f64,
    pub(crate) bytes_out: f64,
    pub(crate) bytes_to_replicas: f64,
}

/// The number of records and the bytes of all of them, step by step.
#[derive(Deserialize)]
pub(crate) struct Memory {
    steps: Vec<(u64, u64)>,
}

#[derive(Deserialize)]
pub(crate) struct Idle {
    store_cpu_us_a_node_second: f64,
    bytes_in_a_node_second: f64,
    bytes_out_a_node_second: f64,
}

/// A cost per claim plus a cost per batch.
#[derive(Clone, Copy)]
pub(crate) struct Line {
    claim: f64,
    batch: f64,
}

impl Line {
    /// Fits `y = claim + batch / claims_a_batch` by least squares. A point is `(claims_a_batch,
    /// y)`.
    fn fit(points: &[(f64, f64)]) -> Option<Self> {
        let count = points.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
        let (x, y) = (mean(|(batch, _)| 1.0 / batch), mean(|(_, value)| *value));
        let (mut covariance, mut variance) = (0.0, 0.0);
        for (batch, value) in points {
            covariance += (1.0 / batch - x) * (value - y);
            variance += (1.0 / batch - x) * (1.0 / batch - x);
        }
        (points.len() > 1 && variance > 0.0).then(|| {
            let batch = covariance / variance;
            Self { claim: y - batch * x, batch }
        })
    }

    pub(crate) fn at(self, claims_a_batch: f64) -> f64 {
        self.claim + self.batch / claims_a_batch
    }
}

/// The cost of a claim.
pub(crate) struct Costs {
    /// Microseconds of the store's processor to write a record.
    record_us: Line,
    /// Microseconds of the store's processor to expire a record.
    expiry_us: f64,
    /// Microseconds of a node's processor.
    client_us: Line,
    /// Bytes on the wire, in both directions.
    pub(crate) bytes: Line,
    /// Memory of a record.
    pub(crate) record_bytes: f64,
    /// Microseconds of the store's processor per node and second.
    pub(crate) heartbeat_us: f64,
    /// Bytes per node and second.
    pub(crate) heartbeat_bytes: f64,
    /// Lifetime of a record in seconds.
    pub(crate) life: f64,
}

/// Bytes of a segment's headers: Ethernet, IPv4, and TCP with timestamps.
const HEADERS: f64 = 66.0;
/// Segments of a batch: request, reply, and an acknowledgement of the reply.
const SEGMENTS: f64 = 3.0;

impl Costs {
    pub(crate) fn of(runs: &[Run], memory: &Memory, idle: &Idle) -> Option<Self> {
        let line = |value: fn(&Run) -> Option<f64>| {
            let runs = runs.iter().filter(|run| run.name == "one lane");
            let points: Vec<_> =
                runs.filter_map(|run| Some((run.claims_a_batch, value(run)?))).collect();
            Line::fit(&points)
        };
        let payload = line(|run| Some(run.bytes_in + run.bytes_out))?;
        // The maximum includes the steps at which a table of the store has just doubled.
        let half = memory.steps.last()?.0 / 2;
        let large_steps = memory.steps.iter().filter(|(held, _)| *held >= half);
        let record_bytes = large_steps.map(|(held, bytes)| *bytes as f64 / *held as f64);
        let record_us = line(|run| Some(run.store_cpu_us))?;
        let steady = runs.iter().find(|run| run.name == "steady")?;
        let fresh = |run: &&Run| run.name == "one lane" && run.callers == steady.callers;
        let fresh = runs.iter().find(fresh)?;
        Some(Self {
            record_us,
            expiry_us: (steady.store_cpu_us - fresh.store_cpu_us).max(0.0),
            client_us: line(|run| run.client_cpu_us)?,
            bytes: Line { batch: payload.batch + SEGMENTS * HEADERS, ..payload },
            record_bytes: record_bytes.fold(0.0, f64::max),
            // A difference of two runs, which may be negative if it is smaller than their noise.
            heartbeat_us: idle.store_cpu_us_a_node_second.max(0.0),
            heartbeat_bytes: idle.bytes_in_a_node_second + idle.bytes_out_a_node_second,
            life: SharedConfig::default().record_lifetime().as_secs_f64(),
        })
    }

    /// Microseconds of the store's processor for a claim and the expiry of its record.
    pub(crate) fn store_us(&self, claims_a_batch: f64) -> f64 {
        self.record_us.at(claims_a_batch) + self.expiry_us
    }

    pub(crate) fn table(&self) -> String {
        let row = |what: &str, line: Line| {
            let figures = [line.claim, line.batch, line.at(1.0), line.at(16.0)];
            let [claim, batch, alone, many] = figures.map(|figure| format!("{figure:.1}"));
            [what.to_owned(), claim, batch, alone, many]
        };
        let rows = [
            row("store's processor, us", self.record_us),
            row("the same for its expiry, us", Line { claim: self.expiry_us, batch: 0.0 }),
            row("node's processor, us", self.client_us),
            row("bytes on the wire", self.bytes),
        ];
        let table =
            markdown(["", "claim", "batch", "a claim alone in its batch", "16 in a batch"], &rows);
        format!(
            "{table}\nA record takes at most {:.0} bytes of the store's memory and lives {:.0} s. A \
             node\nthat claims nothing costs the store {:.0} us of processor and {:.1} kB a second.\n",
            self.record_bytes,
            self.life,
            self.heartbeat_us,
            self.heartbeat_bytes / 1e3
        )
    }
}
