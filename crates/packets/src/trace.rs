//! Traces: what each packet of a connection carried. Waterfall charts are drawn from them.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;

use serde::Serialize;

use crate::event::StreamEvent;
use crate::reassembly::StoredSegment;
use crate::tcp::TcpAnalysis;
use crate::{Direction, Event, TcpFlags, TcpOptions};

/// The packets of a connection. Times are nanoseconds of the tap's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Trace {
    /// The client's address and port.
    pub client: SocketAddr,
    /// The server's address and port.
    pub server: SocketAddr,
    /// When the first SYN, or the client's first datagram, reached the tap.
    pub started: u64,
    /// The packets in the order in which they reached the tap.
    pub packets: Vec<TracedPacket>,
    /// Packets that were seen but not stored, because a limit was reached.
    pub left_out: u32,
}

/// One packet of a [`Trace`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TracedPacket {
    /// Its direction.
    pub direction: Direction,
    /// When it reached the tap from its sender, in nanoseconds.
    pub arrived: u64,
    /// When the tap handed it to its receiver, in nanoseconds; `None` if the tap dropped it.
    pub delivered: Option<u64>,
    /// Its TCP header; `None` over QUIC, where a packet is a datagram.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpHeader>,
    /// Its payload's length in bytes.
    pub payload_bytes: u32,
    /// Whether some of it had been sent before, SYN and FIN included. Data of a SYN or early data
    /// that the server did not accept does not count when it is sent again.
    pub retransmission: bool,
    /// Its causal depth, as defined at [`FirstResponse`](crate::FirstResponse) and
    /// [`LastResponse`](crate::LastResponse); `None` if the packet does not count.
    pub round_trips: Option<u32>,
    /// What it carries, in byte order; never empty.
    pub carries: Vec<Carried>,
}

/// The TCP header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TcpHeader {
    /// Its flags.
    pub flags: TcpFlags,
    /// The TCP options of a SYN or SYN-ACK.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub options: Option<TcpOptions>,
    /// Its sequence number relative to the SYN, which is 0; data starts at 1. `None` if it is far
    /// from the other packets.
    pub sequence: Option<u64>,
    /// What it acknowledges, relative to the other side's SYN.
    pub acknowledged: Option<u64>,
}

/// An event, and which part of it a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Carried {
    /// The event.
    #[serde(flatten)]
    pub event: Event,
    /// Which part of it is in the packet.
    pub part: Part,
}

/// Which part of a message or record a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// All of it.
    Whole,
    /// Its first bytes.
    First,
    /// Neither its first nor its last bytes.
    Middle,
    /// Its last bytes: from here on the receiver can read it.
    Last,
}

impl fmt::Display for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.event)?;
        f.write_str(match self.part {
            Part::Whole => "",
            Part::First => " (begins)",
            Part::Middle => " (goes on)",
            Part::Last => " (ends)",
        })
    }
}

impl Trace {
    pub(crate) fn new(analysis: &TcpAnalysis<'_>) -> Self {
        let packets = analysis.flow.packets.iter().zip(&analysis.depths);
        Self {
            client: analysis.endpoints.0,
            server: analysis.endpoints.1,
            started: analysis.flow.started,
            packets: packets
                .map(|(packet, depth)| traced(packet, *depth, analysis.events(packet.direction)))
                .collect(),
            left_out: analysis.flow.left_out,
        }
    }
}

fn traced(
    packet: &StoredSegment,
    round_trips: Option<u32>,
    events: &[StreamEvent],
) -> TracedPacket {
    TracedPacket {
        direction: packet.direction,
        arrived: packet.arrived,
        delivered: packet.delivered,
        tcp: Some(TcpHeader {
            flags: packet.flags,
            options: packet.options,
            sequence: packet.position,
            acknowledged: packet.acknowledged,
        }),
        payload_bytes: packet.wire_len,
        retransmission: packet.retransmission,
        round_trips,
        carries: carried(packet, events),
    }
}

fn carried(packet: &StoredSegment, events: &[StreamEvent]) -> Vec<Carried> {
    let whole = |event| Carried { event, part: Part::Whole };
    let mut carries = Vec::new();
    match packet.flags {
        flags if flags.rst => carries.push(whole(Event::Reset)),
        flags if flags.syn && flags.ack => carries.push(whole(Event::SynAck)),
        flags if flags.syn => carries.push(whole(Event::Syn)),
        _ => {}
    }
    if packet.wire_len > 0 {
        let before = carries.len();
        if let Some(position) = packet.position {
            // The first byte after the SYN is the stream's first.
            let start = position.max(1) - 1;
            carries.extend(parts(start..start + u64::from(packet.wire_len), events));
        }
        if carries.len() == before {
            carries.push(whole(Event::Payload { bytes: packet.wire_len.into() }));
        }
    }
    if packet.flags.fin {
        carries.push(whole(Event::Fin));
    }
    if carries.is_empty() {
        carries.push(whole(Event::Ack));
    }
    carries
}

/// The events within `bytes` of the stream.
pub(crate) fn parts(bytes: Range<u64>, events: &[StreamEvent]) -> impl Iterator<Item = Carried> {
    let first = events.partition_point(|event| event.span.end as u64 <= bytes.start);
    events[first..]
        .iter()
        .take_while({
            let end = bytes.end;
            move |event| (event.span.start as u64) < end
        })
        .map(move |stream_event| {
            let has_start = bytes.start <= stream_event.span.start as u64;
            let has_end = stream_event.span.end as u64 <= bytes.end;
            let part = match (has_start, has_end) {
                (true, true) => Part::Whole,
                (true, false) => Part::First,
                (false, false) => Part::Middle,
                (false, true) => Part::Last,
            };
            Carried { event: stream_event.event, part }
        })
}
