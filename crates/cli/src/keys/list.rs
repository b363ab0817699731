//! `keys list`: shows the keys and the nodes that have them, as tables or JSON.

use std::process::ExitCode;
use std::time::Duration;

use firstflight_store::ring::NodeStatus;
use firstflight_tickets::{DatedKey, KeyState, KeyStatus, Ring, SharedKeys, UnixTime};
use firstflight_units::{printable, printable_json};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::now;
use super::source::RingSource;

/// Prints the keys. The exit code is 1 if something must be done.
///
/// # Errors
/// If the keys cannot be read.
pub(super) async fn run(source: &RingSource, as_json: bool) -> anyhow::Result<ExitCode> {
    let ring = source.read().await?;
    let list = KeyList { ring, nodes: source.nodes().await?, now: now() };
    let warnings = list.warnings(source.problems());
    match as_json {
        true => outln!("{}", printable_json(&format!("{:#}", list.json(&warnings)))),
        false => out!("{}", list.tables()),
    }
    for warning in &warnings {
        errln!("firstflight: {warning}");
    }
    Ok(ExitCode::from(u8::from(!warnings.is_empty())))
}

/// The keys and nodes at one time.
struct KeyList {
    ring: Ring,
    nodes: Option<Vec<NodeStatus>>,
    now: UnixTime,
}

impl KeyList {
    fn tables(&self) -> String {
        let mut text = table(&self.key_rows());
        if let Some(nodes) = self.nodes.as_ref().filter(|nodes| !nodes.is_empty()) {
            let mut rows = vec![
                ["NODE", "ZONE", "SINCE (UTC)", "VERSION", "SEEN", "KEYS"]
                    .map(str::to_owned)
                    .to_vec(),
            ];
            rows.extend(nodes.iter().map(|node| self.node_row(node)));
            text += "\n";
            text += &table(&rows);
        }
        text
    }

    fn key_rows(&self) -> Vec<Vec<String>> {
        let mut head = vec!["KEY", "STATE", "SEALS FROM (UTC)", "OPENS UNTIL (UTC)"];
        if self.nodes.is_some() {
            head.extend(["LAST SEALED", "LAST OPENED"]);
        }
        let mut rows = vec![head.into_iter().map(str::to_owned).collect()];
        for (index, key) in self.ring.keys().iter().enumerate() {
            let name = key_name(key);
            let mut row = vec![
                name[..SHORT_NAME_DIGITS].to_owned(),
                state_name(self.ring.state(index, self.now)).to_owned(),
                utc(key.not_before),
                utc(expiry(&self.ring, index)),
            ];
            if self.nodes.is_some() {
                row.push(self.ago(self.last_use(&name, |key| key.last_sealed)));
                row.push(self.ago(self.last_use(&name, |key| key.last_opened)));
            }
            rows.push(row);
        }
        rows
    }

    fn node_row(&self, node: &NodeStatus) -> Vec<String> {
        let missing_keys = self.missing_keys(node);
        let keys = match &missing_keys[..] {
            [] => "all".to_owned(),
            [name] => format!("lacks {}", &name[..SHORT_NAME_DIGITS]),
            _ => format!("lacks {}", missing_keys.len()),
        };
        // Other nodes chose these texts, so they are escaped and shortened.
        let shown = |text: &str, max| truncated(&printable(text), max);
        vec![
            shown(&node.node, 24),
            shown(node.zone.as_deref().unwrap_or("-"), 15),
            utc(UnixTime(node.started)),
            shown(&node.version, 8),
            self.ago(Some(node.seen_at)),
            keys,
        ]
    }

    fn json(&self, warnings: &[String]) -> Value {
        let schedule = self.ring.schedule();
        let keys = self.ring.keys().iter().enumerate().map(|(index, key)| {
            let name = key_name(key);
            let mut value = json!({
                "name": name,
                "state": self.ring.state(index, self.now),
                "not_before": key.not_before.0,
                "ends": expiry(&self.ring, index).0,
            });
            if self.nodes.is_some() {
                value["last_sealed"] = json!(self.last_use(&name, |key| key.last_sealed));
                value["last_opened"] = json!(self.last_use(&name, |key| key.last_opened));
            }
            value
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
                    value["lacks"] = json!(self.missing_keys(node));
                    value
                })
                .collect();
        }
        list
    }

    /// The problems that need action.
    fn warnings(&self, problems: Vec<String>) -> Vec<String> {
        let mut warnings = problems;
        warnings.extend(self.ring.warnings(self.now).iter().map(ToString::to_string));
        for node in self.nodes.iter().flatten() {
            let missing_keys = self.missing_keys(node);
            if !missing_keys.is_empty() {
                warnings.push(format!(
                    "node {} lacks {} of the keys; see its log",
                    node.node,
                    missing_keys.len()
                ));
            }
        }
        warnings.iter().map(|warning| printable(warning).into_owned()).collect()
    }

    /// The keys in use that a node had not read when it last reported.
    fn missing_keys(&self, node: &NodeStatus) -> Vec<String> {
        let keys = self.ring.keys().iter().enumerate();
        keys.filter(|(index, _)| self.ring.state(*index, self.now) != KeyState::Dead)
            .filter(|(_, key)| node.seen_at >= self.created_at(key).after(KEY_READ_DELAY).0)
            .map(|(_, key)| key_name(key))
            .filter(|name| node.keys.iter().all(|key| key.name != *name))
            .collect()
    }

    /// The latest time at which a key can have been added to the store. Scheduled keys are added
    /// one rotation period before their use. `keys rotate` adds its key
    /// [`PROPAGATION_DELAY`](SharedKeys::PROPAGATION_DELAY) before the use, and replaces the next
    /// scheduled key.
    fn created_at(&self, key: &DatedKey) -> UnixTime {
        let rotation = self.ring.schedule().rotation().as_secs();
        let is_scheduled = |key: &DatedKey| key.not_before.0.is_multiple_of(rotation);
        let before = |key: &DatedKey, lead| key.not_before.0.saturating_sub(lead);
        let forced = self.ring.keys().iter().filter(|other| !is_scheduled(other));
        let last_forced =
            forced.map(|other| before(other, SharedKeys::PROPAGATION_DELAY.as_secs())).max();
        let scheduled = if is_scheduled(key) { before(key, rotation) } else { 0 };
        UnixTime(scheduled.max(last_forced.unwrap_or_default()))
    }

    /// When any node last used the key of this name.
    fn last_use(&self, name: &str, when: fn(&KeyStatus) -> Option<u64>) -> Option<u64> {
        let nodes = self.nodes.iter().flatten();
        nodes.flat_map(|node| &node.keys).filter(|key| key.name == name).filter_map(when).max()
    }

    /// How long ago, rounded. Clocks of other nodes may be ahead.
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

fn key_name(key: &DatedKey) -> String {
    key.key.name().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn state_name(state: KeyState) -> &'static str {
    match state {
        KeyState::Dead => "dead",
        KeyState::Previous => "previous",
        KeyState::Current => "current",
        KeyState::Next => "next",
    }
}

/// When the key's last ticket expires: one ticket lifetime after the key's successor takes over.
fn expiry(ring: &Ring, index: usize) -> UnixTime {
    let successor = match ring.keys().get(index + 1) {
        Some(next) => next.not_before,
        None => ring.keys()[index].not_before.after(ring.schedule().rotation()),
    };
    successor.after(ring.schedule().lifetime())
}

fn utc(time: UnixTime) -> String {
    let time = i64::try_from(time.0).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.map_or_else(|| "-".to_owned(), |time| time.strftime("%Y-%m-%d %H:%M:%S").to_string())
}

/// Aligns columns, two spaces apart.
fn table(rows: &[Vec<String>]) -> String {
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

/// Shortens a text to `max` characters, with an ellipsis.
fn truncated(text: &str, max: usize) -> String {
    match text.chars().count() > max {
        true => text.chars().take(max - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

/// The longest time that a node takes to read a new key.
const KEY_READ_DELAY: Duration = Duration::from_secs(3);

/// How many of a name's 32 hexadecimal digits a table shows.
const SHORT_NAME_DIGITS: usize = 8;

#[cfg(test)]
mod tests {
    use firstflight_tickets::{Schedule, TicketKey};

    use super::*;

    /// Keys 1 to 4; key n is current from 100 n on.
    fn list(now: u64, nodes: Option<Vec<NodeStatus>>) -> KeyList {
        let key = |n: u8| DatedKey {
            key: TicketKey::new([n; 16], [n; 32]),
            not_before: UnixTime(100 * u64::from(n)),
        };
        let schedule = Schedule::new(Duration::from_secs(100), Duration::from_secs(100)).unwrap();
        let ring = Ring::new((1..=4).map(key).collect(), schedule).unwrap();
        KeyList { ring, nodes, now: UnixTime(now) }
    }

    /// A node that has these keys and last sealed and opened with each at the given times.
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
    fn nodes_are_listed_with_their_keys_and_last_uses() {
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
        let warnings = list.warnings(vec!["a record is malformed".to_owned()]);
        assert_eq!(warnings.len(), 2);
        assert!(warnings[1].contains("bbb lacks 1 of the keys"), "{warnings:?}");
    }

    /// A new key is not missing on a node that has not reported since it was created.
    #[test]
    fn a_key_is_not_missing_before_the_node_can_have_read_it() {
        let list = list(350, two_nodes());
        let missing_keys = |seen_at, created_at| {
            let mut node = node("a", &[(2, None, None), (3, None, None)]);
            node.seen_at = seen_at;
            let mut list = KeyList { ring: list.ring.clone(), nodes: None, now: UnixTime(350) };
            if let Some(at) = created_at {
                let mut keys = list.ring.keys().to_vec();
                keys[3].not_before = UnixTime(at);
                list.ring = Ring::new(keys, list.ring.schedule()).unwrap();
            }
            list.missing_keys(&node).len()
        };
        assert_eq!(
            (missing_keys(302, None), missing_keys(303, None)),
            (0, 1),
            "a period ahead, from 300 on"
        );
        assert_eq!(
            (missing_keys(348, Some(361)), missing_keys(349, Some(361))),
            (0, 1),
            "15 s ahead, from 346 on"
        );
    }

    #[test]
    fn texts_from_the_store_are_shown_without_control_sequences() {
        let mut node = node("\u{1b}[2Jnode", &[]);
        (node.zone, node.version) = (Some("\u{9b}2J".to_owned()), "\n\u{202e}".to_owned());
        let list = list(350, Some(vec![node]));
        let tables = list.tables();
        assert!(tables.contains("\\u{1b}[2Jnode  \\u{9b}2J "), "{tables}");
        let warnings = list.warnings(vec!["a record of \u{1b}]0;x\u{7}".to_owned()]);
        assert!(warnings[1].contains("node \\u{1b}[2Jnode lacks"), "{warnings:?}");
        for line in tables.lines().chain(warnings.iter().map(String::as_str)) {
            assert!(!line.contains(firstflight_units::is_unprintable), "{line:?}");
        }
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
    fn json_has_the_same_facts_and_no_secret() {
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
    fn columns_are_aligned_without_trailing_spaces() {
        let row = |fields: &[&str]| fields.iter().map(|field| (*field).to_owned()).collect();
        let rows: Vec<Vec<String>> = vec![row(&["A", "LONG", "C"]), row(&["ännchen", "b", ""])];
        assert_eq!(table(&rows), "A        LONG  C\nännchen  b\n");
    }

    #[test]
    fn a_shortened_text_ends_with_an_ellipsis() {
        assert_eq!((truncated("abcd", 4), truncated("abcde", 4)), ("abcd".into(), "abc…".into()));
    }
}
