//! Any text as a ticket-key file: read, or refused in one sentence that shows no secret.
#![no_main]

use firstflight_tickets::{KeyFile, Opened, UnixTime, Zone};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match KeyFile::new("keys.toml").parse(text) {
        Ok(ring) => {
            let now = UnixTime(1_790_000_000);
            let _ = (ring.warnings(now), ring.previous(now), ring.next(now), ring.due());
            let ticket = ring.seal(b"session", Zone::NONE, now);
            let opened = Opened::Ticket { content: b"session".to_vec(), origin: Zone::NONE.into() };
            assert_eq!(ring.open(&ticket, now), opened);
            let mut turned = ring;
            turned.rotate(now);
            turned.advance(now);
        }
        Err(error) => {
            let sentence = error.to_string();
            assert!(sentence.starts_with("keys.toml line "), "{sentence}");
            assert!(!sentence.contains('\n'), "{sentence}");
            for secret in text.split(|c: char| !c.is_ascii_hexdigit()) {
                assert!(secret.len() < 16 || !sentence.contains(secret), "{sentence}");
            }
        }
    }
});
