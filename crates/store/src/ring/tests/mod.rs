use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use firstflight_tickets::{DatedKey, KeyState, KeyStatus, UnsealError};
use tempfile::TempDir;

use super::*;

mod memory;
mod simulation;

use memory::Memory;

/// A period's start.
const START: UnixTime = UnixTime(1_790_000_040);
const FIRST_KEK: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const SECOND_KEK: &str = "2222222222abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn schedule() -> Schedule {
    Schedule::new(Duration::from_secs(60), Duration::from_secs(90)).expect("a schedule")
}

fn put_keys(path: &Path, text: &str) {
    fs::write(path, text).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("its mode set");
}

/// A directory with a file of key-encryption keys.
fn keys(text: &str) -> TempDir {
    let directory = TempDir::new().expect("a directory");
    put_keys(&directory.path().join("kek"), text);
    directory
}

fn ring_on(memory: &Memory, keys: &TempDir) -> SharedRing<Memory> {
    let keys = KeyEncryption::open(keys.path().join("kek")).expect("keys");
    SharedRing::new(memory.for_other_node(), keys, schedule())
}

fn at(seconds: u64) -> UnixTime {
    UnixTime(START.0 + seconds)
}

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(test)
}

#[test]
fn two_nodes_share_one_ring() {
    run(async {
        let (memory, keys) = (Memory::new(), keys(FIRST_KEK));
        let (node, other) = (ring_on(&memory, &keys), ring_on(&memory, &keys));
        assert!(matches!(other.read(START).await, Err(SharedRingError::Empty)));
        let ring = node.refresh(START).await.expect("a ring");
        assert_eq!(ring.keys().len(), 2);
        assert_eq!(other.read(START).await.expect("a ring"), ring);
        assert_eq!(other.refresh(START).await.expect("a ring"), ring);
        assert_eq!(memory.contents().records.len(), 2, "no further key was offered");
        let later = other.refresh(at(60)).await.expect("a ring");
        assert_eq!(later.keys().len(), 3);
        assert_eq!(node.refresh(at(60)).await.expect("a ring"), later);
    });
}

#[test]
fn a_rotated_key_reaches_all_nodes_before_it_is_used() {
    run(async {
        let (memory, keys) = (Memory::new(), keys(FIRST_KEK));
        let (node, other) = (ring_on(&memory, &keys), ring_on(&memory, &keys));
        let before = node.refresh(START).await.expect("a ring");
        other.refresh(at(29)).await.expect("a ring");
        let rotated = node.rotate(at(30)).await.expect("a ring");
        assert_eq!(other.refresh(at(31)).await.expect("a ring"), rotated);
        // The previous ring contains neither of the two new keys.
        let was_in_ring = |key: &DatedKey| before.keys().contains(key);
        assert_eq!(
            rotated.keys().iter().map(was_in_ring).collect::<Vec<_>>(),
            [true, false, false]
        );
        assert_eq!(memory.contents().sets[LIST].len(), 3);
        // Shortly before the next period, that period's key is no longer replaced.
        let late = node.rotate(at(50)).await.expect("a ring");
        assert_eq!(late.keys()[..3], rotated.keys()[..]);
        assert_eq!(late.keys().len(), 4);
        assert_eq!(other.refresh(at(51)).await.expect("a ring"), late);
        let name = |seconds| *rotated.current(at(seconds)).key.name();
        assert!(name(44) != name(45) && name(45) == name(59) && name(45) != name(60));
    });
}

#[test]
fn a_rotation_fails_if_the_next_key_is_still_the_old_one() {
    run(async {
        let (memory, keys) = (Memory::new(), keys(FIRST_KEK));
        let node = ring_on(&memory, &keys);
        node.refresh(START).await.expect("a ring");
        memory.contents().puts_back = true;
        assert!(matches!(node.rotate(at(30)).await, Err(SharedRingError::Overtaken)));
        memory.contents().puts_back = false;
        node.rotate(at(31)).await.expect("a ring");
    });
}

#[test]
fn a_store_that_comes_back_empty_gets_the_same_keys_again() {
    run(async {
        let (memory, keys) = (Memory::new(), keys(FIRST_KEK));
        let (node, other) = (ring_on(&memory, &keys), ring_on(&memory, &keys));
        let ring = node.refresh(START).await.expect("a ring");
        other.refresh(START).await.expect("a ring");
        memory.contents().down = true;
        assert!(matches!(node.refresh(at(1)).await, Err(SharedRingError::Store(_))));
        memory.contents().down = false;
        memory.contents().flush();
        assert_eq!(other.refresh(at(2)).await.expect("a ring"), ring);
        assert_eq!(ring_on(&memory, &keys).refresh(at(3)).await.expect("a ring"), ring);
    });
}

#[test]
fn the_first_node_in_an_empty_store_generates_the_keys_for_all() {
    run(async {
        let (memory, keys) = (Memory::new(), keys(FIRST_KEK));
        let node = ring_on(&memory, &keys);
        let before = node.refresh(START).await.expect("a ring");
        memory.contents().flush();
        let other = ring_on(&memory, &keys).refresh(at(5)).await.expect("a ring");
        assert_ne!(other, before);
        assert_eq!(node.refresh(at(6)).await.expect("a ring"), other);
    });
}

#[test]
fn records_live_until_their_last_ticket_has_expired() {
    run(async {
        let (memory, keys) = (Memory::new(), keys(FIRST_KEK));
        let node = ring_on(&memory, &keys);
        memory.contents().now = START.0;
        for second in 0..1000 {
            memory.contents().now = START.0 + second;
            node.refresh(at(second)).await.expect("a ring");
        }
        // From the slot at 600, whose record expires at 600 + 60 + 90 + 300, to the next period's.
        // A line may outlive its record by a minute.
        let (listed, records) = {
            let contents = memory.contents();
            (contents.sets[LIST].len(), contents.records.len())
        };
        assert!(records == 8 && (8..=9).contains(&listed), "{records} {listed}");
        assert_eq!(node.read(at(1000)).await.expect("a ring").keys().len(), 3);
    });
}

#[test]
fn records_are_resealed_when_the_key_encryption_key_is_replaced() {
    run(async {
        let (memory, old, new) = (Memory::new(), keys(FIRST_KEK), keys(SECOND_KEK));
        let node = ring_on(&memory, &old);
        let ring = node.refresh(START).await.expect("a ring");
        let late = ring_on(&memory, &new);
        let error = late.refresh(START).await.expect_err("sealed under another").to_string();
        assert!(error.contains("is sealed under the key-encryption key with id"), "{error}");
        assert!(error.contains(&new.path().display().to_string()), "{error}");
        assert_eq!(late.take_warnings().len(), 2, "one for each record");
        assert!(late.refresh(at(61)).await.is_err());
        assert_eq!(late.take_warnings().len(), 0, "returned already");
        assert_eq!(memory.contents().records.len(), 2, "no record that other nodes cannot read");
        // The file is replaced on the node that has the ring.
        put_keys(&old.path().join("kek"), SECOND_KEK);
        node.refresh_key_encryption(at(62));
        let later = node.refresh(at(62)).await.expect("a ring");
        assert_eq!(later.keys()[..2], ring.keys()[..]);
        assert_eq!(ring_on(&memory, &new).refresh(at(63)).await.expect("a ring"), later);
        assert!(late.refresh(at(121)).await.expect("a ring").keys().len() >= 3);
    });
}

#[test]
fn a_failed_reseal_is_retried() {
    run(async {
        let (memory, old, new) = (Memory::new(), keys(FIRST_KEK), keys(SECOND_KEK));
        let node = ring_on(&memory, &old);
        let ring = node.refresh(START).await.expect("a ring");
        put_keys(&old.path().join("kek"), &format!("{SECOND_KEK}\n{FIRST_KEK}"));
        node.refresh_key_encryption(at(1));
        // The list and a record are read, and the store fails before the record is written.
        node.store().fail(Some((2, false)));
        assert!(matches!(node.refresh(at(1)).await, Err(SharedRingError::Store(_))));
        node.store().fail(None);
        node.refresh(at(2)).await.expect("a ring");
        assert_eq!(ring_on(&memory, &new).read(at(3)).await.expect("a ring"), ring);
    });
}

#[test]
fn nodes_with_different_key_orders_stop_resealing() {
    run(async {
        let (memory, ab, ba) = (
            Memory::new(),
            keys(&format!("{FIRST_KEK}\n{SECOND_KEK}")),
            keys(&format!("{SECOND_KEK}\n{FIRST_KEK}")),
        );
        let (node, other) = (ring_on(&memory, &ab), ring_on(&memory, &ba));
        let mut last = Vec::new();
        for minute in 0..5 {
            let now = UnixTime(START.0 + 61 * minute % 60);
            node.state().keys.reread_all();
            node.refresh(now).await.expect("a ring");
            other.state().keys.reread_all();
            other.refresh(now).await.expect("a ring");
            let records = memory.contents().records.clone();
            last.push(records.into_values().map(|(record, _)| record).collect::<Vec<_>>());
        }
        assert_eq!(last[3], last[4]);
    });
}

#[test]
fn swapped_records_are_skipped_and_reported() {
    run(async {
        let (memory, keys) = (Memory::new(), keys(FIRST_KEK));
        let ring = ring_on(&memory, &keys).refresh(START).await.expect("a ring");
        {
            let mut contents = memory.contents();
            let (first, next) = (record_key(Slot(START.0)), record_key(Slot(START.0 + 60)));
            let swapped = contents.records[&first].clone();
            contents.records.insert(next, swapped);
        }
        let late = ring_on(&memory, &keys);
        let readable = late.refresh(START).await.expect("a ring");
        assert_eq!(readable.keys(), &ring.keys()[..1]);
        let warnings = late.take_warnings();
        let Some(SharedRingError::Record(RecordError::Sealed { slot, why })) = warnings.first()
        else {
            panic!("{warnings:?}");
        };
        assert_eq!((*slot, why), (Slot(START.0 + 60), &UnsealError::Forged));
        // A later period still gets a key.
        let later = late.refresh(at(60)).await.expect("a ring");
        assert_eq!(later.keys().len(), 2);
    });
}

#[test]
fn invalid_lines_and_lines_without_a_record_are_removed_from_the_list() {
    run(async {
        let (memory, keys) = (Memory::new(), keys(FIRST_KEK));
        let node = ring_on(&memory, &keys);
        node.refresh(START).await.expect("a ring");
        let good = memory.contents().sets[LIST].clone();
        let gone = KeyEntry { slot: Slot(5), name: [5; 16] };
        let wrong_name = KeyEntry { slot: Slot(START.0), name: [5; 16] };
        for line in ["garbage".to_owned(), gone.to_string(), wrong_name.to_string()] {
            memory.contents().sets.get_mut(LIST).unwrap().insert(line);
        }
        node.refresh(at(1)).await.expect("a ring");
        assert_eq!(memory.contents().sets[LIST], good);
    });
}

#[test]
fn nodes_publish_their_status_until_it_expires() {
    run(async {
        let (memory, keys) = (Memory::new(), keys(FIRST_KEK));
        let node = ring_on(&memory, &keys);
        let status = |node: &str| NodeStatus {
            node: node.to_owned(),
            zone: Some("eu-west".to_owned()),
            started: START.0,
            version: "0.1.0".to_owned(),
            keys: vec![KeyStatus {
                name: "00".repeat(16),
                not_before: START.0,
                state: KeyState::Current,
                last_sealed: Some(START.0),
                last_opened: None,
            }],
            seen_at: START.0,
        };
        node.publish_status(&status("b")).await.expect("published");
        memory.contents().now = 29;
        node.publish_status(&status("a")).await.expect("published");
        assert_eq!(node.nodes().await.expect("nodes"), [status("a"), status("b")]);
        memory.contents().now = 30;
        assert_eq!(node.nodes().await.expect("nodes"), [status("a")]);
        assert_eq!(memory.contents().sets["nodes"].len(), 1);
        memory.contents().records.get_mut("node:a").unwrap().0 = b"{}".to_vec();
        assert_eq!(node.nodes().await.expect("nodes"), []);
    });
}
