//! What was seen below TLS.

use serde::Serialize;

use crate::{Direction, FastOpenOption, TcpOptions};

/// What was seen below TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TcpFacts {
    /// Whether data in the SYN was sent and taken.
    pub fast_open: FastOpen,
    /// The Fast Open option of the client's SYN.
    pub fast_open_option: Option<FastOpenOption>,
    /// The options of the client's first SYN.
    pub client_options: TcpOptions,
    /// The options of the server's first SYN-ACK; `None` before there is one.
    pub server_options: Option<TcpOptions>,
    /// Bytes of payload in the client's SYN; of several SYNs, the most.
    pub syn_data: u32,
    /// How many of them the SYN-ACK acknowledged.
    pub syn_data_acknowledged: u32,
    /// SYNs of the client beyond the first.
    pub syn_retransmissions: u32,
    /// Whether a SYN-ACK was seen.
    pub syn_ack: bool,
    /// Segments of the client that carried what the tap had already seen, SYN and FIN included.
    pub client_retransmissions: u32,
    /// The same for the server's segments.
    pub server_retransmissions: u32,
    /// Segments of both sides that reached the tap behind a later one.
    pub out_of_order: u32,
    /// Packets that the tap did not deliver.
    pub dropped: u32,
    /// What the first of them that counts, a SYN or one with payload, held up.
    pub stall: Option<Stall>,
    /// What the client sent as far as the tap, dropped packets included.
    pub to_server: Traffic,
    /// What the server sent as far as the tap, dropped packets included.
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

/// How much went one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Packets, acknowledgements included.
    pub packets: u32,
    /// Bytes of frames, from the Ethernet header on, whatever a snap length cut off.
    pub wire_bytes: u64,
    /// Bytes of TCP or UDP payload, each copy counted.
    pub payload_bytes: u64,
}

/// A packet that the tap did not deliver, and what became of what it carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Stall {
    /// Which way it went.
    pub direction: Direction,
    /// When it reached the tap, in nanoseconds.
    pub dropped: u64,
    /// When its first byte, or for a SYN the SYN, was delivered after all, whatever was with it;
    /// `None` if that never was. A SYN without the data of the first is TCP Fast Open given up.
    pub recovered: Option<u64>,
}

/// TCP Fast Open, as the packets show it (RFC 7413).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FastOpen {
    /// The SYN carried data, and the SYN-ACK acknowledged it.
    Used,
    /// The SYN carried data, and it had to be sent again.
    FellBack,
    /// The SYN carried no data.
    #[default]
    Off,
}
