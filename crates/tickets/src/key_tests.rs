use super::*;
use crate::zone::Zone;
use proptest::prelude::*;

const ZONE: Zone = Zone::NONE;

fn ticket(content: &[u8], zone: Zone) -> Opened {
    Opened::Ticket { content: content.to_vec(), origin: zone.into() }
}

#[test]
fn seals_and_opens() {
    let key = TicketKey::random();
    for content in [&b""[..], b"session", &[0; 5000]] {
        for zone in [ZONE, Zone::named("eu-west")] {
            let sealed = key.seal(content, zone);
            assert_eq!(sealed.len(), content.len() + TICKET_OVERHEAD);
            assert_eq!(key.open(&sealed), ticket(content, zone));
            assert_eq!(TicketKey::random().open(&sealed), Opened::UnknownKey);
        }
    }
}

#[test]
fn a_reference_and_its_detached_session() {
    let key = TicketKey::random();
    let zone = Zone::named("eu-west");
    let (id, other) = ([1; 16], [2; 16]);
    for length in [0, 16, 300] {
        let ticket = key.seal_reference(&id, length, zone.into());
        assert_eq!(key.open(&ticket), Opened::Reference { id, origin: zone.into() });
        assert_eq!(ticket.len(), length.max(16) + TICKET_OVERHEAD, "room for the session");
    }
    let detached = key.seal_detached(b"session", &id, zone.into());
    assert_eq!(key.open_detached(&detached, &id), ticket(b"session", zone));
    assert_eq!(key.open_detached(&detached, &other), Opened::Forged, "swapped");
    assert_eq!(key.open(&detached), Opened::UnknownKey, "no ticket for a client to send");
    assert_eq!(key.open_detached(&key.seal(b"session", zone), &id), Opened::UnknownKey);
}

#[test]
fn rfc9000_8_1_a_token_is_no_ticket_and_no_ticket_a_token() {
    let key = TicketKey::random();
    let zone = Zone::named("eu-west");
    let token = key.seal_token(b"address", b"nonce", zone.into());
    assert_eq!(key.open_token(&token, b"nonce"), ticket(b"address", zone));
    assert_eq!(key.open_token(&token, b"other"), Opened::Forged, "bound to another nonce");
    assert_eq!(key.open(&token), Opened::UnknownKey, "no ticket");
    for kind in [SESSION, REFERENCE] {
        let mut renamed = token.clone();
        renamed[0] = kind;
        assert_eq!(key.open(&renamed), Opened::Forged);
    }
    let mut session = key.seal(b"session", zone);
    assert_eq!(key.open_token(&session, b""), Opened::UnknownKey);
    session[0] = TOKEN;
    assert_eq!(key.open_token(&session, b""), Opened::Forged);
}

#[test]
fn changing_the_kind_is_a_forgery() {
    let key = TicketKey::random();
    let mut changed = key.seal(&[1; 16], ZONE);
    changed[0] = REFERENCE;
    assert_eq!(key.open(&changed), Opened::Forged);
    let mut version_1 = key.seal(b"session", ZONE);
    version_1[0] = 1;
    assert_eq!(key.open(&version_1), Opened::UnknownKey);
}

#[test]
fn two_tickets_of_the_same_content_differ() {
    let key = TicketKey::random();
    assert_ne!(key.seal(b"session", ZONE), key.seal(b"session", ZONE));
}

#[test]
fn rfc5077_4_a_change_to_any_byte_is_detected() {
    let key = TicketKey::random();
    let ticket = key.seal(b"a session of some bytes", ZONE);
    for at in 0..ticket.len() {
        for flip in [1, 0x80, 0xff] {
            let mut changed = ticket.clone();
            changed[at] ^= flip;
            let opened = key.open(&changed);
            if at == 0 {
                // Another valid kind is forged; any other byte is an unknown format.
                assert!(matches!(opened, Opened::UnknownKey | Opened::Forged), "{opened:?}");
            } else {
                let expected = if at < 17 { Opened::UnknownKey } else { Opened::Forged };
                assert_eq!(opened, expected, "byte {at}");
            }
        }
    }
    for length in 0..ticket.len() {
        let opened = key.open(&ticket[..length]);
        assert!(matches!(opened, Opened::UnknownKey | Opened::Forged), "{length} bytes");
    }
}

#[test]
fn the_same_name_with_another_secret_is_forged() {
    let ticket = TicketKey::new([1; 16], [2; 32]).seal(b"session", ZONE);
    assert_eq!(TicketKey::new([1; 16], [3; 32]).open(&ticket), Opened::Forged);
}

#[test]
fn debug_shows_no_secret() {
    let shown = format!("{:?}", TicketKey::new([0x11; 16], [0xab; 32]));
    assert!(shown.contains("1111"), "{shown}");
    assert!(!shown.contains("ab") && !shown.contains("171"), "{shown}");
}

proptest! {
    #[test]
    fn garbage_never_opens(
        mut bytes in prop::collection::vec(any::<u8>(), 0..2 * TICKET_OVERHEAD),
        kind in prop::option::of(SESSION..=TOKEN),
    ) {
        let key = TicketKey::random();
        let kind = kind.filter(|_| bytes.len() >= TICKET_OVERHEAD);
        if let Some(kind) = kind {
            bytes[0] = kind;
            bytes[1..17].copy_from_slice(key.name());
        }
        let outcomes =
            [key.open(&bytes), key.open_detached(&bytes, &[0; 16]), key.open_token(&bytes, &[])];
        // With a valid kind, one of the three reaches the cipher.
        let forged = outcomes.iter().filter(|opened| **opened == Opened::Forged).count();
        let unknown = outcomes.iter().filter(|opened| **opened == Opened::UnknownKey).count();
        prop_assert_eq!((forged, unknown), if kind.is_some() { (1, 2) } else { (0, 3) });
    }
}
