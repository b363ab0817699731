//! Counters of the store (INFO), and the processor time of processes (/proc).

use std::collections::HashMap;
use std::fs;

/// A connection for `INFO`, apart from those of the claims.
pub(crate) struct Watch(redis::Connection);

/// All fields of INFO at one moment.
pub(crate) struct Info(HashMap<String, String>);

impl Watch {
    pub(crate) fn open(url: &str) -> redis::RedisResult<Self> {
        Ok(Self(redis::Client::open(url)?.get_connection()?))
    }

    pub(crate) fn info(&mut self) -> redis::RedisResult<Info> {
        let text: String = redis::cmd("INFO").arg("everything").query(&mut self.0)?;
        let fields = text.lines().filter_map(|line| line.trim_end().split_once(':'));
        Ok(Info(fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()))
    }

    pub(crate) fn entries(&mut self) -> redis::RedisResult<u64> {
        redis::cmd("DBSIZE").query(&mut self.0)
    }
}

impl Info {
    pub(crate) fn text(&self, field: &str) -> String {
        self.0.get(field).cloned().unwrap_or_default()
    }

    /// Returns a field as a number; 0 if it is missing or not a number.
    pub(crate) fn number(&self, field: &str) -> f64 {
        self.0.get(field).and_then(|value| value.parse().ok()).unwrap_or_default()
    }

    /// Returns how often a command was called: `cmdstat_get:calls=12,usec=...`.
    pub(crate) fn calls(&self, command: &str) -> f64 {
        let line = self.text(&format!("cmdstat_{command}"));
        let calls = line.split(',').find_map(|part| part.strip_prefix("calls="));
        calls.and_then(|calls| calls.parse().ok()).unwrap_or_default()
    }
}

/// Returns the processor time in seconds of all threads of a process; 0 if it cannot be read.
pub(crate) fn processor_seconds(pid: u32) -> f64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let nanos = threads.filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_ascii_whitespace().next()?.parse::<f64>().ok()
    });
    nanos.sum::<f64>() / 1e9
}
