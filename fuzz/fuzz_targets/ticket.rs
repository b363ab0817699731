//! Any bytes as a ticket: none opens that was not sealed by a key of the ring that still lives.
#![no_main]

use std::time::Duration;

use firstflight_tickets::{DatedKey, Opened, Ring, Schedule, TicketKey, UnixTime, Zone};
use libfuzzer_sys::fuzz_target;

const START: u64 = 1_790_000_000;
const HOUR: u64 = 3600;

fuzz_target!(|input: (u8, u32, &[u8], &[u8])| {
    let (how, late, bytes, edit) = input;
    let ring = ring();
    let now = UnixTime(START + u64::from(late));
    let (ticket, genuine) = match how % 3 {
        0 => (bytes.to_vec(), false),
        // A ticket's head in front, so that the cipher is reached.
        1 => ([&[how % 10], &[how / 3 % 4; 16][..], bytes].concat(), false),
        _ => spoilt(&ring.seal(bytes, Zone::NONE, UnixTime(START)), edit),
    };
    match ring.open(&ticket, now) {
        Opened::Ticket { content, origin } => {
            assert!(genuine, "a forged ticket was opened");
            assert_eq!((&content[..], origin), (bytes, Zone::NONE.into()));
        }
        Opened::Reference { .. } => panic!("a forged reference was opened"),
        // Its key was current until START + 1 h, and the ticket lived no longer than 2 h.
        Opened::UnknownKey => assert!(!genuine || u64::from(late) >= 2 * HOUR),
        Opened::Forged => assert!(!genuine),
    }
});

/// The ticket with some bytes changed, and whether it is still the same.
fn spoilt(ticket: &[u8], edit: &[u8]) -> (Vec<u8>, bool) {
    let mut spoilt = ticket.to_vec();
    for change in edit.chunks_exact(3) {
        let at = usize::from(u16::from_be_bytes([change[0], change[1]]));
        match spoilt.len() {
            0 => {}
            length if change[2] == 0 => spoilt.truncate(at % length),
            length => spoilt[at % length] ^= change[2],
        }
    }
    let same = spoilt == ticket;
    (spoilt, same)
}

fn ring() -> Ring {
    let key = |n: u8, not_before| DatedKey {
        key: TicketKey::new([n; 16], [n + 100; 32]),
        not_before: UnixTime(not_before),
    };
    let keys = vec![key(0, START - HOUR), key(1, START), key(2, START + HOUR)];
    let schedule = Schedule::new(Duration::from_secs(HOUR), Duration::from_secs(2 * HOUR));
    Ring::new(keys, schedule.expect("a schedule")).expect("a ring")
}
