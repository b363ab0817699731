//! The size of a run: some hundred copies per scenario, or as many as the environment requests.

use std::path::PathBuf;
use std::time::Duration;

/// The settings of all scenarios.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Copies to send in each scenario.
    pub(crate) copies: u64,
    /// Whether this is `make chaos`: all copies, third-party servers, and the product's default
    /// settings.
    pub(crate) extended: bool,
    /// Directory for the table, in addition to standard output.
    pub(crate) results: Option<PathBuf>,
    /// Number of concurrent scenarios.
    pub(crate) concurrency: usize,
    /// `[store] budget`: generous where the machine is as busy as in a test run.
    pub(crate) budget: Duration,
}

impl Plan {
    /// `CHAOS_COPIES`: copies over all scenarios; `CHAOS_RESULTS`: a directory.
    pub(crate) fn from_environment() -> Self {
        let total = std::env::var("CHAOS_COPIES").ok().and_then(|text| text.parse::<u64>().ok());
        let results = std::env::var_os("CHAOS_RESULTS").map(PathBuf::from);
        match total {
            None => Self {
                copies: 300,
                extended: false,
                results,
                concurrency: 32,
                budget: Duration::from_millis(50),
            },
            Some(total) => Self {
                // Some do not arrive, because a node is down.
                copies: total.div_ceil(SCENARIOS) * 21 / 20,
                extended: true,
                results,
                concurrency: 6,
                budget: Duration::from_millis(3),
            },
        }
    }
}

/// The number of scenarios with a shared register.
const SCENARIOS: u64 = 26;
