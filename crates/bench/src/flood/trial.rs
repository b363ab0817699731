use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Flood, FloodConfig, FloodResult};
use crate::process::resident_kib;
use crate::{Limit, LoadConfig, LoadError, LoadHandshake, LoadResult};

/// Measures honest clients before, during and after a flood.
#[derive(Clone, Debug)]
pub struct FloodTrial {
    /// The flood.
    pub flood: FloodConfig,
    /// The load of the honest clients. One run of each kind at the same time.
    pub honest: LoadConfig,
    /// The kinds of handshakes of the honest clients.
    pub kinds: Vec<LoadHandshake>,
    /// The server process, whose memory is measured.
    pub server_pid: u32,
    /// Duration of each of the three phases.
    pub phase: Duration,
}

/// Server and honest clients in one phase of a trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FloodPhase {
    /// `before`, `during` or `after`.
    pub name: String,
    /// Results of the honest clients, one per kind.
    pub honest: Vec<LoadResult>,
    /// Errors of honest clients whose first connection failed, so that their run did not start.
    pub starved: Vec<String>,
    /// The result of the flood; `None` before and after it.
    pub flood: Option<FloodResult>,
    /// Resident memory of the server at the start of the phase, in KiB.
    #[serde(rename = "resident_begin_kib")]
    pub resident_start_kib: u64,
    /// Maximum resident memory during the phase, in KiB.
    #[serde(rename = "resident_most_kib")]
    pub resident_max_kib: u64,
    /// Resident memory at the end of the phase, in KiB.
    pub resident_end_kib: u64,
}

impl FloodPhase {
    /// Returns how many honest connections were due and how many of them completed, including those
    /// that fetched tickets because none was left.
    pub fn honest_connections(&self) -> (u64, u64) {
        self.honest.iter().fold((0, 0), |(due, completed), run| {
            let all = run.started + run.without_ticket + run.not_started;
            (due + all, completed + run.completed + run.refills)
        })
    }
}

/// How often memory is measured.
const MEMORY_INTERVAL: Duration = Duration::from_millis(50);

impl FloodTrial {
    /// Runs the three phases.
    ///
    /// # Errors
    /// [`LoadError`] if a run cannot start. A first connection that fails is in
    /// [`FloodPhase::starved`] instead.
    pub fn run(&self) -> Result<Vec<FloodPhase>, LoadError> {
        [("before", false), ("during", true), ("after", false)]
            .into_iter()
            .map(|(name, with_flood)| self.phase(name, with_flood))
            .collect()
    }

    fn phase(&self, name: &str, with_flood: bool) -> Result<FloodPhase, LoadError> {
        let flood = with_flood.then(|| Flood::new(self.flood.clone())).transpose()?;
        let (stop, done) = (AtomicBool::new(false), AtomicBool::new(false));
        let start = self.resident()?;
        let (honest, flood, max) = thread::scope(|scope| {
            let flood = flood.map(|flood| scope.spawn(|| flood.run(Duration::MAX, &stop)));
            let memory = scope.spawn(|| self.max_resident(&done));
            // Set even if a run panics, because the scope waits for the other threads.
            let (stop, done) = (SetOnDrop(&stop), SetOnDrop(&done));
            let runs: Vec<_> =
                self.kinds.iter().map(|kind| scope.spawn(|| self.run_honest(*kind))).collect();
            let honest: Vec<_> = runs.into_iter().map(join).collect();
            drop(stop);
            let flood = flood.map(join);
            drop(done);
            (honest, flood, join(memory))
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
        Ok(FloodPhase {
            name: name.to_owned(),
            honest: runs,
            starved,
            flood: flood.transpose()?,
            resident_start_kib: start,
            resident_max_kib: max?,
            resident_end_kib: self.resident()?,
        })
    }

    fn run_honest(&self, kind: LoadHandshake) -> Result<LoadResult, LoadError> {
        let limit = Limit::Time(self.phase);
        let config = LoadConfig { kind, limit, ..self.honest.clone() };
        crate::run(&config, |_| std::ops::ControlFlow::Continue(()))
    }

    fn max_resident(&self, done: &AtomicBool) -> Result<u64, LoadError> {
        let mut max = 0;
        while !done.load(Ordering::Relaxed) {
            max = max.max(self.resident()?);
            thread::sleep(MEMORY_INTERVAL);
        }
        Ok(max)
    }

    fn resident(&self) -> Result<u64, LoadError> {
        resident_kib(self.server_pid).map_err(|error| LoadError::ServerProcess {
            pid: self.server_pid,
            reason: error.to_string(),
        })
    }
}

/// Sets the flag when dropped.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counts::Counts;

    #[test]
    fn a_connection_that_fetches_tickets_was_due() {
        let mut counts = Counts::new();
        (counts.started, counts.completed, counts.not_started) = (10, 9, 2);
        (counts.without_ticket, counts.refills) = (5, 3);
        let config = LoadConfig::new(Vec::new(), "h");
        let phase = FloodPhase {
            name: "during".to_owned(),
            honest: vec![LoadResult::new(&config, &counts, None, false)],
            starved: Vec::new(),
            flood: None,
            resident_start_kib: 0,
            resident_max_kib: 0,
            resident_end_kib: 0,
        };
        assert_eq!(phase.honest_connections(), (17, 12));
    }
}
