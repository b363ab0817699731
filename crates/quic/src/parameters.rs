//! Encoded transport parameters: those that early data depends on, and the limit on connection IDs.

use boring::sha::Sha256;
use firstflight_wire::Input;

/// The parameters that a server may not lower for a client that sends early data based on an earlier
/// connection (RFC 9000 section 7.4.1, RFC 9221 section 3, RFC 9287 section 3.1). All
/// other parameters are set anew on each connection, or do not bind.
const BINDING: [u64; 9] = [
    0x04, // initial_max_data
    0x05, // initial_max_stream_data_bidi_local
    0x06, // initial_max_stream_data_bidi_remote
    0x07, // initial_max_stream_data_uni
    0x08, // initial_max_streams_bidi
    0x09, // initial_max_streams_uni
    ACTIVE_CONNECTION_ID_LIMIT,
    0x20,   // max_datagram_frame_size
    0x2ab2, // grease_quic_bit
];

/// The early-data context of a server with these transport parameters and these settings of its
/// application protocol: what must be unchanged when a ticket is used. BoringSSL compares whole
/// contexts, so early data is also refused after limits were raised. A digest, since each ticket
/// carries it.
pub(crate) fn early_data_context(wire: &[u8], settings: &[u8]) -> Vec<u8> {
    let mut binding = Vec::with_capacity(BINDING.len());
    let mut rest = wire;
    while let Some((id, value, after)) = parameter(rest) {
        if BINDING.contains(&id) {
            binding.push((id, value));
        }
        rest = after;
    }
    binding.sort_unstable();
    let mut digest = Sha256::new();
    digest.update(b"firstflight 1");
    for (id, value) in binding {
        digest.update(&id.to_be_bytes());
        digest.update(&(value.len() as u64).to_be_bytes());
        digest.update(value);
    }
    digest.update(settings);
    digest.finish().to_vec()
}

/// Maximum number of connection IDs that a peer holds at once: one from the handshake, and one for
/// migration to another path (RFC 9000 section 9.5). A retired ID is replaced.
pub(crate) const MAX_CONNECTION_IDS: u8 = 2;

/// A peer's transport parameters with at most `limit` connection IDs to issue to it. An endpoint may
/// issue fewer than it is allowed to (RFC 9000 section 5.1.1), but quinn always issues as many as it
/// can, in a datagram of their own.
pub(crate) fn with_connection_id_limit(wire: &[u8], limit: u8) -> Vec<u8> {
    let mut changed = Vec::with_capacity(wire.len());
    let mut rest = wire;
    while let Some((id, value, after)) = parameter(rest) {
        match integer(value) {
            Some(stated) if id == ACTIVE_CONNECTION_ID_LIMIT && stated > limit.into() => {
                // A limit below 64 is encoded in one byte.
                changed.extend([ACTIVE_CONNECTION_ID_LIMIT as u8, 1, limit]);
            }
            _ => changed.extend(&rest[..rest.len() - after.len()]),
        }
        rest = after;
    }
    changed.extend(rest);
    changed
}

const ACTIVE_CONNECTION_ID_LIMIT: u64 = 0x0e;

/// The first parameter (RFC 9000 section 18): its id, its value, and the bytes after it.
fn parameter(wire: &[u8]) -> Option<(u64, &[u8], &[u8])> {
    let mut input = Input(wire);
    Some((input.varint()?, input.varint_vec()?, input.0))
}

/// The value of an integer parameter.
fn integer(value: &[u8]) -> Option<u64> {
    let mut input = Input(value);
    input.varint().filter(|_| input.0.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc9000_7_4_1_the_context_depends_on_binding_parameters_in_any_order() {
        let limits = |wire: &[u8]| early_data_context(wire, b"");
        let some = limits(&[0x04, 0x02, 0x44, 0x00, 0x08, 0x01, 0x10]);
        assert_eq!(some, limits(&[0x08, 0x01, 0x10, 0x04, 0x02, 0x44, 0x00]));
        // initial_source_connection_id and max_ack_delay.
        assert_eq!(
            some,
            limits(&[0x0f, 0x01, 0xaa, 0x08, 0x01, 0x10, 0x04, 0x02, 0x44, 0x00, 0x0b, 0x01, 0x05])
        );
        assert_ne!(some, limits(&[0x04, 0x02, 0x44, 0x00, 0x08, 0x01, 0x0f]));
        assert_ne!(some, limits(&[0x04, 0x02, 0x44, 0x00]));
    }

    #[test]
    fn rfc9000_5_1_1_only_a_higher_limit_on_connection_ids_is_lowered() {
        let lowered = |wire: &[u8]| with_connection_id_limit(wire, 2);
        let others = [&[0x04, 0x02, 0x44, 0x00][..], &[0x0f, 0x01, 0xaa], &[]];
        for (limit, expected) in [
            (&[0x0e, 0x01, 0x08][..], &[0x0e, 0x01, 0x02][..]),
            (&[0x0e, 0x02, 0x40, 0x40], &[0x0e, 0x01, 0x02]),
            (&[0x0e, 0x01, 0x02], &[0x0e, 0x01, 0x02]),
            // Invalid limits are left for quinn to refuse.
            (&[0x0e, 0x01, 0x01], &[0x0e, 0x01, 0x01]),
            (&[0x0e, 0x02, 0x08, 0x08], &[0x0e, 0x02, 0x08, 0x08]),
            (&[0x0e, 0x04, 0x08], &[0x0e, 0x04, 0x08]),
        ] {
            for other in others {
                let wire = [other, limit].concat();
                assert_eq!(lowered(&wire), [other, expected].concat(), "{wire:?}");
            }
        }
    }

    #[test]
    fn rfc9114_7_2_4_2_the_context_depends_on_the_protocols_settings() {
        let wire = [0x04, 0x02, 0x44, 0x00];
        assert_ne!(early_data_context(&wire, b"a"), early_data_context(&wire, b"b"));
    }
}
