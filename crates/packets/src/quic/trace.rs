//! The trace of a QUIC connection.

use std::ops::Range;

use firstflight_wire::{
    CoalescedPacket, Frame, NEW_CONNECTION_ID, PING, PacketKind, RESET_STREAM, frames,
};

use super::analysis::QuicAnalysis;
use super::decryption::CapturedPacket;
use crate::Direction;
use crate::event::Event;
use crate::trace::{Carried, Part, Trace, TracedPacket, parts};

impl QuicAnalysis<'_> {
    /// The trace: what each datagram carried.
    pub(crate) fn trace(&self) -> Trace {
        let mut packets: Vec<_> = self
            .flow
            .datagrams
            .iter()
            .zip(&self.counts.contents)
            .zip(&self.depths)
            .map(|((datagram, content), depth)| TracedPacket {
                direction: datagram.direction,
                arrived: datagram.arrived,
                delivered: datagram.delivered,
                tcp: None,
                payload_bytes: datagram.wire_len,
                retransmission: content.retransmission,
                round_trips: *depth,
                carries: Vec::new(),
            })
            .collect();
        for captured in &self.packets.captured {
            let packet = &mut packets[captured.datagram];
            self.describe(captured, packet.direction, &mut packet.carries);
        }
        for packet in &mut packets {
            if packet.carries.is_empty() {
                let bytes = packet.payload_bytes.into();
                packet.carries.push(whole(Event::Payload { bytes }));
            }
        }
        Trace {
            client: self.flow.client,
            server: self.flow.server,
            started: self.flow.started,
            packets,
            left_out: self.flow.left_out,
        }
    }

    fn describe(
        &self,
        captured: &CapturedPacket<'_>,
        direction: Direction,
        carries: &mut Vec<Carried>,
    ) {
        let packet = match &captured.packet {
            CoalescedPacket::Retry { token, .. } => {
                let token_bytes = token.len() as u64;
                return carries.push(whole(Event::Retry { token_bytes }));
            }
            CoalescedPacket::VersionNegotiation => {
                return carries.push(whole(Event::VersionNegotiation));
            }
            CoalescedPacket::Other { len } => {
                return carries.push(whole(Event::Encrypted { bytes: *len as u64 }));
            }
            CoalescedPacket::Protected(packet) => packet,
        };
        let kind = packet.kind;
        let number = captured.opened.as_ref().map(|opened| opened.number);
        carries.push(whole(Event::Packet { kind, number }));
        let Some(opened) = &captured.opened else {
            let bytes = packet.bytes.len() as u64;
            return carries.push(whole(Event::Encrypted { bytes }));
        };
        for frame in frames(&opened.frames) {
            self.describe_frame(direction, packet.kind, frame, carries);
        }
    }

    fn describe_frame(
        &self,
        direction: Direction,
        kind: PacketKind,
        frame: Frame<'_>,
        carries: &mut Vec<Carried>,
    ) {
        let event = match frame {
            Frame::Padding(_) => return,
            Frame::Crypto { offset, data } => {
                let events = &self.packets.handshake.level(direction, kind).events;
                let bytes = Range { start: offset, end: offset.saturating_add(data.len() as u64) };
                let before = carries.len();
                carries.extend(parts(bytes, events));
                if carries.len() > before {
                    return;
                }
                Event::Crypto { bytes: data.len() as u64 }
            }
            Frame::Stream { id, data, fin, .. } => {
                let early = kind == PacketKind::ZeroRtt;
                Event::Stream { id, bytes: data.len() as u64, fin, early }
            }
            Frame::Ack { .. } => Event::Ack,
            Frame::NewToken { token } => Event::NewToken { bytes: token.len() as u64 },
            Frame::Close { code, by_application } => Event::Close { code, by_application },
            Frame::Ping => Event::Frame { frame: PING },
            Frame::NewConnectionId { .. } => Event::Frame { frame: NEW_CONNECTION_ID },
            Frame::ResetStream { .. } => Event::Frame { frame: RESET_STREAM },
            Frame::Path(frame) | Frame::Other(frame) => Event::Frame { frame },
        };
        carries.push(whole(event));
    }
}

fn whole(event: Event) -> Carried {
    Carried { event, part: Part::Whole }
}
