//! Samples from the packets of a run, captured at this machine.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use firstflight_emulator::{Batch, CapturedPacket, Direction, SniffedProtocol, Sniffer};
use firstflight_packets::KeyLog;
use firstflight_report::{Capture, Fault, Sample};
use firstflight_samples::{
    CaptureFile, CaptureInfo, ClientRecord, Flow, Flows, HttpVersion, RequestedConnection,
    Transport, Workload, capture_path, mismatch, sample_from_flow,
};
use firstflight_tls::KeyLogLines;

use super::config::RemoteError;
use super::connection::{Cell, SampledConnection, describe};

/// The capture of a run, and its results so far.
pub(super) struct Packets {
    /// One for each transport.
    sniffers: Vec<Sniffer>,
    key_log: Arc<KeyLogLines>,
    /// The minimum time from a SYN to its SYN-ACK, or from a client's first datagram to the server's
    /// first, in nanoseconds.
    min_rtt_ns: Option<u64>,
    /// Packets that were retransmitted or out of order, and the number of samples with them.
    lost: (u32, usize),
    /// Packets that the capture dropped.
    missed: u64,
    captures: HashMap<usize, Capture>,
}

impl Packets {
    pub(super) fn open(
        server: SocketAddr,
        transports: &[Transport],
        key_log: &Arc<KeyLogLines>,
    ) -> Result<Self, firstflight_emulator::LinkError> {
        let sniffer = |transport: &Transport| {
            let protocol = match transport {
                Transport::Tcp => SniffedProtocol::Tcp,
                Transport::Quic => SniffedProtocol::Udp,
            };
            Sniffer::open(server, protocol, MAX_CAPTURE_BYTES)
        };
        Ok(Self {
            sniffers: transports.iter().map(sniffer).collect::<Result<_, _>>()?,
            key_log: key_log.clone(),
            min_rtt_ns: None,
            lost: (0, 0),
            missed: 0,
            captures: HashMap::new(),
        })
    }

    /// Measures the RTT of connections that are not samples, and drops their packets.
    pub(super) fn warm_up(&mut self) {
        let (batch, _) = (self.take(), self.key_log.take());
        self.min_rtt_ns = min_rtt_ns(&batch, self.min_rtt_ns);
    }

    /// The packets since the last call, in order.
    fn take(&self) -> Batch {
        let mut all = Batch::default();
        for mut batch in self.sniffers.iter().map(Sniffer::take) {
            all.missed += batch.missed;
            all.packets.append(&mut batch.packets);
        }
        all.packets.sort_by_key(|packet| packet.arrival_ns);
        all
    }

    /// Makes samples from the packets of complete connections.
    pub(super) fn classify(
        &mut self,
        sampled: &[SampledConnection],
        cells: &[Cell],
        origin_ns: u64,
        output: Option<&Path>,
    ) -> Result<Vec<Sample>, RemoteError> {
        let (mut batch, secrets) = (self.take(), self.key_log.take());
        self.missed += batch.missed;
        self.min_rtt_ns = delay_sent(&mut batch, self.min_rtt_ns);
        let flows = Flows::new(&batch, &secrets, &HashSet::new());
        let mut keys = KeyLog::new(2 * sampled.len() + MAX_TICKET_CONNECTIONS);
        keys.add(&secrets);
        let mut samples = Vec::with_capacity(sampled.len());
        for SampledConnection { record, .. } in sampled {
            let (flow, cell) = (flows.flow(record), record.slot.cell);
            let mut sample = sample_from_flow(record, flow, origin_ns);
            sample.fault = fault(record, flow, &cells[cell].requested, batch.missed);
            if let Some(flow) = flow {
                let lost = lost(flow);
                self.lost = (self.lost.0 + lost, self.lost.1 + usize::from(lost > 0));
                let first = sample.fault.is_none() && !self.captures.contains_key(&cell);
                if let Some(output) = output.filter(|_| first) {
                    let capture =
                        write_capture(&flows, &batch, flow, &keys, output, cell, &cells[cell])?;
                    self.captures.insert(cell, capture);
                }
            }
            samples.push(sample);
        }
        Ok(samples)
    }

    pub(super) fn min_rtt(&self) -> Option<Duration> {
        self.min_rtt_ns.map(Duration::from_nanos)
    }

    /// Notes for a reader of the record.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = vec![
            "packets were captured at the client; labels and round trips come from them".to_owned(),
        ];
        if let (packets @ 1.., samples) = self.lost {
            notes.push(format!(
                "{packets} packets in {samples} samples were retransmitted or out of order; these \
                 samples are in the figures"
            ));
        }
        if self.missed > 0 {
            notes.push(format!("the capture dropped {} packets", self.missed));
        }
        notes
    }

    /// The capture files, in the order of their cells.
    pub(super) fn captures(self) -> Vec<Capture> {
        let mut captures: Vec<(usize, Capture)> = self.captures.into_iter().collect();
        captures.sort_unstable_by_key(|(cell, _)| *cell);
        captures.into_iter().map(|(_, capture)| capture).collect()
    }
}

/// The minimum of `known` and of the RTTs of a batch's connections.
fn min_rtt_ns(batch: &Batch, known: Option<u64>) -> Option<u64> {
    let flows = Flows::new(batch, "", &HashSet::new());
    let without_loss = |flow: &&Flow| match flow.facts.tcp() {
        Some(tcp) => tcp.syn_retransmissions == 0,
        None => flow.facts.transport.retransmissions() == 0,
    };
    let rtts = flows.flows().filter(without_loss);
    let rtts = rtts.filter_map(|flow| flow.facts.connected?.checked_sub(flow.facts.started));
    rtts.filter(|rtt| *rtt > 0).chain(known).min()
}

/// Delays the client's packets by half a round trip, as if captured at the server: what the server
/// sends in that time cannot be a response to them. Without a delay, a response directly behind the
/// server's handshake would look like a response to the Finished that the client sends in between. Half
/// a round trip is a safe distance from both.
///
/// Returns the minimum RTT, this batch included: if all earlier connections were slower, half of
/// their RTT could delay a request beyond its response.
fn delay_sent(batch: &mut Batch, known: Option<u64>) -> Option<u64> {
    let rtt_ns = min_rtt_ns(batch, known);
    let ns = rtt_ns.unwrap_or(0) / 2;
    for packet in batch.packets.iter_mut().filter(|packet| packet.direction == Direction::Up) {
        packet.due_ns += ns;
        packet.delivered_ns += ns;
    }
    rtt_ns
}

/// Why a connection is not in the figures. Packet loss is no reason, because it is part of a real
/// network.
fn fault(
    record: &ClientRecord,
    flow: Option<&Flow>,
    requested: &RequestedConnection,
    missed: u64,
) -> Option<Fault> {
    if let Err(why) = &record.outcome {
        return Some(Fault::Failed(match flow.map(lost) {
            Some(packets @ 1..) => {
                format!("{why}; {packets} packets were retransmitted or out of order")
            }
            _ => why.clone(),
        }));
    }
    let unknown = flow.is_none_or(|flow| flow.facts.label().is_err());
    if unknown && missed > 0 {
        return Some(Fault::Spoiled(format!("the capture dropped {missed} packets")));
    }
    match flow {
        None => Some(Fault::Mislabelled("no packets".to_owned())),
        Some(flow) => mismatch(&flow.facts, requested).map(Fault::Mislabelled),
    }
}

/// Number of packets that indicate a loss: retransmitted by this side, or received out of order.
fn lost(flow: &Flow) -> u32 {
    let transport = &flow.facts.transport;
    transport.retransmissions() + transport.out_of_order()
}

/// Writes the packets and secrets of a connection to a capture file.
fn write_capture(
    flows: &Flows,
    batch: &Batch,
    flow: &Flow,
    keys: &KeyLog,
    output: &Path,
    index: usize,
    cell: &Cell,
) -> Result<Capture, RemoteError> {
    let packets: Vec<&CapturedPacket> = flows.packets(batch, flow).collect();
    let random = flow.facts.tls.as_ref().map(|tls| tls.client_random);
    let secrets = random.map_or_else(Vec::new, |random| keys.lines_for(&random));
    let control = if cell.control_of.is_some() { ", control" } else { "" };
    let what = format!("{}{control}", describe(&cell.requested));
    let http = match (cell.requested.workload, cell.requested.http) {
        (Workload::PingPong, _) => " ping-pong",
        (Workload::Get, HttpVersion::One) => "",
        (Workload::Get, HttpVersion::Two) => " h2",
        (Workload::Get, HttpVersion::Three) => " h3",
    };
    let tfo = if cell.requested.tfo { " TFO" } else { "" };
    let token = if cell.requested.token { " token" } else { "" };
    let RequestedConnection { version, kind, group, .. } = cell.requested;
    let version = if cell.requested.over_quic() { "QUIC" } else { version.name() };
    let name = format!("{index:03} {version}{http} {kind}{tfo}{token} {group}{control}");
    let capture = Capture { file: capture_path(&name), what, connections: 1 };
    let info = CaptureInfo {
        interface: "client",
        comment: "times are those at the client's end",
        description: &capture.what,
    };
    let path = output.join(&capture.file);
    CaptureFile::write_one(&path, &info, &packets, &secrets)
        .map_err(|source| RemoteError::File { path, source })?;
    Ok(capture)
}

/// Limits the memory of the capture. Samples are batched so that their packets fit.
pub(super) const MAX_CAPTURE_BYTES: usize = 256 << 20;
/// Limits the connections of a batch that only fetch tickets.
const MAX_TICKET_CONNECTIONS: usize = 1 << 12;

#[cfg(test)]
mod tests {
    use firstflight_emulator::monotonic_ns;

    use super::*;

    /// A SYN, or the server's response to it, in IPv4.
    fn packet(direction: Direction, ns: u64) -> CapturedPacket {
        let (client, server) = ([10, 0, 0, 1, 0x9c, 0x40], [10, 0, 0, 2, 0x01, 0xbb]);
        let (from, to, flags) = match direction {
            Direction::Up => (client, server, 0x02),
            Direction::Down => (server, client, 0x12),
        };
        let ethernet = [&[0; 12][..], &[0x08, 0x00]].concat();
        let ip = [&[0x45, 0, 0, 40][..], &[0; 5], &[6, 0, 0], &from[..4], &to[..4]].concat();
        let tcp = [&from[4..], &to[4..], &[0; 8], &[0x50, flags], &[0; 6]].concat();
        let frame = [ethernet, ip, tcp].concat();
        CapturedPacket {
            path: 0,
            direction,
            arrival_ns: ns,
            due_ns: ns,
            delivered_ns: ns,
            stalled_ns: 0,
            dropped_by: None,
            length: frame.len(),
            frame: frame.into(),
            altered: None,
        }
    }

    /// A connection whose round trip takes 60 ns.
    fn connection() -> Batch {
        Batch { packets: vec![packet(Direction::Up, 100), packet(Direction::Down, 160)], missed: 0 }
    }

    #[test]
    fn only_packets_of_the_client_are_delayed() {
        let mut batch = connection();
        assert_eq!(delay_sent(&mut batch, Some(40)), Some(40));
        let times = batch.packets.iter().map(|packet| (packet.arrival_ns, packet.delivered_ns));
        assert_eq!(times.collect::<Vec<_>>(), [(100, 120), (160, 160)]);
        assert!(batch.packets.iter().all(|packet| packet.lateness_ns() == 0));
    }

    #[test]
    fn no_packet_is_delayed_beyond_its_response_even_if_earlier_round_trips_were_longer() {
        for known in [None, Some(150)] {
            let mut batch = connection();
            assert_eq!(delay_sent(&mut batch, known), Some(60));
            assert_eq!(batch.packets[0].delivered_ns, 130, "half a round trip");
        }
    }

    #[test]
    fn a_sample_without_packets_is_mislabelled_unless_the_capture_dropped_packets() {
        let requested = super::super::config::RemoteConfig::new("https://lab.test/").requested()[0];
        let times = firstflight_samples::Times {
            setup: None,
            first_byte: Duration::from_millis(1),
            total: Duration::from_millis(1),
        };
        let mut record = ClientRecord {
            slot: firstflight_samples::Slot { cell: 0, block: 0 },
            started_ns: monotonic_ns(),
            client_random: None,
            local: None,
            server: ([127, 0, 0, 1], 443).into(),
            outcome: Ok(times),
        };
        assert!(matches!(fault(&record, None, &requested, 0), Some(Fault::Mislabelled(_))));
        assert!(matches!(fault(&record, None, &requested, 3), Some(Fault::Spoiled(_))));
        record.outcome = Err("status 500".to_owned());
        assert!(matches!(fault(&record, None, &requested, 3), Some(Fault::Failed(_))));
    }
}
