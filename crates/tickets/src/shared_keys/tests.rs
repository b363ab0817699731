use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::key_encryption::{KeyEncryption, UnsealError};

const HOUR: u64 = 3600;
/// A period's start.
const START: UnixTime = UnixTime(497_000 * HOUR);

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn keys() -> SharedKeys {
    SharedKeys::new(Schedule::new(seconds(HOUR), seconds(2 * HOUR)).expect("a schedule"))
}

fn entry(slot: u64) -> KeyEntry {
    KeyEntry { slot: Slot(slot), name: [slot as u8; 16] }
}

fn entries(slots: &[u64]) -> BTreeSet<KeyEntry> {
    slots.iter().map(|slot| entry(*slot)).collect()
}

/// Stores all offers.
fn store_offers(
    keys: &mut SharedKeys,
    present: &mut BTreeSet<KeyEntry>,
    now: UnixTime,
) -> Vec<KeyOffer> {
    let offers = keys.offers(present, now);
    for offer in &offers {
        present.insert(KeyEntry { slot: offer.slot, name: *offer.key.key.name() });
        keys.adopt(offer.slot, offer.key.clone(), now);
    }
    offers
}

#[test]
fn the_first_node_offers_this_period_and_the_next() {
    let (mut keys, mut present) = (keys(), BTreeSet::new());
    assert_eq!(keys.ring(), None);
    let now = START.after(seconds(100));
    let offers = store_offers(&mut keys, &mut present, now);
    let slots_and_times: Vec<_> =
        offers.iter().map(|offer| (offer.slot.0, offer.key.not_before)).collect();
    let next = START.0 + HOUR;
    // This period's key is late: it becomes current once every node can have it.
    assert_eq!(
        slots_and_times,
        [(START.0, now.after(SharedKeys::PROPAGATION_DELAY)), (next, UnixTime(next))]
    );
    assert_eq!(offers[1].lifetime, seconds(2 * HOUR - 100 + 2 * HOUR) + LIFETIME_MARGIN);
    assert_eq!(keys.offers(&present, now), []);
    // Sealing starts at once, because there is no other key.
    assert_eq!(keys.ring().unwrap().current(now).key, offers[0].key.key);
}

#[test]
fn the_next_periods_key_is_offered_a_whole_period_ahead() {
    let (mut keys, mut present) = (keys(), BTreeSet::new());
    store_offers(&mut keys, &mut present, START);
    assert_eq!(keys.offers(&present, UnixTime(START.0 + HOUR - 1)), []);
    let offers = store_offers(&mut keys, &mut present, START.after(seconds(HOUR)));
    let slots_and_times: Vec<_> =
        offers.iter().map(|offer| (offer.slot.0, offer.key.not_before.0)).collect();
    assert_eq!(slots_and_times, [(START.0 + 2 * HOUR, START.0 + 2 * HOUR)]);
}

#[test]
fn keys_that_the_store_has_lost_are_offered_again_unchanged() {
    let (mut keys, mut present) = (keys(), BTreeSet::new());
    store_offers(&mut keys, &mut present, START);
    store_offers(&mut keys, &mut present, START.after(seconds(HOUR)));
    let ring = keys.ring();
    present.clear();
    let now = START.after(seconds(HOUR + 5));
    let again = store_offers(&mut keys, &mut present, now);
    assert_eq!(again.len(), 3);
    assert_eq!(
        again[0].lifetime,
        seconds(2 * HOUR - 5) + LIFETIME_MARGIN,
        "until its last ticket has expired"
    );
    assert_eq!(keys.ring(), ring);
}

#[test]
fn a_key_is_dropped_when_its_last_ticket_has_expired() {
    let (mut keys, mut present) = (keys(), BTreeSet::new());
    for hour in 0..10 {
        store_offers(&mut keys, &mut present, START.after(seconds(hour * HOUR)));
    }
    let now = START.after(seconds(9 * HOUR));
    keys.drop_dead(now);
    let ring = keys.ring().unwrap();
    assert_eq!(ring.keys().len(), ring.previous(now).len() + 2);
    assert_eq!(ring.previous(now).len(), 2);
}

#[test]
fn an_extra_rotation_lasts_until_the_next_period() {
    let (mut keys, mut present) = (keys(), BTreeSet::new());
    store_offers(&mut keys, &mut present, START);
    let now = START.after(seconds(600));
    let offer = keys.rotation(now);
    assert_eq!(offer.key.not_before, now.after(SharedKeys::PROPAGATION_DELAY));
    assert_eq!(offer.lifetime, seconds(HOUR - 600 + 2 * HOUR) + LIFETIME_MARGIN);
    keys.adopt(offer.slot, offer.key.clone(), now);
    let ring = keys.ring().unwrap();
    let current = |now: UnixTime| ring.current(now).key.clone();
    assert_ne!(current(now), offer.key.key);
    assert_eq!(current(now.after(SharedKeys::PROPAGATION_DELAY)), offer.key.key);
    assert_eq!(current(UnixTime(START.0 + HOUR - 1)), offer.key.key);
    assert_ne!(current(START.after(seconds(HOUR))), offer.key.key);
    // Another rotation at once, and one that would fall on the start of a period.
    assert_ne!(keys.rotation(now).slot, offer.slot);
    let before = UnixTime(START.0 + HOUR - SharedKeys::PROPAGATION_DELAY.as_secs());
    assert_eq!(keys.rotation(before).slot, Slot(START.0 + HOUR + 1));
}

#[test]
fn a_rotation_does_not_overtake_the_first_key_of_all() {
    // The clock of the node that generated it is some seconds ahead.
    for ahead in 0..7 {
        let (mut keys, mut present) = (keys(), BTreeSet::new());
        let now = START.after(seconds(100));
        store_offers(&mut keys, &mut present, now.after(seconds(ahead)));
        let first = keys.ring().unwrap().current(now).clone();
        let offer = keys.rotation(now);
        keys.adopt(offer.slot, offer.key.clone(), now);
        let ring = keys.ring().unwrap();
        assert_eq!(ring.current(now).key, first.key, "no other node has the new one yet");
        assert_eq!(ring.current(offer.key.not_before).key, offer.key.key);
    }
}

#[test]
fn two_keys_for_the_same_second_have_the_same_order_on_all_nodes() {
    let key =
        |name: u8| DatedKey { key: TicketKey::new([name; 16], [name; 32]), not_before: START };
    let ring = |order: [u8; 3]| {
        let mut keys = keys();
        for name in order {
            keys.adopt(Slot(name.into()), key(name), START);
        }
        keys.ring().expect("a ring")
    };
    assert_eq!(ring([1, 2, 3]), ring([3, 1, 2]));
    assert_eq!(ring([1, 2, 3]).keys()[2].not_before.0, START.0 + 2);
}

#[test]
fn another_key_in_a_slot_replaces_the_known_one() {
    let (mut keys, mut present) = (keys(), BTreeSet::new());
    let offers = store_offers(&mut keys, &mut present, START);
    let other = generate(offers[1].key.not_before);
    keys.adopt(offers[1].slot, other.clone(), START);
    let ring = keys.ring().unwrap();
    assert_eq!(ring.keys(), [offers[0].key.clone(), other]);
    assert_eq!(keys.offers(&present, START), [], "its slot is not empty");
}

#[test]
fn records_are_read_when_new_and_once_a_minute() {
    let mut keys = keys();
    let present = entries(&[1, 2]);
    let at = |n| START.after(seconds(n));
    assert_eq!(keys.to_read(&present, START), [entry(2), entry(1)]);
    keys.mark_read(entry(1), START);
    keys.mark_read(entry(2), at(30));
    assert_eq!(keys.to_read(&present, at(59)), []);
    assert_eq!(keys.to_read(&present, at(60)), [entry(1)]);
    assert_eq!(keys.to_read(&present, UnixTime(START.0 + 29)), [entry(2)], "a clock set back");
    keys.reread_all();
    assert_eq!(keys.to_read(&present, at(31)).len(), 2);
    keys.mark_read(entry(1), START);
    let another_key = KeyEntry { name: [9; 16], ..entry(1) };
    assert_eq!(keys.to_read(&BTreeSet::from([another_key]), START), [another_key]);
    assert_eq!(keys.to_read(&present, START).len(), 2, "removed in between");
    let many = (0..1000).map(entry).collect();
    assert_eq!(keys.to_read(&many, START)[0], entry(999), "the latest first");
}

#[test]
fn an_entry_has_one_spelling() {
    let name = "000102030405060708090a0b0c0d0e0f";
    let text = format!("1790000000-{name}");
    let entry: KeyEntry = text.parse().expect("an entry");
    assert_eq!((entry.slot, entry.name[15], entry.to_string()), (Slot(1_790_000_000), 15, text));
    for text in [
        String::new(),
        "5".to_owned(),
        format!("05-{name}"),
        format!("+5-{name}"),
        format!("5-{}", name.to_uppercase()),
        format!("5-{name}0"),
        format!("18446744073709551616-{name}"),
    ] {
        assert_eq!(text.parse::<KeyEntry>(), Err(InvalidKeyEntry), "{text}");
    }
}

#[test]
fn a_record_opens_in_its_cluster_and_slot_only() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("kek");
    fs::write(&path, "0123456789abcdef".repeat(4)).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode set");
    let open = || KeyEncryption::open(&path).expect("a key");
    let (records, others) = (KeyRecords::new(open(), "one"), KeyRecords::new(open(), "two"));
    let key = generate(START);
    let record = records.seal(Slot(5), &key);
    assert_eq!(records.open(Slot(5), &record), Ok((key, true)));
    let forged = |slot| Err(RecordError::Sealed { slot, why: UnsealError::Forged });
    assert_eq!(records.open(Slot(6), &record), forged(Slot(6)));
    assert_eq!(others.open(Slot(5), &record), forged(Slot(5)));
    let other_version = open().seal(b"\x02something else", "3:one/ticket-key/5");
    assert_eq!(records.open(Slot(5), &other_version), Err(RecordError::Version(Slot(5))));
    assert!(records.open(Slot(5), b"x").unwrap_err().to_string().contains("not a sealed record"));
}
