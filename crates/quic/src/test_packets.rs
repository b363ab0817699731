//! Builds packets as clients send them, for tests and fuzzing.

use quinn_proto::crypto::{HeaderKey as _, PacketKey as _};

use crate::header::HeaderKey;
use crate::initial::initial_secrets;
use crate::packet::{PacketKey, TAG};

/// A client's Initial packet (RFC 9000 section 17.2.2) with this payload, which is padded if it is
/// too short to be protected. No source connection id; the packet number takes four bytes.
pub fn initial_packet(destination: &[u8], token: &[u8], number: u32, payload: &[u8]) -> Vec<u8> {
    let payload = [payload, &[0; 4][payload.len().min(4)..]].concat();
    let mut packet = vec![0xc3, 0, 0, 0, 1, destination.len() as u8];
    packet.extend_from_slice(destination);
    packet.push(0);
    put_length(&mut packet, token.len());
    packet.extend_from_slice(token);
    put_length(&mut packet, 4 + payload.len() + TAG);
    let number_at = packet.len();
    packet.extend_from_slice(&number.to_be_bytes());
    let header_len = packet.len();
    packet.extend_from_slice(&payload);
    packet.extend_from_slice(&[0; TAG]);
    let (client, _) = initial_secrets(destination);
    PacketKey::new(&client).encrypt(number.into(), &mut packet, header_len);
    HeaderKey::new(&client).encrypt(number_at, &mut packet);
    packet
}

/// A CRYPTO frame (RFC 9000 section 19.6).
pub fn crypto_frame(offset: usize, data: &[u8]) -> Vec<u8> {
    let mut frame = vec![6];
    put_length(&mut frame, offset);
    put_length(&mut frame, data.len());
    frame.extend_from_slice(data);
    frame
}

/// Appends a variable-length integer of two or four bytes.
fn put_length(into: &mut Vec<u8>, length: usize) {
    match u16::try_from(length) {
        Ok(length) if length < 1 << 14 => into.extend_from_slice(&(length | 1 << 14).to_be_bytes()),
        _ => into.extend_from_slice(&(length as u32 | 1 << 31).to_be_bytes()),
    }
}
