//! What a connection's packets show, in the terms of the RFCs.

mod first_flight;
mod label;
mod quic;
mod response;
mod tcp;
mod tls;
mod transport;

use std::net::SocketAddr;

use serde::Serialize;

pub use first_flight::FirstFlight;
pub use label::{Label, LabelKind, LabelTransport, Unlabelled};
pub use quic::{AddressToken, BeforeValidation, Closed, QuicFacts, TokenOrigin};
pub use response::{FirstResponse, LastResponse};
pub use tcp::{FastOpen, Stall, TcpFacts, Traffic};
pub use tls::{CertificateFacts, EarlyData, EarlyFacts, Kind, NamedGroup, TlsFacts, TlsVersion};
pub use transport::TransportFacts;

use crate::Packet;
use crate::packet::Content;

/// Everything that was seen of one connection, over TCP or QUIC. Times are nanoseconds of the tap's
/// clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlowFacts {
    /// The client's address and port; over QUIC those that it started with.
    pub client: SocketAddr,
    /// The server's address and port.
    pub server: SocketAddr,
    /// When the first SYN, or the client's first datagram, reached the tap.
    pub started: u64,
    /// When the last packet reached the tap.
    pub ended: u64,
    /// What was seen below TLS.
    pub transport: TransportFacts,
    /// The TLS part; `None` if the client's bytes are no ClientHello.
    pub tls: Option<TlsFacts>,
    /// When the SYN-ACK was first delivered to the client: what curl calls connect. Over QUIC,
    /// when the server's first datagram was that is neither Retry nor Version Negotiation.
    pub connected: Option<u64>,
    /// When the client could send application data without early data, False Start aside: the
    /// delivery to it of the server's Finished and all before it. `None` if that was not
    /// delivered or cannot be told.
    pub setup_done: Option<u64>,
    /// The first response byte, and what it cost in round trips.
    pub first_response: FirstResponse,
    /// The last response byte, and what it cost in round trips.
    pub last_response: LastResponse,
    /// Bytes of plain text between the two: application data of TLS, over HTTP/2 the frames of
    /// answers, and over HTTP/3 likewise. Decrypted, or in TLS 1.2 by the length where the cipher
    /// suite is an AEAD one.
    pub response_bytes: Option<u64>,
    /// What the client sent before anything of the server was delivered to it: what a replaying
    /// attacker would send again. Not serialized.
    #[serde(skip)]
    pub first_flight: FirstFlight,
}

impl FlowFacts {
    /// Whether `packet` is one of this connection: of its ends and within its time, for a later
    /// connection may have the same ends; over QUIC from any of the client's addresses, and to one
    /// of its connection IDs. Where many connections are looked for, sort the packets by
    /// [`Packet::ends`] first.
    pub fn owns(&self, packet: &Packet<'_>) -> bool {
        if !(self.started..=self.ended).contains(&packet.arrived) {
            return false;
        }
        match (Content::from_frame(packet.frame), &self.transport) {
            (Some(Content::Tcp(segment)), TransportFacts::Tcp(_)) => {
                segment.ends(packet.direction) == (self.client, self.server)
            }
            (Some(Content::Udp(udp)), TransportFacts::Quic(quic)) => {
                let (client, server) = udp.ends(packet.direction);
                server == self.server
                    && quic.client_addresses.contains(&client)
                    && quic.leads_here(packet.direction, udp.payload)
            }
            _ => false,
        }
    }

    /// Round trips from the first packet to the first response byte, where they are known.
    pub fn round_trips(&self) -> Option<u32> {
        match self.first_response {
            FirstResponse::Seen { round_trips, .. } => Some(round_trips),
            FirstResponse::None | FirstResponse::Unknown(_) => None,
        }
    }
}

/// Why something is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Unknown {
    /// The key log has no fitting line.
    #[error("the key log lacks this connection's secrets; log them for both sides' traffic")]
    NoSecrets,
    /// The key log's lines for this connection do not open its records.
    #[error("the key log's secrets do not open this connection's records; use its own key log")]
    WrongSecrets,
    /// A cipher suite other than those that are read.
    #[error("the cipher suite is not read; use AES-GCM or ChaCha20-Poly1305")]
    CipherSuite,
    /// Packets are missing, cut short, or beyond the limits.
    #[error("packets are missing from the capture; raise its snap length, buffer or limits")]
    CaptureGap,
    /// The bytes are not TLS, or break its rules.
    #[error("the bytes are not well-formed TLS; check that the port speaks TLS")]
    NotTls,
    /// The connection ended before the server said it.
    #[error("the connection ended in the middle of the handshake; see which side closed it")]
    Ended,
    /// The server never answered the ClientHello.
    #[error("the server sent no ServerHello; check that it accepts the client's version")]
    NoServerHello,
}
