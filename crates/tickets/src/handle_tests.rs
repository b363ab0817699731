use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use tempfile::TempDir;

use super::*;

const NOW: UnixTime = UnixTime(1_790_000_000);

fn hours(n: u64) -> UnixTime {
    NOW.after(Duration::from_secs(n * 3600))
}

fn opened() -> Opened {
    Opened::Ticket { content: b"session".to_vec(), origin: Zone::NONE.into() }
}

fn two_on_one_file() -> (TempDir, KeyFile, TicketKeys, TicketKeys) {
    let directory = TempDir::new().expect("a temporary directory");
    let file = KeyFile::new(directory.path().join("keys.toml"));
    file.write_new(Schedule::default(), NOW).expect("written");
    let handle = || TicketKeys::from_file(file.clone()).expect("read");
    let (one, other) = (handle(), handle());
    (directory, file, one, other)
}

#[test]
fn in_process_keys_rotate_by_the_clock() {
    let keys = TicketKeys::in_process(Schedule::default(), NOW);
    let ticket = keys.seal(b"session", 0, hours(11));
    assert_eq!(keys.refresh(hours(11)).unwrap(), RefreshOutcome::Unchanged);
    assert_eq!(keys.refresh(hours(12)).unwrap(), RefreshOutcome::Rotated);
    assert_eq!(keys.refresh(hours(12)).unwrap(), RefreshOutcome::Unchanged);
    assert_eq!(keys.open(&ticket, hours(12)), opened());
    assert_ne!(keys.seal(b"session", 0, hours(12))[1..17], ticket[1..17]);
    assert_eq!(keys.open(&ticket, hours(24)), Opened::UnknownKey);
    assert_eq!(keys.warnings(hours(12)), []);
}

#[test]
fn two_processes_on_one_file_agree_about_the_current_key_by_the_clock() {
    let (_directory, _file, one, other) = two_on_one_file();
    for hour in [0, 5, 12, 13, 23, 40] {
        let ticket = one.seal(b"session", 0, hours(hour));
        assert_eq!(other.open(&ticket, hours(hour)), opened());
        assert_eq!(other.seal(b"", 0, hours(hour))[1..17], ticket[1..17], "the same key");
    }
    // The processes' clocks differ when the key changes.
    let ticket = one.seal(b"session", 0, hours(12));
    assert_eq!(other.open(&ticket, UnixTime(hours(12).0 - 30)), opened());
}

#[test]
fn an_address_token_opens_at_every_process_until_its_key_is_dead() {
    let (_directory, _file, one, other) = two_on_one_file();
    let token = one.seal_token(b"address", b"nonce", hours(11));
    let opened = Some((b"address".to_vec(), Zone::NONE));
    assert_eq!(other.open_token(&token, b"nonce", hours(11)), opened);
    assert_eq!(other.open_token(&token, b"nonce", hours(23)), opened, "the key is a previous one");
    assert_eq!(other.open_token(&token, b"nonce", hours(24)), None);
    assert_eq!(other.open_token(&token, b"other", hours(11)), None);
    assert_eq!(other.open(&token, hours(11)), Opened::UnknownKey);
}

#[test]
fn a_replaced_file_is_picked_up() {
    let (_directory, file, one, other) = two_on_one_file();
    let before = one.seal(b"session", 0, hours(1));
    file.rotate(hours(2)).expect("rotated");
    assert_eq!(one.refresh(hours(2)).unwrap(), RefreshOutcome::Reread);
    assert_eq!(one.refresh(hours(2)).unwrap(), RefreshOutcome::Unchanged);
    assert_eq!(one.open(&before, hours(2)), opened());
    // The other process has not reread the file, but has the new key as its next one.
    let after = one.seal(b"session", 0, hours(2));
    assert_ne!(after[1..17], before[1..17]);
    assert_eq!(other.open(&after, hours(2)), opened());
}

#[test]
fn a_broken_file_leaves_the_old_ring_in_use_and_is_reported_once() {
    let (_directory, file, keys, _) = two_on_one_file();
    let ticket = keys.seal(b"session", 0, NOW);
    let valid = fs::read_to_string(file.path()).unwrap();
    let still_works = || assert_eq!(keys.open(&ticket, hours(1)), opened());

    fs::write(file.path(), valid.replace("version = 1", "version = 9")).unwrap();
    assert!(matches!(keys.refresh(hours(1)), Err(FileError::Content { .. })));
    assert_eq!(keys.refresh(hours(1)).unwrap(), RefreshOutcome::Unchanged);
    still_works();

    fs::set_permissions(file.path(), fs::Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(keys.refresh(hours(1)), Err(FileError::ReadableByOthers { .. })));
    assert_eq!(keys.refresh(hours(1)).unwrap(), RefreshOutcome::Unchanged);
    still_works();

    fs::remove_file(file.path()).unwrap();
    assert!(matches!(keys.refresh(hours(1)), Err(FileError::Read { .. })));
    still_works();

    // Another ring replaces the old one.
    file.write_new(Schedule::default(), NOW).expect("written");
    assert_eq!(keys.refresh(hours(1)).unwrap(), RefreshOutcome::Reread);
    assert_eq!(keys.open(&ticket, hours(1)), Opened::UnknownKey);
    fs::remove_file(file.path()).unwrap();
    assert!(keys.refresh(hours(1)).is_err(), "the error is returned again after a valid file");
}

#[test]
fn a_file_rewritten_in_place_within_one_tick_is_picked_up() {
    let (_directory, file, keys, _) = two_on_one_file();
    let name = hex::encode(keys.ring().keys()[0].key.name());
    for digit in ["1", "2", "3"] {
        let text = fs::read_to_string(file.path()).unwrap();
        let current = hex::encode(keys.ring().keys()[0].key.name());
        fs::write(file.path(), text.replace(&current, &digit.repeat(32))).unwrap();
        assert_eq!(keys.refresh(NOW).unwrap(), RefreshOutcome::Reread);
    }
    assert_ne!(hex::encode(keys.ring().keys()[0].key.name()), name);
}

#[test]
fn replaced_keys_are_dropped_when_their_tickets_have_expired() {
    let keys = TicketKeys::external(Ring::generate(Schedule::default(), NOW));
    let ticket = keys.seal(b"session", 0, hours(1));
    assert!(keys.install(Ring::generate(Schedule::default(), hours(2)), hours(2)));
    assert_eq!(keys.refresh(hours(13)).unwrap(), RefreshOutcome::Unchanged);
    assert_eq!(keys.open(&ticket, hours(13)), opened());
    // While the store is unavailable, no other ring is installed.
    assert_eq!(keys.refresh(hours(14)).unwrap(), RefreshOutcome::Unchanged);
    assert!(keys.active().retired.is_empty());
    assert_eq!(keys.open(&ticket, hours(14)), Opened::UnknownKey);
}

#[test]
fn from_a_missing_file_is_an_error() {
    let file = KeyFile::new("/nonexistent/keys.toml");
    assert!(matches!(TicketKeys::from_file(file), Err(FileError::Read { .. })));
}

#[test]
fn sealing_continues_while_the_ring_rotates() {
    let keys = TicketKeys::in_process(Schedule::default(), NOW);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for hour in 0..200 {
                    let ticket = keys.seal(b"session", 0, hours(hour));
                    keys.refresh(hours(hour)).expect("no file is involved");
                    // The other thread may be far ahead and have dropped the key; never forged.
                    assert_ne!(keys.open(&ticket, hours(hour)), Opened::Forged);
                }
            });
        }
    });
    assert!(keys.ring().keys().len() <= 3);
}

#[test]
fn a_ticket_carries_its_zone() {
    let ring = Ring::generate(Schedule::default(), NOW);
    let west = TicketKeys::external(ring.clone()).in_zone(Zone::named("eu-west"));
    let east = TicketKeys::external(ring).in_zone(Zone::named("eu-east"));
    let expected = Opened::Ticket {
        content: b"session".to_vec(),
        origin: Origin { zone: west.zone(), epoch: 5 },
    };
    assert_eq!(east.open(&west.seal(b"session", 5, NOW), NOW), expected);
    let detached = west.seal_detached(b"session", 5, NOW);
    let reference =
        Opened::Reference { id: detached.id, origin: Origin { zone: west.zone(), epoch: 5 } };
    assert_eq!(east.open(&detached.ticket, NOW), reference);
    assert_eq!(east.open_detached(&detached.record, &detached.id, NOW), expected);
    assert_eq!(east.open_detached(&detached.record, &[0; 16], NOW), Opened::Forged);
}

#[test]
fn replaced_keys_open_their_tickets_until_they_expire() {
    let own = Ring::generate(Schedule::default(), NOW);
    let next = own.keys()[1].key.clone();
    let keys = TicketKeys::external(own.clone());
    assert!(!keys.install(own, NOW), "the same ring");
    let before = keys.seal(b"session", 0, hours(1));
    let shared = Ring::generate(Schedule::default(), NOW);
    assert!(keys.install(shared.clone(), hours(2)));
    let after = keys.seal(b"session", 0, hours(2));
    assert_ne!(after[1..17], before[1..17]);
    // No node has sealed under the next key: a ticket under it comes from a thief.
    let stolen = next.seal(b"session", Zone::NONE);
    assert_eq!(keys.open(&stolen, hours(2)), Opened::UnknownKey);
    // After another ring, keys that were retired before are still known.
    let mut rotated = shared;
    rotated.rotate(hours(3));
    assert!(keys.install(rotated, hours(3)));
    assert_eq!(keys.open(&before, hours(13)), opened());
    assert_eq!(keys.open(&after, hours(13)), opened());
    assert_eq!(keys.open(&before, hours(14)), Opened::UnknownKey);
}

#[test]
fn each_key_knows_its_last_use() {
    let keys = TicketKeys::in_process(Schedule::default(), NOW);
    let uses = |now| {
        let keys = keys.statuses(now).into_iter();
        keys.map(|key| (key.state, key.last_sealed, key.last_opened)).collect::<Vec<_>>()
    };
    assert_eq!(uses(NOW), [(KeyState::Current, None, None), (KeyState::Next, None, None)]);
    let ticket = keys.seal(b"session", 0, hours(1));
    keys.open(&ticket, hours(2));
    keys.open(&[&ticket[..], b"x"].concat(), hours(3));
    keys.refresh(hours(12)).unwrap();
    let (sealed, opened) = (Some(hours(1).0), Some(hours(2).0));
    assert_eq!(
        uses(hours(12)),
        [
            (KeyState::Previous, sealed, opened),
            (KeyState::Current, None, None),
            (KeyState::Next, None, None),
        ],
    );
    let status = &keys.statuses(hours(12))[0];
    assert_eq!(status.name, hex::encode(&ticket[1..17]));
    assert_eq!(status.not_before, NOW.0);
}

/// Compiles only if the handle may be shared between threads.
const fn is_shareable<T: Send + Sync>() {}
const _: () = is_shareable::<TicketKeys>();

#[test]
fn tickets_are_counted_by_the_state_of_their_key() {
    let (_directory, _file, one, other) = two_on_one_file();
    let ticket = one.seal(b"session", 0, hours(11));
    let token = one.seal_token(b"address", b"", hours(11));
    other.open(&ticket, hours(11));
    other.open(&ticket, hours(12));
    other.open(&one.seal(b"session", 0, hours(12)), UnixTime(hours(12).0 - 30));
    assert!(other.open_token(&token, b"", hours(11)).is_some());
    other.open(b"garbage", hours(11));
    let mut forged = ticket.clone();
    *forged.last_mut().unwrap() ^= 1;
    other.open(&forged, hours(11));
    let expected = TicketCounts {
        opened_previous: 1,
        opened_current: 2,
        opened_next: 1,
        unknown: 1,
        forged: 1,
        ..TicketCounts::default()
    };
    assert_eq!(other.counts(), expected);
    assert_eq!(one.counts(), TicketCounts { sealed: 3, ..TicketCounts::default() });
    // Another ring is installed: keys that it lacks still open their tickets.
    let external = TicketKeys::external(Ring::generate(Schedule::default(), NOW));
    let ticket = external.seal(b"session", 0, NOW);
    external.install(Ring::generate(Schedule::default(), NOW), NOW);
    external.open(&ticket, NOW);
    assert_eq!(external.counts().opened_replaced, 1);
}
