use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Flood, FloodConfig, FloodResult};
use crate::{Kind, Limit, LoadConfig, LoadError, LoadResult, memory};

/// A flood beside honest clients: before it, while it lasts, and after.
#[derive(Clone, Debug)]
pub struct FloodTrial {
    /// What is forged.
    pub flood: FloodConfig,
    /// The honest clients; one run of each kind at the same time.
    pub honest: LoadConfig,
    /// Their kinds.
    pub kinds: Vec<Kind>,
    /// The server's process, whose memory is watched.
    pub server_pid: u32,
    /// How long each of the three parts lasts.
    pub part: Duration,
}

/// What became of server and honest clients in one part of a trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FloodPart {
    /// `before`, `during` or `after`.
    pub name: String,
    /// The honest clients, kind by kind.
    pub honest: Vec<LoadResult>,
    /// Why runs of honest clients did not even start: their first connections were not answered.
    pub starved: Vec<String>,
    /// The forged connections; during the flood only.
    pub flood: Option<FloodResult>,
    /// The server's resident memory when the part started, in KiB.
    pub resident_begin_kib: u64,
    /// The most that was seen.
    pub resident_most_kib: u64,
    /// When it ended.
    pub resident_end_kib: u64,
}

impl FloodPart {
    /// Honest connections that were started or should have been, and those that were answered.
    pub fn honest_connections(&self) -> (u64, u64) {
        self.honest.iter().fold((0, 0), |(due, answered), run| {
            (due + run.begun + run.not_begun, answered + run.completed)
        })
    }
}

/// How often memory is looked at.
const LOOK: Duration = Duration::from_millis(50);

impl FloodTrial {
    /// Runs the three parts.
    ///
    /// # Errors
    /// [`LoadError`] where a run cannot start, but for want of a response.
    pub fn run(&self) -> Result<Vec<FloodPart>, LoadError> {
        [("before", false), ("during", true), ("after", false)]
            .into_iter()
            .map(|(name, flooded)| self.part(name, flooded))
            .collect()
    }

    fn part(&self, name: &str, flooded: bool) -> Result<FloodPart, LoadError> {
        let flood = flooded.then(|| Flood::new(self.flood.clone())).transpose()?;
        let (stop, over) = (AtomicBool::new(false), AtomicBool::new(false));
        let begin = self.resident()?;
        let (honest, flood, most) = thread::scope(|scope| {
            let flood = flood.map(|flood| scope.spawn(|| flood.run(Duration::MAX, &stop)));
            let watch = scope.spawn(|| self.watch(&over));
            let runs: Vec<_> =
                self.kinds.iter().map(|kind| scope.spawn(|| self.honest(*kind))).collect();
            let honest: Vec<_> = runs.into_iter().map(joined).collect();
            stop.store(true, Ordering::Relaxed);
            let flood = flood.map(joined);
            over.store(true, Ordering::Relaxed);
            (honest, flood, joined(watch))
        });
        let mut starved = Vec::new();
        let mut runs = Vec::new();
        for run in honest {
            match run {
                Ok(run) => runs.push(run),
                Err(error @ LoadError::WarmUp { .. }) => starved.push(error.to_string()),
                Err(error) => return Err(error),
            }
        }
        Ok(FloodPart {
            name: name.to_owned(),
            honest: runs,
            starved,
            flood: flood.transpose()?,
            resident_begin_kib: begin,
            resident_most_kib: most?,
            resident_end_kib: self.resident()?,
        })
    }

    fn honest(&self, kind: Kind) -> Result<LoadResult, LoadError> {
        let limit = Limit::Time(self.part);
        let config = LoadConfig { kind, limit, ..self.honest.clone() };
        crate::run(&config, |_| std::ops::ControlFlow::Continue(()))
    }

    fn watch(&self, over: &AtomicBool) -> Result<u64, LoadError> {
        let mut most = 0;
        while !over.load(Ordering::Relaxed) {
            most = most.max(self.resident()?);
            thread::sleep(LOOK);
        }
        Ok(most)
    }

    fn resident(&self) -> Result<u64, LoadError> {
        memory::resident_kib(self.server_pid).map_err(|error| LoadError::ServerProcess {
            pid: self.server_pid,
            reason: error.to_string(),
        })
    }
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
