//! The server's response: its first byte and its last.

use serde::Serialize;

use super::Unknown;

/// The first response byte: the first byte of the first record from the server that holds
/// application data: not empty where it could be decrypted, as it must be in TLS 1.3; before that
/// the outer type says it as well, after the server's ChangeCipherSpec. Over HTTP/2 (by ALPN, and
/// only decrypted) it is the first record with a HEADERS or DATA frame of a stream that the client
/// opened: a server sends its SETTINGS unasked.
///
/// Its round trips are the causal depth of the packet that first carried that byte. A client's
/// packet is one deeper than the deepest packet of the server that was *delivered* to the
/// client before it *arrived* at the tap; a server's packet is as deep as the deepest packet of
/// the client delivered to the server before it arrived. Only SYNs and packets with payload
/// count. A retransmission keeps the depth of the original, except that data in a SYN which the
/// server did not take counts where it is sent again. Server packets with nothing but TLS 1.3
/// tickets do not deepen what follows, for no client waits for them (RFC 8446 section 4.6.1).
///
/// Over QUIC it is the first byte from the server on a stream that the client opened both ways;
/// over HTTP/3 of the first HEADERS or DATA frame there. What is counted are datagrams: those with
/// CRYPTO or STREAM data, a Retry, a Version Negotiation, and of the client's acknowledgements
/// those that the server waits for, since its address is not validated and three times what came
/// from it is used up (RFC 9000 section 8.1), or since a flight of the handshake is longer than the
/// initial congestion window. Data before a Retry, and early data that was refused, counts where it
/// is sent again.
///
/// So the count is exact as long as neither side pauses for a whole round trip within one
/// flight, and no loss makes it: what it then sends may be counted as caused by what came
/// meanwhile. A sample with retransmissions is better marked than averaged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FirstResponse {
    /// It was seen.
    Seen {
        /// Round trips from the first packet to it.
        round_trips: u32,
        /// When it first reached the tap, in nanoseconds.
        arrived: u64,
        /// When it was first delivered to the client, in nanoseconds; `None` if it never was.
        delivered: Option<u64>,
    },
    /// The server sent none, as far as the connection went.
    None,
    /// The capture or the secrets do not tell.
    Unknown(Unknown),
}

/// The last response byte: the last byte of the last record that holds response, as
/// [`FirstResponse`] has it. Neither tickets nor alerts are response.
///
/// Its round trips are counted in the same way, but from the first response byte on the client's
/// acknowledgements of response count like data: they are what lets a server send on when its
/// congestion window is full. So a response that needs several windows is deeper than its first
/// byte, and one that the server writes piece by piece, a round trip apart, is too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LastResponse {
    /// It was seen; on an open connection, as far as that went.
    Seen {
        /// Round trips from the first packet to it.
        round_trips: u32,
        /// When it first reached the tap, in nanoseconds.
        arrived: u64,
        /// When it and all before it had been delivered to the client, in nanoseconds; `None`
        /// if that never was.
        delivered: Option<u64>,
    },
    /// The server sent no response, as far as the connection went.
    None,
    /// The capture or the secrets do not tell.
    Unknown(Unknown),
}
