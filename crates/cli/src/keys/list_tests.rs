use std::time::Duration;

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
    assert_eq!((lacks(348, Some(361)), lacks(349, Some(361))), (0, 1), "15 s ahead, from 346 on");
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
