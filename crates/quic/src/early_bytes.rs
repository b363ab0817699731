use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Buf, BytesMut};
use quinn_proto::crypto::{self, CryptoError};

/// How many bytes of streams have left under 0-RTT keys.
pub(crate) type EarlyBytes = Arc<AtomicUsize>;

/// A client's 0-RTT key, which counts what it seals. Only here it is known what became early data:
/// quinn takes more from the application than the remembered limits and the congestion window let
/// it send before the handshake is complete.
pub(crate) struct Counting {
    key: Box<dyn crypto::PacketKey>,
    count: EarlyBytes,
}

impl Counting {
    pub(crate) fn new(key: Box<dyn crypto::PacketKey>, count: EarlyBytes) -> Self {
        Self { key, count }
    }
}

impl crypto::PacketKey for Counting {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        let end = buf.len().saturating_sub(self.key.tag_len());
        let payload = buf.get(header_len..end).unwrap_or_default();
        self.count.fetch_add(stream_bytes(payload).0, Ordering::Relaxed);
        self.key.encrypt(packet, buf, header_len);
    }

    fn decrypt(
        &self,
        packet: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        self.key.decrypt(packet, header, payload)
    }

    fn tag_len(&self) -> usize {
        self.key.tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.key.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.key.integrity_limit()
    }
}

/// The bytes that the STREAM frames of a packet carry (RFC 9000 section 19.8), and whether all of
/// it was understood: what follows a frame that has no place in a 0-RTT packet (section 12.5, table
/// 3) is not counted.
fn stream_bytes(mut payload: &[u8]) -> (usize, bool) {
    let mut count = 0;
    while payload.has_remaining() {
        match frame(&mut payload) {
            Some(bytes) => count += bytes,
            None => return (count, false),
        }
    }
    (count, true)
}

/// Skips one frame. Returns the stream bytes it carries.
fn frame(payload: &mut &[u8]) -> Option<usize> {
    let kind = varint(payload)?;
    let fields = match kind {
        0x00 | 0x01 => 0,
        0x10 | 0x12..=0x14 | 0x16 | 0x17 => 1,
        0x05 | 0x11 | 0x15 => 2,
        0x04 => 3,
        0x08..=0x0f => {
            // The stream's id, and the offset if bit 0x04 is set.
            varint(payload)?;
            if kind & 0x04 != 0 {
                varint(payload)?;
            }
            let length = match kind & 0x02 {
                0 => payload.len(),
                _ => usize::try_from(varint(payload)?).ok()?,
            };
            skip(payload, length)?;
            return Some(length);
        }
        0x18 => {
            // NEW_CONNECTION_ID: two numbers, the id with its length, the reset token.
            varint(payload)?;
            varint(payload)?;
            let length = usize::from(*payload.first()?);
            skip(payload, 1 + length + 16)?;
            return Some(0);
        }
        0x1a | 0x1b => {
            skip(payload, 8)?;
            return Some(0);
        }
        _ => return None,
    };
    for _ in 0..fields {
        varint(payload)?;
    }
    Some(0)
}

fn skip(payload: &mut &[u8], length: usize) -> Option<()> {
    *payload = payload.get(length..)?;
    Some(())
}

/// RFC 9000 section 16.
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let first = *bytes.first()?;
    let length = 1 << (first >> 6);
    let own = bytes.get(..length)?;
    let number = own.iter().fold(0, |number, byte| (number << 8) | u64::from(*byte));
    skip(bytes, length)?;
    // The two bits of the length are not the number's.
    Some(number & (u64::MAX >> (66 - 8 * length)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rfc9000_16_examples_of_numbers() {
        for (wire, number) in [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
        ] {
            let mut rest = wire;
            assert_eq!((varint(&mut rest), rest.len()), (Some(number), 0));
        }
    }

    #[test]
    fn rfc9000_19_8_stream_frames_are_counted_and_others_passed_over() {
        let mut packet = vec![0x01, 0x10, 0x20, 0x12, 0x04];
        packet.extend([0x0b, 0x00, 0x05]);
        packet.extend(b"hello");
        packet.extend([0x18, 0x01, 0x00, 0x08]);
        packet.extend([7; 24]);
        packet.extend([0x0e, 0x02, 0x40, 0x64, 0x02, 1, 2]);
        // Without a length it goes to the end; zeros of its data are no padding.
        packet.extend([0x08, 0x06, 0, 0, 0]);
        assert_eq!(stream_bytes(&packet), (10, true));
        // Padding in front.
        assert_eq!(stream_bytes(&[0, 0, 0, 0x0a, 0x00, 0x01, 9, 0, 0]), (1, true));
        assert_eq!(stream_bytes(&[0x06, 0x00, 0x01, 9]), (0, false));
    }

    proptest! {
        #[test]
        fn any_bytes_are_counted_or_left(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(stream_bytes(&bytes).0 <= bytes.len());
        }
    }
}
