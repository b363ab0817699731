//! The machine that measures.

use firstflight_report::{MachineFacts, Record, SCHEMA};
use procfs::{CpuInfo, Current as _};

use crate::counters;

/// What is worth knowing about the machine when figures are compared.
pub fn machine_facts() -> MachineFacts {
    let processor = CpuInfo::current().ok().and_then(|all| Some(all.model_name(0)?.to_owned()));
    MachineFacts {
        kernel: nix::sys::utsname::uname()
            .map(|name| format!("Linux {}", name.release().to_string_lossy()))
            .unwrap_or_default(),
        processor: processor.unwrap_or_else(|| "unknown".to_owned()),
        processors: std::thread::available_parallelism().map_or(1, Into::into),
        no_counters: counters::why_none(),
    }
}

/// A record of a run that starts now on this machine, without anything measured yet; `command` is
/// how to make it again.
pub fn blank_record(command: Vec<String>, seed: u64) -> Record {
    Record {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        date: now(),
        command,
        seed,
        machine: machine_facts(),
        ..Record::default()
    }
}

/// Now, in UTC.
pub fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
