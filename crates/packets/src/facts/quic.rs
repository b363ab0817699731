//! What was seen of QUIC (RFC 9000).

use std::net::SocketAddr;

use serde::Serialize;

use super::{Stall, Traffic};
use crate::Direction;
use crate::quic::Long;

/// What was seen of a QUIC connection. What lies in protected packets is known as far as the
/// secrets open them: `unopened` counts the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QuicFacts {
    /// The version that the server's packets have; before there are any, the client's.
    pub version: Option<u32>,
    /// Version Negotiation packets delivered to the client (RFC 9000 section 6).
    pub version_negotiations: u32,
    /// Retry packets with a good integrity tag (RFC 9001 section 5.8) delivered to the client.
    pub retries: u32,
    /// The address token of the client's last Initial packet that had one.
    pub token: Option<AddressToken>,
    /// NEW_TOKEN frames that the server sent, copies left out.
    pub new_tokens: u32,
    /// The length of the token in the last of them, in bytes.
    pub new_token_bytes: Option<u32>,
    /// What the client sent as far as the tap, dropped datagrams included. Packets are datagrams.
    pub to_server: Traffic,
    /// What the server sent as far as the tap, dropped datagrams included.
    pub to_client: Traffic,
    /// The client's largest UDP payload, in bytes.
    pub largest_to_server: u32,
    /// The server's largest UDP payload, in bytes.
    pub largest_to_client: u32,
    /// What went either way before the client had shown that it has its address.
    pub before_validation: BeforeValidation,
    /// Datagrams that the tap did not deliver.
    pub dropped: u32,
    /// What the first of them that counts, one with CRYPTO or STREAM data, held up.
    pub stall: Option<Stall>,
    /// The client's packets with CRYPTO or STREAM data that it had sent before. Data of early data
    /// that was refused, or sent before a Retry, is none when it comes again.
    pub client_retransmissions: u32,
    /// The same for the server's packets.
    pub server_retransmissions: u32,
    /// Packets of both sides with nothing but PING: probes after a timeout (RFC 9002 section
    /// 6.2.4), or a keep-alive. Those that are larger than all before them are no such probes but
    /// try the path's MTU.
    pub probes: u32,
    /// Packets of both sides that reached the tap behind a later one of their number space.
    pub out_of_order: u32,
    /// Packets that reached the tap twice; nothing of their copies is counted elsewhere, except in
    /// the traffic.
    pub duplicates: u32,
    /// Key updates of the client (RFC 9001 section 6).
    pub client_key_updates: u32,
    /// Key updates of the server.
    pub server_key_updates: u32,
    /// How often the client's address changed, probes of a path left out (RFC 9000 section 9).
    pub migrations: u32,
    /// All addresses of the client, in the order of their first use.
    pub client_addresses: Vec<SocketAddr>,
    /// The client's first CONNECTION_CLOSE.
    pub client_closed: Option<Closed>,
    /// The server's first CONNECTION_CLOSE.
    pub server_closed: Option<Closed>,
    /// Packets that no secret opened.
    pub unopened: u32,
    /// The connection IDs by which each side's packets are known, by `Direction`.
    #[serde(skip)]
    pub(crate) connection_ids: [Vec<Vec<u8>>; 2],
}

impl QuicFacts {
    /// Whether a CONNECTION_CLOSE of either side was seen.
    pub fn is_closed(&self) -> bool {
        self.client_closed.is_some() || self.server_closed.is_some()
    }

    /// Whether a datagram's connection ID is one of this connection, or there is none to go by.
    pub(crate) fn leads_here(&self, direction: Direction, datagram: &[u8]) -> bool {
        let ids = &self.connection_ids[direction as usize];
        match Long::read(datagram) {
            Some(long) => ids.iter().any(|id| id == long.destination) || ids.is_empty(),
            None => {
                let behind = datagram.get(1..).unwrap_or_default();
                ids.iter().any(|id| behind.starts_with(id)) || ids.is_empty()
            }
        }
    }
}

/// An address token in an Initial packet (RFC 9000 section 8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct AddressToken {
    /// Where the client has it from.
    pub origin: TokenOrigin,
    /// Its length in bytes.
    pub bytes: u32,
}

/// Where a token comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenOrigin {
    /// From a Retry packet of this connection.
    Retry,
    /// From a NEW_TOKEN frame of an earlier one.
    NewToken,
}

/// UDP payload before the server got a Handshake packet of the client, which is what validates an
/// address where there is no token (RFC 9000 section 8.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BeforeValidation {
    /// Bytes that had been delivered to the server.
    pub received: u64,
    /// Bytes that the server had sent.
    pub sent: u64,
    /// The most that it ever was beyond three times what it had received by then, in bytes. More
    /// than 0 means that a token, or nothing, let it.
    pub beyond_limit: u64,
}

/// A CONNECTION_CLOSE frame (RFC 9000 section 19.19).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Closed {
    /// The error's number.
    pub code: u64,
    /// The application closed (frame type 0x1d), not the transport (0x1c).
    pub by_application: bool,
    /// When it reached the tap, in nanoseconds.
    pub arrived: u64,
}
