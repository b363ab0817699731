//! What was seen below TLS, whatever carried it.

use serde::Serialize;

use super::{FlowFacts, QuicFacts, Stall, TcpFacts, Traffic};

/// What was seen below TLS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TransportFacts {
    /// A TCP connection.
    Tcp(TcpFacts),
    /// A QUIC connection.
    Quic(Box<QuicFacts>),
}

impl TransportFacts {
    /// TCP's, if it is TCP.
    pub fn tcp(&self) -> Option<&TcpFacts> {
        match self {
            Self::Tcp(tcp) => Some(tcp),
            Self::Quic(_) => None,
        }
    }

    /// QUIC's, if it is QUIC.
    pub fn quic(&self) -> Option<&QuicFacts> {
        match self {
            Self::Tcp(_) => None,
            Self::Quic(quic) => Some(quic),
        }
    }

    /// Packets, over QUIC datagrams, that the tap did not deliver.
    pub fn dropped(&self) -> u32 {
        match self {
            Self::Tcp(tcp) => tcp.dropped,
            Self::Quic(quic) => quic.dropped,
        }
    }

    /// Packets of both sides that carried what had been sent before, SYNs included.
    pub fn sent_again(&self) -> u32 {
        match self {
            Self::Tcp(tcp) => {
                tcp.syn_retransmissions + tcp.client_retransmissions + tcp.server_retransmissions
            }
            Self::Quic(quic) => quic.client_retransmissions + quic.server_retransmissions,
        }
    }

    /// Packets of both sides that reached the tap behind a later one.
    pub fn out_of_order(&self) -> u32 {
        match self {
            Self::Tcp(tcp) => tcp.out_of_order,
            Self::Quic(quic) => quic.out_of_order,
        }
    }

    /// What the first dropped packet that counts held up.
    pub fn stall(&self) -> Option<Stall> {
        match self {
            Self::Tcp(tcp) => tcp.stall,
            Self::Quic(quic) => quic.stall,
        }
    }

    /// What the client sent as far as the tap.
    pub fn to_server(&self) -> Traffic {
        match self {
            Self::Tcp(tcp) => tcp.to_server,
            Self::Quic(quic) => quic.to_server,
        }
    }

    /// What the server sent as far as the tap.
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
