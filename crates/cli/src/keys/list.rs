//! `keys list`: the keys and those who have them, on a terminal or as JSON.

use std::process::ExitCode;
use std::time::Duration;

use firstflight_store::ring::NodeStatus;
use firstflight_tickets::{DatedKey, KeyState, KeyStatus, Ring, SharedKeys, UnixTime};
use jiff::Timestamp;
use serde_json::{Value, json};

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

/// Rows as lines, each column as wide as its widest field and two spaces apart.
fn grid(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        let fields = rows.iter().filter_map(|row| row.get(column));
        fields.map(|field| field.chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let fields = row.iter().zip(&widths).map(|(field, width)| format!("{field:width$}"));
        text += fields.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// A text of at most so many characters; what is left out shows as an ellipsis.
fn cut(text: &str, most: usize) -> String {
    match text.chars().count() > most {
        true => text.chars().take(most - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

/// How long a node takes to read a new key, at the most.
const TO_READ_IT: Duration = Duration::from_secs(3);

/// How many of a name's 32 digits are shown in a table.
const SHORT: usize = 8;

#[cfg(test)]
mod tests {
    use firstflight_tickets::{Schedule, TicketKey};

    use super::*;

    /// Keys 1 to 4; key n has the time 100 n.
    fn list(now: u64, nodes: Option<Vec<NodeStatus>>) -> List {
        let key = |n: u8| DatedKey {
            key: TicketKey::new([n; 16], [n; 32]),
            not_before: UnixTime(100 * u64::from(n)),
        };
        let schedule = Schedule::new(Duration::from_secs(100), Duration::from_secs(100)).unwrap();
        let ring = Ring::new((1..=4).map(key).collect(), schedule).unwrap();
        List { ring, nodes, now: UnixTime(now) }
    }

    /// A node that has these keys, and has used each at the given times.
    fn node(name: &str, keys: &[(u8, Option<u64>, Option<u64>)]) -> NodeStatus {
        let status = |(n, last_sealed, last_opened): &(u8, _, _)| KeyStatus {
            name: format!("{n:02x}").repeat(16),
            not_before: 100 * u64::from(*n),
            state: KeyState::Next,
            last_sealed: *last_sealed,
            last_opened: *last_opened,
        };
        NodeStatus {
            node: name.to_owned(),
            zone: Some("eu-west".to_owned()),
            started: 1,
            version: "0.1.0".to_owned(),
            keys: keys.iter().map(status).collect(),
            seen_at: 345,
        }
    }

    fn two_nodes() -> Option<Vec<NodeStatus>> {
        Some(vec![
            node("a", &[(2, Some(299), Some(100)), (3, Some(340), None), (4, None, None)]),
            node(&"b".repeat(64), &[(2, None, Some(349)), (3, Some(349), None)]),
        ])
    }

    #[test]
    fn each_key_has_its_state_and_end() {
        let expected = "\
KEY       STATE     SEALS FROM (UTC)     OPENS UNTIL (UTC)
01010101  dead      1970-01-01 00:01:40  1970-01-01 00:05:00
02020202  previous  1970-01-01 00:03:20  1970-01-01 00:06:40
03030303  current   1970-01-01 00:05:00  1970-01-01 00:08:20
04040404  next      1970-01-01 00:06:40  1970-01-01 00:10:00
";
        assert_eq!(list(350, None).tables(), expected);
        assert!(list(350, None).warnings(Vec::new()).is_empty());
    }

    #[test]
    fn nodes_tell_what_they_have_and_when_they_used_it() {
        let list = list(350, two_nodes());
        let expected = "\
KEY       STATE     SEALS FROM (UTC)     OPENS UNTIL (UTC)    LAST SEALED  LAST OPENED
01010101  dead      1970-01-01 00:01:40  1970-01-01 00:05:00  never        never
02020202  previous  1970-01-01 00:03:20  1970-01-01 00:06:40  51 s ago     1 s ago
03030303  current   1970-01-01 00:05:00  1970-01-01 00:08:20  1 s ago      never
04040404  next      1970-01-01 00:06:40  1970-01-01 00:10:00  never        never

NODE                      ZONE     SINCE (UTC)          VERSION  SEEN     KEYS
a                         eu-west  1970-01-01 00:00:01  0.1.0    5 s ago  all
bbbbbbbbbbbbbbbbbbbbbbb…  eu-west  1970-01-01 00:00:01  0.1.0    5 s ago  lacks 04040404
";
        assert_eq!(list.tables(), expected);
        let warnings = list.warnings(vec!["a record is foreign".to_owned()]);
        assert_eq!(warnings.len(), 2);
        assert!(warnings[1].contains("bbb lacks 1 of the keys"), "{warnings:?}");
    }

    /// A key that has just come is not missed by a node that has not spoken since.
    #[test]
    fn a_node_is_not_asked_for_a_key_before_it_can_have_it() {
        let list = list(350, two_nodes());
        let lacks = |seen_at, drawn| {
            let mut node = node("a", &[(2, None, None), (3, None, None)]);
            node.seen_at = seen_at;
            let mut list = List { ring: list.ring.clone(), nodes: None, now: UnixTime(350) };
            if let Some(at) = drawn {
                let mut keys = list.ring.keys().to_vec();
                keys[3].not_before = UnixTime(at);
                list.ring = Ring::new(keys, list.ring.schedule()).unwrap();
            }
            list.lacks(&node).len()
        };
        assert_eq!((lacks(302, None), lacks(303, None)), (0, 1), "a period ahead, from 300 on");
        assert_eq!(
            (lacks(348, Some(361)), lacks(349, Some(361))),
            (0, 1),
            "15 s ahead, from 346 on"
        );
    }

    #[test]
    fn no_line_is_longer_than_100_columns() {
        let long = "x".repeat(64);
        let mut node = node(&long, &[]);
        (node.zone, node.version, node.seen_at) = (Some(long.clone()), long, 0);
        let list = list(100_000_000, Some(vec![node]));
        for line in list.tables().lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }

    #[test]
    fn json_has_the_same_and_no_secret() {
        let list = list(450, two_nodes());
        let value = list.json(&list.warnings(Vec::new()));
        assert_eq!(value["keys"][3]["state"], "current");
        assert_eq!(value["keys"][3]["ends"], 600);
        assert_eq!(value["keys"][1]["last_opened"], 349);
        assert_eq!(value["nodes"][1]["lacks"][0], "04".repeat(16));
        assert!(value["warnings"][0].as_str().unwrap().contains("no next ticket key"), "{value}");
        assert!(!value.to_string().contains(&"04".repeat(17)), "{value}");
    }

    #[test]
    fn columns_line_up_and_end_without_spaces() {
        let row = |fields: &[&str]| fields.iter().map(|field| (*field).to_owned()).collect();
        let rows: Vec<Vec<String>> = vec![row(&["A", "LONG", "C"]), row(&["ännchen", "b", ""])];
        assert_eq!(grid(&rows), "A        LONG  C\nännchen  b\n");
    }

    #[test]
    fn what_is_cut_shows_it() {
        assert_eq!((cut("abcd", 4), cut("abcde", 4)), ("abcd".into(), "abc…".into()));
    }
}
