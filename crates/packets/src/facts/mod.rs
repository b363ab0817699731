//! The facts of a connection that its packets show, in the terms of the RFCs.

mod label;
mod tls;
mod transport;

use std::net::SocketAddr;

use serde::Serialize;

use crate::Packet;
use crate::packet::Content;

pub use label::{Label, LabelKind, LabelTransport, Unlabelled};
pub use tls::{
    CertificateFacts, EarlyData, EarlyFacts, HandshakeKind, NamedGroup, TlsFacts, TlsVersion,
};
pub use transport::{
    AddressToken, BeforeValidation, Closed, FastOpen, QuicFacts, Stall, TcpFacts, TokenOrigin,
    Traffic, TransportFacts,
};

/// The facts of one connection over TCP or QUIC. Times are nanoseconds of the tap's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlowFacts {
    /// The client's address and port. A QUIC client may migrate: these are its first ones.
    pub client: SocketAddr,
    /// The server's address and port.
    pub server: SocketAddr,
    /// When the first SYN, or the client's first datagram, reached the tap.
    pub started: u64,
    /// When the last packet reached the tap.
    pub ended: u64,
    /// The transport below TLS.
    pub transport: TransportFacts,
    /// The TLS part; `None` if the client's bytes are no ClientHello.
    pub tls: Option<TlsFacts>,
    /// When the SYN-ACK was first delivered to the client (curl: `time_connect`). Over QUIC: when
    /// the server's first datagram that is neither Retry nor Version Negotiation was delivered.
    pub connected: Option<u64>,
    /// When the client could send application data without early data (False Start aside): when the
    /// server's Finished and all bytes before it were delivered. `None` if they were not, or if the
    /// secrets do not show it.
    pub setup_done: Option<u64>,
    /// The first response byte and its round trips.
    pub first_response: FirstResponse,
    /// The last response byte and its round trips.
    pub last_response: LastResponse,
    /// Plaintext bytes of the response: application data of TLS, or the response frames of HTTP/2
    /// and HTTP/3. In TLS 1.2 without secrets, derived from the record lengths of AEAD suites.
    pub response_bytes: Option<u64>,
    /// What the client sent before it received anything from the server: the bytes that an
    /// attacker can replay. Not serialized.
    #[serde(skip)]
    pub first_flight: FirstFlight,
}

impl FlowFacts {
    /// Whether `packet` belongs to this connection: its endpoints match, and it arrived between the
    /// first and the last packet, since a later connection may reuse the endpoints. Over QUIC, any
    /// of the client's addresses and connection IDs match. To match packets to many connections,
    /// group them by [`Packet::endpoints`] first.
    pub fn contains(&self, packet: &Packet<'_>) -> bool {
        if !(self.started..=self.ended).contains(&packet.arrived) {
            return false;
        }
        match (Content::from_frame(packet.frame), &self.transport) {
            (Some(Content::Tcp(segment)), TransportFacts::Tcp(_)) => {
                segment.endpoints(packet.direction) == (self.client, self.server)
            }
            (Some(Content::Udp(udp)), TransportFacts::Quic(quic)) => {
                let (client, server) = udp.endpoints(packet.direction);
                server == self.server
                    && quic.client_addresses.contains(&client)
                    && quic.has_connection_id(packet.direction, udp.payload)
            }
            _ => false,
        }
    }

    /// Round trips from the first packet to the first response byte. Returns `None` if they are not
    /// known or there was no response.
    pub fn round_trips(&self) -> Option<u32> {
        match self.first_response {
            FirstResponse::Seen { round_trips, .. } => Some(round_trips),
            FirstResponse::None | FirstResponse::Unknown(_) => None,
        }
    }
}

/// Why a fact is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Unknown {
    /// The key log has no secret for this connection.
    #[error("the key log lacks this connection's secrets; log them for both sides' traffic")]
    NoSecrets,
    /// The key log's secrets do not decrypt this connection's records.
    #[error(
        "the key log's secrets do not decrypt this connection's records; use the key log of this run"
    )]
    WrongSecrets,
    /// The cipher suite is not supported.
    #[error("unsupported cipher suite; use AES-GCM or ChaCha20-Poly1305")]
    CipherSuite,
    /// Packets are missing, truncated, or exceeded the limits.
    #[error("packets are missing from the capture; raise its snap length, buffer or limits")]
    CaptureGap,
    /// The bytes are not well-formed TLS.
    #[error("the bytes are not well-formed TLS; check that the port speaks TLS")]
    NotTls,
    /// The connection ended before the server sent the message in question.
    #[error("the connection ended in the middle of the handshake; see which side closed it")]
    Ended,
    /// The server never responded to the ClientHello.
    #[error("the server sent no ServerHello; check that it accepts the client's version")]
    NoServerHello,
}

/// What a client sent before it received anything from the server: over TCP the payload before the
/// server's first payload, over QUIC the datagrams before the server's first. An attacker can
/// resend these bytes without any key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FirstFlight {
    /// TCP payload in stream order.
    Stream(Vec<u8>),
    /// UDP payloads in the order in which they reached the tap, without those that the capture
    /// truncated.
    Datagrams(Vec<Vec<u8>>),
}

impl FirstFlight {
    /// Whether the client sent nothing.
    pub fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// Its length in bytes, without the headers of UDP, TCP and the layers below.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Stream(stream) => stream.len(),
            Self::Datagrams(datagrams) => datagrams.iter().map(Vec::len).sum(),
        }
    }

    /// The bytes of a TCP connection. Returns `None` for a QUIC connection.
    pub fn stream(&self) -> Option<&[u8]> {
        match self {
            Self::Stream(stream) => Some(stream),
            Self::Datagrams(_) => None,
        }
    }

    /// The datagrams of a QUIC connection. Returns `None` for a TCP connection.
    pub fn datagrams(&self) -> Option<&[Vec<u8>]> {
        match self {
            Self::Stream(_) => None,
            Self::Datagrams(datagrams) => Some(datagrams),
        }
    }
}

/// The first response byte.
///
/// Over TCP it is the first byte of the server's first record with application data. TLS 1.3
/// records have to be decrypted to tell, and empty ones do not count; before TLS 1.3 the record's
/// outer type after the server's ChangeCipherSpec suffices. Over HTTP/2 (by ALPN, decrypted) it is
/// the first record with a HEADERS or DATA frame of a stream that the client opened, since a server
/// sends its SETTINGS without a request.
///
/// # Round trips
///
/// The round trips are the causal depth of the packet that first carried that byte. A client's
/// packet is one deeper than the deepest packet of the server that was *delivered* to the client
/// before it *arrived* at the tap. A server's packet is as deep as the deepest packet of the client
/// that was delivered to the server before it arrived. Only SYNs and packets with payload count.
/// A retransmission keeps the depth of the original; data of a SYN that the server did not accept
/// counts when it is sent again. Server packets that carry only TLS 1.3 tickets do not deepen what
/// follows, because no client waits for them (RFC 8446 section 4.6.1).
///
/// # QUIC
///
/// The first response byte is the server's first byte on a bidirectional stream that the client
/// opened; over HTTP/3, of the first HEADERS or DATA frame on it. The packets that count are
/// datagrams: those with CRYPTO or STREAM data, Retry and Version Negotiation, and those
/// acknowledgements of the client that the server waits for. A server waits when the client's
/// address is not validated and three times the received bytes are sent (RFC 9000 section 8.1), or
/// when its handshake flight is longer than the initial congestion window. Data that was sent
/// before a Retry, and early data that was refused, counts when it is sent again.
///
/// # Accuracy
///
/// The count is exact unless a side pauses within a flight for a whole round trip, by itself or
/// because of loss: what it sends then may be attributed to what arrived meanwhile. Mark samples
/// with retransmissions instead of averaging them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FirstResponse {
    /// It was seen.
    Seen {
        /// Round trips from the first packet to it.
        round_trips: u32,
        /// When it first reached the tap, in nanoseconds.
        arrived: u64,
        /// When it and all bytes before it had been delivered to the client, over QUIC the
        /// server's handshake messages as well, in nanoseconds; `None` if they never were.
        delivered: Option<u64>,
    },
    /// The server sent no response before the connection or the capture ended.
    None,
    /// The capture or the secrets do not show it.
    Unknown(Unknown),
}

/// The last response byte: the last byte of the last record with response data, as defined at
/// [`FirstResponse`]. Tickets and alerts are not response data.
///
/// Its round trips are counted in the same way, except that after the first response byte the
/// client's acknowledgements of response data count like data, because a server with a full
/// congestion window waits for them. So the last byte is deeper than the first if the response
/// needs several windows, or if the server pauses for a round trip while it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LastResponse {
    /// It was seen. On a connection that is still open, this is the last byte so far.
    Seen {
        /// Round trips from the first packet to it.
        round_trips: u32,
        /// When it first reached the tap, in nanoseconds.
        arrived: u64,
        /// When it had been delivered, as for the first byte.
        delivered: Option<u64>,
    },
    /// The server sent no response before the connection or the capture ended.
    None,
    /// The capture or the secrets do not show it.
    Unknown(Unknown),
}
