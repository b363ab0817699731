//! `keys list`: the keys and those who have them, on a terminal or as JSON.

use std::process::ExitCode;
use std::time::Duration;

use firstflight_store::ring::NodeStatus;
use firstflight_tickets::{DatedKey, KeyState, KeyStatus, Ring, SharedKeys, UnixTime};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::grid::{cut, grid};
use super::now;
use super::source::Source;

/// Prints the keys. Exits with 1 if something has to be done.
///
/// # Errors
/// If the keys cannot be had.
pub(super) async fn run(source: &Source, as_json: bool) -> anyhow::Result<ExitCode> {
    let ring = source.read().await?;
    let list = List { ring, nodes: source.nodes().await?, now: now() };
    let warnings = list.warnings(source.complaints());
    match as_json {
        true => println!("{:#}", list.json(&warnings)),
        false => print!("{}", list.tables()),
    }
    for warning in &warnings {
        eprintln!("firstflight: {warning}");
    }
    Ok(ExitCode::from(u8::from(!warnings.is_empty())))
}

/// What is known at a time.
struct List {
    ring: Ring,
    nodes: Option<Vec<NodeStatus>>,
    now: UnixTime,
}

impl List {
    fn tables(&self) -> String {
        let mut text = grid(&self.key_rows());
        if let Some(nodes) = self.nodes.as_ref().filter(|nodes| !nodes.is_empty()) {
            let mut rows = vec![
                ["NODE", "ZONE", "SINCE (UTC)", "VERSION", "SEEN", "KEYS"]
                    .map(str::to_owned)
                    .to_vec(),
            ];
            rows.extend(nodes.iter().map(|node| self.node_row(node)));
            text += "\n";
            text += &grid(&rows);
        }
        text
    }

    fn key_rows(&self) -> Vec<Vec<String>> {
        let mut head = vec!["KEY", "STATE", "SEALS FROM (UTC)", "OPENS UNTIL (UTC)"];
        if self.nodes.is_some() {
            head.extend(["LAST SEALED", "LAST OPENED"]);
        }
        let mut rows = vec![head.into_iter().map(str::to_owned).collect()];
        for (at, dated) in self.ring.keys().iter().enumerate() {
            let name = name(dated);
            let mut row = vec![
                name[..SHORT].to_owned(),
                state(self.ring.state(at, self.now)).to_owned(),
                utc(dated.not_before),
                utc(end(&self.ring, at)),
            ];
            if self.nodes.is_some() {
                row.push(self.ago(self.last(&name, |key| key.last_sealed)));
                row.push(self.ago(self.last(&name, |key| key.last_opened)));
            }
            rows.push(row);
        }
        rows
    }

    fn node_row(&self, node: &NodeStatus) -> Vec<String> {
        let lacks = self.lacks(node);
        let keys = match &lacks[..] {
            [] => "all".to_owned(),
            [name] => format!("lacks {}", &name[..SHORT]),
            _ => format!("lacks {}", lacks.len()),
        };
        vec![
            cut(&node.node, 24),
            cut(node.zone.as_deref().unwrap_or("-"), 15),
            utc(UnixTime(node.started)),
            cut(&node.version, 8),
            self.ago(Some(node.seen_at)),
            keys,
        ]
    }

    fn json(&self, warnings: &[String]) -> Value {
        let schedule = self.ring.schedule();
        let keys = self.ring.keys().iter().enumerate().map(|(at, dated)| {
            let name = name(dated);
            let mut key = json!({
                "name": name,
                "state": self.ring.state(at, self.now),
                "not_before": dated.not_before.0,
                "ends": end(&self.ring, at).0,
            });
            if self.nodes.is_some() {
                key["last_sealed"] = json!(self.last(&name, |key| key.last_sealed));
                key["last_opened"] = json!(self.last(&name, |key| key.last_opened));
            }
            key
        });
        let mut list = json!({
            "now": self.now.0,
            "rotation_seconds": schedule.rotation().as_secs(),
            "lifetime_seconds": schedule.lifetime().as_secs(),
            "keys": keys.collect::<Vec<_>>(),
            "warnings": warnings,
        });
        if let Some(nodes) = &self.nodes {
            list["nodes"] = nodes
                .iter()
                .map(|node| {
                    let mut value = json!(node);
                    value["lacks"] = json!(self.lacks(node));
                    value
                })
                .collect();
        }
        list
    }

    /// What has to be done.
    fn warnings(&self, complaints: Vec<String>) -> Vec<String> {
        let mut warnings = complaints;
        warnings.extend(self.ring.warnings(self.now).iter().map(ToString::to_string));
        for node in self.nodes.iter().flatten() {
            let lacks = self.lacks(node);
            if !lacks.is_empty() {
                warnings.push(format!(
                    "node {} lacks {} of the keys; look into its log",
                    node.node,
                    lacks.len()
                ));
            }
        }
        warnings
    }

    /// The keys in use that a node has not, by what it last said of itself.
    fn lacks(&self, node: &NodeStatus) -> Vec<String> {
        let keys = self.ring.keys().iter().enumerate();
        keys.filter(|(at, _)| self.ring.state(*at, self.now) != KeyState::Dead)
            .filter(|(_, dated)| node.seen_at >= self.drawn(dated).after(TO_READ_IT).0)
            .map(|(_, dated)| name(dated))
            .filter(|name| node.keys.iter().all(|key| key.name != *name))
            .collect()
    }

    /// When a key came into the store, as far as its time tells: a period's key a period ahead, one
    /// that somebody wanted as late as may be. That replaces the next period's key as well.
    fn drawn(&self, dated: &DatedKey) -> UnixTime {
        let rotation = self.ring.schedule().rotation().as_secs();
        let of_period = |dated: &DatedKey| dated.not_before.0.is_multiple_of(rotation);
        let before = |dated: &DatedKey, ahead| dated.not_before.0.saturating_sub(ahead);
        let wanted = self.ring.keys().iter().filter(|other| !of_period(other));
        let last_wanted =
            wanted.map(|other| before(other, SharedKeys::PROPAGATION_DELAY.as_secs())).max();
        let own = if of_period(dated) { before(dated, rotation) } else { 0 };
        UnixTime(own.max(last_wanted.unwrap_or_default()))
    }

    /// When any of the nodes last did something with the key of this name.
    fn last(&self, name: &str, when: fn(&KeyStatus) -> Option<u64>) -> Option<u64> {
        let nodes = self.nodes.iter().flatten();
        nodes.flat_map(|node| &node.keys).filter(|key| key.name == name).filter_map(when).max()
    }

    /// How long ago, in a word or two. Clocks of others may be ahead.
    fn ago(&self, time: Option<u64>) -> String {
        let Some(time) = time else { return "never".to_owned() };
        match self.now.0.saturating_sub(time) {
            seconds @ 0..120 => format!("{seconds} s ago"),
            seconds @ 120..7200 => format!("{} min ago", seconds / 60),
            seconds @ 7200..172_800 => format!("{} h ago", seconds / 3600),
            seconds => format!("{} d ago", seconds / 86_400),
        }
    }
}

fn name(dated: &DatedKey) -> String {
    dated.key.name().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn state(state: KeyState) -> &'static str {
    match state {
        KeyState::Dead => "dead",
        KeyState::Previous => "previous",
        KeyState::Current => "current",
        KeyState::Next => "next",
    }
}

/// When the key's last ticket is dead: a lifetime after its successor came, or is to come.
fn end(ring: &Ring, at: usize) -> UnixTime {
    let successor = match ring.keys().get(at + 1) {
        Some(next) => next.not_before,
        None => ring.keys()[at].not_before.after(ring.schedule().rotation()),
    };
    successor.after(ring.schedule().lifetime())
}

fn utc(time: UnixTime) -> String {
    let time = i64::try_from(time.0).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.map_or_else(|| "-".to_owned(), |time| time.strftime("%Y-%m-%d %H:%M:%S").to_string())
}

/// How long a node takes to read a new key, at the most.
const TO_READ_IT: Duration = Duration::from_secs(3);

/// How many of a name's 32 digits are shown in a table.
const SHORT: usize = 8;

#[cfg(test)]
#[path = "list_tests.rs"]
mod tests;
