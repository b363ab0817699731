use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::BytesMut;
use firstflight_wire::{Frame, frames};
use quinn_proto::crypto::{self, CryptoError};

/// Counts the bytes of streams that were sent under 0-RTT keys.
pub(crate) type EarlyBytes = Arc<AtomicUsize>;

/// A client's 0-RTT key that counts the stream bytes it seals. quinn accepts more from the application
/// than the remembered limits and the congestion window let it send before the handshake is complete,
/// so only sealed packets show what became early data.
pub(crate) struct CountingKey {
    key: Box<dyn crypto::PacketKey>,
    count: EarlyBytes,
}

impl CountingKey {
    pub(crate) fn new(key: Box<dyn crypto::PacketKey>, count: EarlyBytes) -> Self {
        Self { key, count }
    }
}

impl crypto::PacketKey for CountingKey {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        let end = buf.len().saturating_sub(self.key.tag_len());
        let payload = buf.get(header_len..end).unwrap_or_default();
        self.count.fetch_add(stream_bytes(payload), Ordering::Relaxed);
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

/// The bytes that the STREAM frames of a packet carry (RFC 9000 section 19.8), up to the first frame
/// that is unknown.
fn stream_bytes(payload: &[u8]) -> usize {
    let length = |frame| match frame {
        Frame::Stream { data, .. } => data.len(),
        _ => 0,
    };
    frames(payload).map(length).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rfc9000_19_8_only_the_data_of_stream_frames_is_counted() {
        let mut packet = vec![0x01, 0x10, 0x20, 0x12, 0x04];
        packet.extend([0x0b, 0x00, 0x05]);
        packet.extend(b"hello");
        packet.extend([0x18, 0x01, 0x00, 0x08]);
        packet.extend([7; 24]);
        packet.extend([0x0e, 0x02, 0x40, 0x64, 0x02, 1, 2]);
        // Without a length, the data extends to the end of the packet; its zeros are not padding.
        packet.extend([0x08, 0x06, 0, 0, 0]);
        assert_eq!(stream_bytes(&packet), 10);
        // Padding in front.
        assert_eq!(stream_bytes(&[0, 0, 0, 0x0a, 0x00, 0x01, 9, 0, 0]), 1);
    }

    proptest! {
        #[test]
        fn any_payload_is_counted_without_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            prop_assert!(stream_bytes(&bytes) <= bytes.len());
        }
    }
}
