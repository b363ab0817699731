//! The facts of the transport below TLS: TCP or QUIC (RFC 9000).

use std::net::SocketAddr;

use serde::Serialize;

use super::FlowFacts;
use crate::{Direction, FastOpenOption, TcpOptions};
use firstflight_wire::LongHeader;

/// The facts of the transport below TLS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TransportFacts {
    /// A TCP connection.
    Tcp(TcpFacts),
    /// A QUIC connection.
    Quic(Box<QuicFacts>),
}

impl TransportFacts {
    /// The facts of a TCP connection. Returns `None` for QUIC.
    pub fn tcp(&self) -> Option<&TcpFacts> {
        match self {
            Self::Tcp(tcp) => Some(tcp),
            Self::Quic(_) => None,
        }
    }

    /// The facts of a QUIC connection. Returns `None` for TCP.
    pub fn quic(&self) -> Option<&QuicFacts> {
        match self {
            Self::Tcp(_) => None,
            Self::Quic(quic) => Some(quic),
        }
    }

    /// Packets (over QUIC: datagrams) that the tap dropped.
    pub fn dropped(&self) -> u32 {
        match self {
            Self::Tcp(tcp) => tcp.dropped,
            Self::Quic(quic) => quic.dropped,
        }
    }

    /// Retransmitted packets of both sides, SYNs included.
    pub fn retransmissions(&self) -> u32 {
        match self {
            // SYNs are among the client's.
            Self::Tcp(tcp) => tcp.client_retransmissions + tcp.server_retransmissions,
            Self::Quic(quic) => quic.client_retransmissions + quic.server_retransmissions,
        }
    }

    /// Packets of both sides that reached the tap after a later one.
    pub fn out_of_order(&self) -> u32 {
        match self {
            Self::Tcp(tcp) => tcp.out_of_order,
            Self::Quic(quic) => quic.out_of_order,
        }
    }

    /// The delay that the first dropped packet caused; see [`Stall`].
    pub fn stall(&self) -> Option<Stall> {
        match self {
            Self::Tcp(tcp) => tcp.stall,
            Self::Quic(quic) => quic.stall,
        }
    }

    /// What the client sent, as seen at the tap.
    pub fn to_server(&self) -> Traffic {
        match self {
            Self::Tcp(tcp) => tcp.to_server,
            Self::Quic(quic) => quic.to_server,
        }
    }

    /// What the server sent, as seen at the tap.
    pub fn to_client(&self) -> Traffic {
        match self {
            Self::Tcp(tcp) => tcp.to_client,
            Self::Quic(quic) => quic.to_client,
        }
    }
}

impl FlowFacts {
    /// The TCP part; `None` for a QUIC connection.
    pub fn tcp(&self) -> Option<&TcpFacts> {
        self.transport.tcp()
    }

    /// The QUIC part; `None` for a TCP connection.
    pub fn quic(&self) -> Option<&QuicFacts> {
        self.transport.quic()
    }
}

/// The facts of a TCP connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TcpFacts {
    /// Whether data in the SYN was sent and accepted.
    pub fast_open: FastOpen,
    /// The Fast Open option of the client's SYN.
    pub fast_open_option: Option<FastOpenOption>,
    /// The options of the client's first SYN.
    pub client_options: TcpOptions,
    /// The options of the server's first SYN-ACK; `None` if there was none.
    pub server_options: Option<TcpOptions>,
    /// Bytes of payload in the client's SYN; the maximum if there are several SYNs.
    pub syn_data: u32,
    /// How many of them the SYN-ACK acknowledged.
    pub syn_data_acknowledged: u32,
    /// SYNs of the client beyond the first, which are among its retransmissions.
    pub syn_retransmissions: u32,
    /// Whether a SYN-ACK was seen.
    pub syn_ack: bool,
    /// Segments of the client with data, SYN or FIN that the tap had already seen.
    pub client_retransmissions: u32,
    /// The same for the server's segments.
    pub server_retransmissions: u32,
    /// Segments of both sides that reached the tap after a later one.
    pub out_of_order: u32,
    /// Packets that the tap dropped.
    pub dropped: u32,
    /// The delay that the first dropped SYN or packet with payload caused.
    pub stall: Option<Stall>,
    /// What the client sent, as seen at the tap, dropped packets included.
    pub to_server: Traffic,
    /// What the server sent, as seen at the tap, dropped packets included.
    pub to_client: Traffic,
    /// The client sent a FIN.
    pub client_fin: bool,
    /// The server sent a FIN.
    pub server_fin: bool,
    /// The client sent a RST.
    pub client_rst: bool,
    /// The server sent a RST.
    pub server_rst: bool,
}

/// The traffic in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Packets, acknowledgements included.
    pub packets: u32,
    /// Bytes of frames from the Ethernet header on, including what a snap length cut off.
    pub wire_bytes: u64,
    /// Bytes of TCP or UDP payload, retransmissions included.
    pub payload_bytes: u64,
}

impl Traffic {
    /// Counts a packet by the lengths of its frame and of its payload.
    pub(crate) fn add(&mut self, frame_len: u32, payload_len: u32) {
        self.packets += 1;
        self.wire_bytes += u64::from(frame_len);
        self.payload_bytes += u64::from(payload_len);
    }

    /// Removes a packet that was counted.
    pub(crate) fn remove(&mut self, frame_len: u32, payload_len: u32) {
        self.packets -= 1;
        self.wire_bytes -= u64::from(frame_len);
        self.payload_bytes -= u64::from(payload_len);
    }
}

/// A packet that the tap dropped, and when its content was delivered after all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Stall {
    /// Its direction.
    pub direction: Direction,
    /// When it reached the tap, in nanoseconds.
    pub dropped: u64,
    /// When its first byte (of a SYN: the SYN itself) was delivered in another packet; `None` if
    /// it never was. A client that gives up TCP Fast Open repeats the SYN without its data.
    pub recovered: Option<u64>,
}

/// Whether TCP Fast Open was used (RFC 7413).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FastOpen {
    /// The SYN carried data, and the SYN-ACK acknowledged it.
    Used,
    /// The SYN carried data, which had to be sent again.
    FellBack,
    /// The SYN carried no data.
    #[default]
    Off,
}

/// The facts of a QUIC connection. Protected packets count as far as the secrets decrypt them;
/// `unopened` counts the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QuicFacts {
    /// The version of the server's packets, or of the client's if the server sent none.
    pub version: Option<u32>,
    /// Version Negotiation packets delivered to the client (RFC 9000 section 6).
    pub version_negotiations: u32,
    /// Retry packets with a valid integrity tag (RFC 9001 section 5.8) delivered to the client.
    pub retries: u32,
    /// The address token of the client's last Initial packet that had one.
    pub token: Option<AddressToken>,
    /// NEW_TOKEN frames that the server sent, without copies.
    pub new_tokens: u32,
    /// The length of the token in the last NEW_TOKEN frame, in bytes.
    pub new_token_bytes: Option<u32>,
    /// What the client sent, as seen at the tap, dropped datagrams included. Packets are datagrams.
    pub to_server: Traffic,
    /// What the server sent, as seen at the tap, dropped datagrams included.
    pub to_client: Traffic,
    /// The client's largest UDP payload, in bytes.
    pub largest_to_server: u32,
    /// The server's largest UDP payload, in bytes.
    pub largest_to_client: u32,
    /// The traffic of both directions before the client's address was validated.
    pub before_validation: BeforeValidation,
    /// Datagrams that the tap dropped.
    pub dropped: u32,
    /// The delay that the first dropped datagram with CRYPTO or STREAM data caused.
    pub stall: Option<Stall>,
    /// The client's packets with CRYPTO or STREAM data that it had sent before. Data that the
    /// client has to repeat after a Retry or after refused early data does not count.
    pub client_retransmissions: u32,
    /// The same for the server's packets.
    pub server_retransmissions: u32,
    /// How many retransmissions of both sides no response could have prevented: even a response
    /// sent at once to the first copy would have come later. They come from a timer shorter than
    /// the path's round-trip time, not from loss or delay.
    pub premature_retransmissions: u32,
    /// Packets of both sides that carry only PING: probes after a timeout (RFC 9002 section 6.2.4),
    /// or keep-alives. Those larger than all packets before them probe the path's MTU instead and
    /// do not count.
    pub probes: u32,
    /// Packets of both sides that reached the tap after a later one of their number space.
    pub out_of_order: u32,
    /// Packets that reached the tap twice. Their copies count nowhere else except in the traffic.
    pub duplicates: u32,
    /// Key updates of the client (RFC 9001 section 6).
    pub client_key_updates: u32,
    /// Key updates of the server.
    pub server_key_updates: u32,
    /// How often the client's address changed, without path probes (RFC 9000 section 9).
    pub migrations: u32,
    /// All addresses of the client, in the order of their first use.
    pub client_addresses: Vec<SocketAddr>,
    /// The client's first CONNECTION_CLOSE.
    pub client_closed: Option<Closed>,
    /// The server's first CONNECTION_CLOSE.
    pub server_closed: Option<Closed>,
    /// Packets that no secret decrypts.
    pub unopened: u32,
    /// The destination connection IDs of each direction's packets, indexed by `Direction`.
    #[serde(skip)]
    pub(crate) connection_ids: [Vec<Vec<u8>>; 2],
}

impl QuicFacts {
    /// Whether a CONNECTION_CLOSE of either side was seen.
    pub fn is_closed(&self) -> bool {
        self.client_closed.is_some() || self.server_closed.is_some()
    }

    /// Whether a datagram's connection ID belongs to this connection, or connection IDs are empty.
    pub(crate) fn has_connection_id(&self, direction: Direction, datagram: &[u8]) -> bool {
        let ids = &self.connection_ids[direction as usize];
        match LongHeader::read(datagram) {
            Some(long) => ids.iter().any(|id| id == long.destination) || ids.is_empty(),
            None => {
                let after_first_byte = datagram.get(1..).unwrap_or_default();
                ids.iter().any(|id| after_first_byte.starts_with(id)) || ids.is_empty()
            }
        }
    }
}

/// An address token in an Initial packet (RFC 9000 section 8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct AddressToken {
    /// Where the client got it.
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
    /// From a NEW_TOKEN frame of an earlier connection.
    NewToken,
}

/// UDP payload before the server received a Handshake packet of the client, which validates the
/// client's address if there is no token (RFC 9000 section 8.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BeforeValidation {
    /// Bytes that had been delivered to the server.
    pub received: u64,
    /// Bytes that the server had sent.
    pub sent: u64,
    /// By how many bytes the server exceeded three times what it had received, at most. More than 0
    /// means that a token permitted it, or that the server broke the rule.
    pub beyond_limit: u64,
}

/// A CONNECTION_CLOSE frame (RFC 9000 section 19.19).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Closed {
    /// The error's number.
    pub code: u64,
    /// Whether the application closed (frame type 0x1d) or the transport (0x1c).
    pub by_application: bool,
    /// When it reached the tap, in nanoseconds.
    pub arrived: u64,
}
