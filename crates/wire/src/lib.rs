//! What TLS 1.3 and QUIC look like on the wire: cipher suites, and headers, frames and protection of
//! packets. Sans-IO, and for both directions: packet analysis opens packets, first flights seal them.
//!
//! ```text
//! frames             frames in the payload of a packet
//! protection         seals and opens packets; their keys
//!   header           the packets in a datagram, and the versions of QUIC
//!     suite          hashes, HKDF and AEADs of the cipher suites
//! ```
//!
//! # Examples
//!
//! Anybody can open a client's Initial packet: its keys follow from its connection id.
//!
//! ```
//! use firstflight_wire::{CoalescedPacket, PacketKeys, Sender, Version, coalesced_packets};
//!
//! let keys = PacketKeys::initial(Version::One, &[7; 8], Sender::Client).unwrap();
//! let mut header = vec![0xc3, 0, 0, 0, 1, 8];
//! header.extend([7; 8]);
//! header.extend([0, 0, 0x40, 4 + 20 + 16]); // no source id, no token, the length
//! header.extend(9u32.to_be_bytes());
//! let datagram = keys.seal(9, &header, &[1; 20]);
//!
//! let Some(CoalescedPacket::Protected(packet)) = coalesced_packets(&datagram).next() else {
//!     panic!()
//! };
//! let opened = keys.open(packet.bytes, packet.number_at, None).unwrap();
//! assert_eq!((opened.number, &*opened.frames), (9, &[1; 20][..]));
//! ```
//!
//! No bytes of a peer cause a panic.

mod frames;
mod header;
mod protection;
mod suite;

pub use frames::{Frame, IMMEDIATE_ACK, NEW_CONNECTION_ID, PING, RESET_STREAM, frames};
pub use header::{
    CoalescedPacket, Input, LongHeader, LongType, PacketKind, Protected, Version,
    coalesced_packets, is_long, put_varint,
};
pub use protection::{PacketKeys, Sender, Unprotected};
pub use suite::{Aead, Cipher, Suite, nonce};
