//! The order of the keys, for each server.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use super::exported_key::ExportedKey;
use crate::key::TicketKey;
use crate::ring::Ring;
use crate::schedule::UnixTime;

/// The ring's keys for nginx, each for its own file (`ssl_session_ticket_key`): the first seals,
/// all open. The order is the current key, the following ones, then the previous ones from new to
/// old.
pub fn nginx(ring: &Ring, now: UnixTime) -> Vec<ExportedKey> {
    first_seals(ring, now, "nginx")
}

/// The ring's keys for HAProxy (`tls-ticket-keys`), one per line in base64; the last but one seals.
/// The order is the previous keys from old to new, then the current and the next one.
///
/// HAProxy needs at least three keys, and by default keeps the last three. If the ring has fewer,
/// unused keys fill the missing places.
pub fn haproxy(ring: &Ring, now: UnixTime) -> Zeroizing<String> {
    let derive = |key: &TicketKey| ExportedKey::derive(key, "HAProxy");
    let filler = |context| ExportedKey::derive(&ring.current(now).key, context);
    let mut keys: Vec<_> = ring.previous(now).iter().map(|dated| derive(&dated.key)).collect();
    if keys.is_empty() {
        keys.push(filler("HAProxy, no key before"));
    }
    keys.push(derive(&ring.current(now).key));
    keys.push(match ring.next(now) {
        Some(next) => derive(&next.key),
        None => filler("HAProxy, no key after"),
    });
    let mut text = text_buffer(keys.len());
    for key in &keys {
        STANDARD.encode_string(key.as_bytes(), &mut text);
        text.push('\n');
    }
    text
}

/// The ring's keys for Envoy, as the secret that its SDS reads from a file and watches: JSON, which
/// is also YAML. Its name is `firstflight_tickets`; the first key seals, all open.
pub fn envoy(ring: &Ring, now: UnixTime) -> Zeroizing<String> {
    let keys = first_seals(ring, now, "Envoy");
    let mut text = text_buffer(keys.len());
    text.push_str(
        "{\n  \"resources\": [{\n    \"@type\": \"type.googleapis.com/envoy.extensions.\
         transport_sockets.tls.v3.Secret\",\n    \"name\": \"firstflight_tickets\",\n    \
         \"session_ticket_keys\": {\n      \"keys\": [",
    );
    for (at, key) in keys.iter().enumerate() {
        text.push_str(if at == 0 { "\n" } else { ",\n" });
        text.push_str("        {\"inline_bytes\": \"");
        STANDARD.encode_string(key.as_bytes(), &mut text);
        text.push_str("\"}");
    }
    text.push_str("\n      ]\n    }\n  }]\n}\n");
    text
}

fn first_seals(ring: &Ring, now: UnixTime, purpose: &str) -> Vec<ExportedKey> {
    let current = ring.current(now);
    // More than one may follow: an extra key, and the next period's.
    let later = ring.keys().iter().filter(|dated| dated.not_before > current.not_before);
    std::iter::once(current)
        .chain(later)
        .chain(ring.previous(now).iter().rev())
        .map(|dated| ExportedKey::derive(&dated.key, purpose))
        .collect()
}

/// A text buffer of the full size: growing would leave copies of secrets in memory.
fn text_buffer(keys: usize) -> Zeroizing<String> {
    Zeroizing::new(String::with_capacity(512 + keys * 160))
}
