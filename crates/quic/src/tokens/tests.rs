use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use firstflight_tickets::{KeyFile, Opened, Schedule, Zone};
use proptest::prelude::*;
use quinn_proto::TokenLog as _;
use tempfile::TempDir;

use super::*;

const NOW: UnixTime = UnixTime(1_790_000_000);
const HALF_A_DAY: Duration = Duration::from_secs(12 * 3600);

fn now() -> UnixTime {
    NOW
}

fn keys() -> TicketKeys {
    TicketKeys::in_process(Schedule::default(), NOW)
}

fn tokens() -> AddressTokens {
    AddressTokens::new(Arc::new(keys()), now)
}

/// Makes a token as quinn does: the sealed payload, followed by the nonce.
fn seal(tokens: &AddressTokens, payload: &[u8], nonce: u128) -> Vec<u8> {
    let mut data = payload.to_vec();
    tokens.aead_from_hkdf(&nonce.to_le_bytes()).seal(&mut data, &[]).expect("sealed");
    data.extend_from_slice(&nonce.to_le_bytes());
    data
}

/// Opens a token as quinn does.
fn open(tokens: &AddressTokens, token: &[u8]) -> Option<Vec<u8>> {
    let (sealed, nonce) = token.split_at_checked(token.len().checked_sub(16)?)?;
    let mut sealed = sealed.to_vec();
    let opened = tokens.aead_from_hkdf(nonce).open(&mut sealed, &[]);
    opened.ok().map(|payload| payload.to_vec())
}

fn check(log: &SpentTokens, nonce: u128, issued: UnixTime) -> bool {
    let issued = SystemTime::UNIX_EPOCH + Duration::from_secs(issued.0);
    log.check_and_insert(nonce, issued, HALF_A_DAY).is_ok()
}

fn until(seconds: u64) -> UnixTime {
    UnixTime(NOW.0 + seconds)
}

#[test]
fn any_process_with_the_ring_opens_tokens_of_both_kinds() {
    let directory = TempDir::new().expect("a directory");
    let file = KeyFile::new(directory.path().join("keys"));
    file.write_new(Schedule::default(), NOW).expect("written");
    let node = || {
        let keys = TicketKeys::from_file(file.clone()).expect("read");
        AddressTokens::new(Arc::new(keys), now)
    };
    let (one, other) = (node(), node());
    for payload in [&b"\x00of a Retry"[..], b"\x01of a NEW_TOKEN frame"] {
        let token = seal(&one, payload, 7);
        assert_eq!(open(&other, &token).as_deref(), Some(payload));
        assert_eq!(open(&tokens(), &token), None, "without the ring");
    }
}

#[test]
fn rfc9000_8_1_4_new_tokens_are_numbered_and_retry_tokens_are_not() {
    let (one, other) = (tokens(), tokens());
    let serials = [&one, &one, &other].map(|tokens| {
        let token = seal(tokens, b"\x01payload", 7);
        tokens.serial(&token).expect("a serial")
    });
    assert_eq!(serials[0].issuer, serials[1].issuer);
    assert_ne!(serials[0].issuer, serials[2].issuer);
    assert_eq!(serials.map(|serial| serial.number), [0, 1, 0]);
    assert_eq!(one.serial(&seal(&one, b"\x00payload", 7)), None);
    assert_eq!(one.serial(b""), None);
    assert_eq!(one.serial(&[0; 200]), None);
}

#[test]
fn new_tokens_are_valid_in_their_zone_only_and_retry_tokens_everywhere() {
    let directory = TempDir::new().expect("a directory");
    let file = KeyFile::new(directory.path().join("keys"));
    file.write_new(Schedule::default(), NOW).expect("written");
    let in_zone = |zone: &str| {
        let keys = TicketKeys::from_file(file.clone()).expect("read").in_zone(Zone::named(zone));
        AddressTokens::new(Arc::new(keys), now)
    };
    let (west, east) = (in_zone("west"), in_zone("east"));
    let (new, retry) = (seal(&west, b"\x01new", 7), seal(&west, b"\x00retry", 8));
    assert!(open(&in_zone("west"), &new).is_some());
    assert_eq!((open(&east, &new), east.serial(&new)), (None, None));
    assert!(open(&east, &retry).is_some());
}

#[test]
fn tokens_and_tickets_are_not_interchangeable() {
    let keys = Arc::new(keys());
    let tokens = AddressTokens::new(Arc::clone(&keys), now);
    let token = seal(&tokens, b"\x01payload", 7);
    for ticket in [&token[..], &token[..token.len() - 16]] {
        assert_eq!(keys.open(ticket, NOW), Opened::UnknownKey);
    }
    let ticket = keys.seal(b"\x00session", 0, NOW);
    assert_eq!(open(&tokens, &ticket), None);
    assert_eq!(open(&tokens, &[&ticket[..], &[0; 16]].concat()), None);
}

#[test]
fn a_change_of_any_byte_including_the_nonce_is_detected() {
    let tokens = tokens();
    let token = seal(&tokens, b"\x01payload", 7);
    for at in 0..token.len() {
        let mut changed = token.clone();
        changed[at] ^= 1;
        assert_eq!(open(&tokens, &changed), None, "byte {at}");
    }
    for length in 0..token.len() {
        assert_eq!(open(&tokens, &token[..length]), None, "{length} bytes");
    }
}

#[test]
fn rfc9000_8_1_4_a_token_is_accepted_once() {
    let tokens = tokens();
    let log = SpentTokens::new(1 << 20, now);
    let first = seal(&tokens, b"\x01payload", 7);
    let second = seal(&tokens, b"\x01payload", 8);
    assert!(open(&tokens, &first).is_some() && check(&log, 7, NOW));
    assert!(open(&tokens, &first).is_some() && !check(&log, 7, NOW), "spent");
    assert!(open(&tokens, &second).is_some() && check(&log, 8, NOW), "another");
    assert!(!check(&log, 9, NOW), "was not opened");
    assert!(open(&tokens, &second).is_some() && !check(&log, 7, NOW), "another was opened");
    let old = seal(&tokens, b"\x01payload", 10);
    let dead = UnixTime(NOW.0 - HALF_A_DAY.as_secs() - 1);
    assert!(open(&tokens, &old).is_some() && !check(&log, 10, dead), "expired");
}

#[test]
fn a_full_log_accepts_no_new_blocks_and_forgets_no_live_tokens() {
    thread_local! {
        static TIME: Cell<u64> = const { Cell::new(NOW.0) };
    }
    let log = SpentTokens::new(2 * 4096, || UnixTime(TIME.get()));
    let serial = |issuer, number| TokenSerial { issuer, number };
    assert!(log.spend(serial(1, 0), until(10)));
    assert!(log.spend(serial(1, 32_768), until(20)));
    assert!(!log.spend(serial(1, 65_536), until(30)), "full");
    assert!(!log.spend(serial(2, 0), until(30)), "full");
    assert!(log.spend(serial(1, 32_767), until(15)), "room in an existing block");
    assert!(!log.spend(serial(1, 0), until(10)), "spent");
    TIME.set(NOW.0 + 10);
    assert!(!log.spend(serial(2, 0), until(30)), "the first block's last token has not expired");
    TIME.set(NOW.0 + 15);
    assert!(log.spend(serial(2, 0), until(30)), "the first block has expired");
    assert!(!log.spend(serial(1, 0), until(10)), "expired");
    assert!(!log.spend(serial(1, 32_768), until(20)), "spent");
}

proptest! {
    #[test]
    fn each_serial_is_spent_once(
        spends in prop::collection::vec((0u64..3, prop_oneof![0u64..100, 32_700u64..32_900]), 0..300),
    ) {
        let log = SpentTokens::new(1 << 20, now);
        let mut seen = HashSet::new();
        for (issuer, number) in spends {
            let fresh = log.spend(TokenSerial { issuer, number }, until(10));
            prop_assert_eq!(fresh, seen.insert((issuer, number)));
        }
    }

    #[test]
    fn garbage_never_opens(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert_eq!(open(&tokens(), &bytes), None);
    }
}
