//! What one claim costs, from runs with batches of different sizes.

use firstflight_replay::SharedConfig;
use serde::Deserialize;

use crate::page::markdown;

/// A run as the example `store_load` wrote it.
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

/// Records and the bytes of all of them, step by step.
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

/// A figure that has a part for each claim and a part for each batch.
#[derive(Clone, Copy)]
pub(crate) struct Line {
    claim: f64,
    batch: f64,
}

impl Line {
    /// The least squares of `y = claim + batch x 1 / claims a batch`.
    fn through(points: &[(f64, f64)]) -> Option<Self> {
        let count = points.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
        let (x, y) = (mean(|(batch, _)| 1.0 / batch), mean(|(_, value)| *value));
        let (mut both, mut square) = (0.0, 0.0);
        for (batch, value) in points {
            both += (1.0 / batch - x) * (value - y);
            square += (1.0 / batch - x) * (1.0 / batch - x);
        }
        (points.len() > 1 && square > 0.0).then(|| {
            let batch = both / square;
            Self { claim: y - batch * x, batch }
        })
    }

    pub(crate) fn at(self, claims_a_batch: f64) -> f64 {
        self.claim + self.batch / claims_a_batch
    }
}

/// What one claim costs.
pub(crate) struct Costs {
    /// Microseconds of the store's processor, until a record is there.
    record_us: Line,
    /// The same, until it has gone again.
    expiry_us: f64,
    client_us: Line,
    /// On the wire, both ways.
    pub(crate) bytes: Line,
    pub(crate) record_bytes: f64,
    /// For each node, a second.
    pub(crate) heartbeat_us: f64,
    pub(crate) heartbeat_bytes: f64,
    /// Of a record, in seconds.
    pub(crate) life: f64,
}

/// Ethernet, IPv4 and TCP with time stamps: bytes of a segment's headers.
const HEADERS: f64 = 66.0;
/// Segments of a batch: request, reply, and an acknowledgement of the reply.
const SEGMENTS: f64 = 3.0;

impl Costs {
    pub(crate) fn of(runs: &[Run], memory: &Memory, idle: &Idle) -> Option<Self> {
        let line = |value: fn(&Run) -> Option<f64>| {
            let runs = runs.iter().filter(|run| run.name == "one lane");
            let points: Vec<_> =
                runs.filter_map(|run| Some((run.claims_a_batch, value(run)?))).collect();
            Line::through(&points)
        };
        let payload = line(|run| Some(run.bytes_in + run.bytes_out))?;
        // A table has just doubled somewhere on the way: so much is to be provided.
        let half = memory.steps.last()?.0 / 2;
        let large = memory.steps.iter().filter(|(held, _)| *held >= half);
        let record_bytes = large.map(|(held, bytes)| *bytes as f64 / *held as f64);
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
            // The difference of two idle runs; where it is below what they differ by, it is
            // nothing.
            heartbeat_us: idle.store_cpu_us_a_node_second.max(0.0),
            heartbeat_bytes: idle.bytes_in_a_node_second + idle.bytes_out_a_node_second,
            life: SharedConfig::default().record_lifetime().as_secs_f64(),
        })
    }

    /// Microseconds of the store's processor for a claim, the end of its record with it.
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
