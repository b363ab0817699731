//! The packets of a run, as they leave and reach this machine.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use firstflight_emulator::{Batch, CapturedPacket, Direction, Sniffer};
use firstflight_packets::KeyLog;
use firstflight_report::{Capture, Fault, Sample};
use firstflight_samples::{
    CaptureFile, CaptureInfo, ClientRecord, Flow, Flows, HttpVersion, RequestedConnection,
    capture_path, mismatch, sample_from_flow, wire_packet,
};
use firstflight_tls::KeyLogLines;

use super::connection::in_words;
use super::error::RemoteError;
use super::shot::{Cell, ClientView};

/// What captures the run's connections, and what it has found so far.
pub(super) struct Packets {
    sniffer: Sniffer,
    key_log: Arc<KeyLogLines>,
    /// The least time from a SYN to its SYN-ACK, in nanoseconds.
    least_rtt_ns: Option<u64>,
    /// Packets that came again or out of order, and in how many samples.
    lost: (u32, usize),
    /// Packets that the capture did not keep.
    missed: u64,
    captures: HashMap<usize, Capture>,
}

impl Packets {
    pub(super) fn open(
        server: SocketAddr,
        key_log: &Arc<KeyLogLines>,
    ) -> Result<Self, firstflight_emulator::LinkError> {
        Ok(Self {
            sniffer: Sniffer::open(server, LIMIT)?,
            key_log: key_log.clone(),
            least_rtt_ns: None,
            lost: (0, 0),
            missed: 0,
            captures: HashMap::new(),
        })
    }

    /// Takes from connections outside the figures how long the path is, and forgets them.
    pub(super) fn warm_up(&mut self) {
        let (batch, _) = (self.sniffer.take(), self.key_log.take());
        self.learn(&Flows::new(&batch, "", &HashSet::new()));
    }

    /// Judges connections by their packets, which are all there once their responses are.
    pub(super) fn judge(
        &mut self,
        shots: &[ClientView],
        cells: &[Cell],
        origin_ns: u64,
        output: Option<&Path>,
    ) -> Result<Vec<Sample>, RemoteError> {
        let (mut batch, secrets) = (self.sniffer.take(), self.key_log.take());
        self.missed += batch.missed;
        hold(&mut batch, self.least_rtt_ns.unwrap_or(0) / 2);
        let flows = Flows::new(&batch, &secrets, &HashSet::new());
        self.learn(&flows);
        let mut keys = KeyLog::new(2 * shots.len() + MAX_TICKETS);
        keys.add(&secrets);
        let mut samples = Vec::with_capacity(shots.len());
        for ClientView { taken, .. } in shots {
            let (flow, cell) = (flows.flow(taken), taken.slot.cell);
            let mut sample = sample_from_flow(taken, flow, origin_ns);
            sample.fault = fault(taken, flow, &cells[cell].asked, batch.missed);
            if let Some(flow) = flow {
                let lost = lost(flow);
                self.lost = (self.lost.0 + lost, self.lost.1 + usize::from(lost > 0));
                let first = sample.fault.is_none() && !self.captures.contains_key(&cell);
                if let Some(output) = output.filter(|_| first) {
                    let capture = keep(&flows, &batch, flow, &keys, output, cell, &cells[cell])?;
                    self.captures.insert(cell, capture);
                }
            }
            samples.push(sample);
        }
        Ok(samples)
    }

    pub(super) fn least_rtt(&self) -> Option<Duration> {
        self.least_rtt_ns.map(Duration::from_nanos)
    }

    /// What a reader of the record should know.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = vec![
            "packets were captured at the client's end: labels and round trips are theirs"
                .to_owned(),
        ];
        if let (packets @ 1.., samples) = self.lost {
            notes.push(format!(
                "{packets} packets in {samples} samples came again or out of order: lost, \
                 overtaken, or thought lost by their sender; these samples are in the figures"
            ));
        }
        if self.missed > 0 {
            notes.push(format!("the capture had no room for {} packets", self.missed));
        }
        notes
    }

    /// The files that were written, in the order of their cells.
    pub(super) fn captures(self) -> Vec<Capture> {
        let mut captures: Vec<(usize, Capture)> = self.captures.into_iter().collect();
        captures.sort_unstable_by_key(|(cell, _)| *cell);
        captures.into_iter().map(|(_, capture)| capture).collect()
    }

    fn learn(&mut self, flows: &Flows) {
        let at_once = |flow: &&Flow| match flow.facts.tcp() {
            Some(tcp) => tcp.syn_retransmissions == 0,
            None => flow.facts.transport.sent_again() == 0,
        };
        let rtts = flows.flows().filter(at_once);
        let rtts = rtts.filter_map(|flow| flow.facts.connected?.checked_sub(flow.facts.started));
        self.least_rtt_ns = rtts.filter(|rtt| *rtt > 0).chain(self.least_rtt_ns).min();
    }
}

/// Lets what the client sends be under way for so long, for what comes from the server in that time
/// cannot be a response to it. With no such time at all, a response that is right behind the
/// server's handshake would look caused by the Finished that the client sends in between. Half a
/// round trip is as far from that as from the next response.
fn hold(batch: &mut Batch, ns: u64) {
    for packet in batch.packets.iter_mut().filter(|packet| packet.direction == Direction::Up) {
        packet.due_ns += ns;
        packet.delivered_ns += ns;
    }
}

/// Why a connection does not enter the figures. A real network loses packets, which is part of what
/// is measured.
fn fault(
    taken: &ClientRecord,
    flow: Option<&Flow>,
    asked: &RequestedConnection,
    missed: u64,
) -> Option<Fault> {
    if let Err(why) = &taken.outcome {
        return Some(Fault::Failed(match flow.map(lost) {
            Some(packets @ 1..) => format!("{why}; {packets} packets came again or out of order"),
            _ => why.clone(),
        }));
    }
    let unknown = flow.is_none_or(|flow| flow.facts.label().is_err());
    if unknown && missed > 0 {
        return Some(Fault::Spoiled(format!("the capture had no room for {missed} packets")));
    }
    match flow {
        None => Some(Fault::Mislabelled("no packets".to_owned())),
        Some(flow) => mismatch(&flow.facts, asked).map(Fault::Mislabelled),
    }
}

/// Packets that show a loss: sent again by this side, or by the other one into a gap.
fn lost(flow: &Flow) -> u32 {
    let transport = &flow.facts.transport;
    transport.sent_again() + transport.out_of_order()
}

/// Writes a connection's packets and secrets beside the record.
fn keep(
    flows: &Flows,
    batch: &Batch,
    flow: &Flow,
    keys: &KeyLog,
    output: &Path,
    index: usize,
    cell: &Cell,
) -> Result<Capture, RemoteError> {
    let packets: Vec<&CapturedPacket> =
        flows.packets(batch, flow).filter(|packet| flow.facts.owns(&wire_packet(packet))).collect();
    let random = flow.facts.tls.as_ref().map(|tls| tls.client_random);
    let secrets = random.map_or_else(Vec::new, |random| keys.lines_for(&random));
    let control = if cell.twin_of.is_some() { ", control" } else { "" };
    let what = format!("{}{control}", in_words(&cell.asked));
    let http = if cell.asked.http == HttpVersion::Two { " h2" } else { "" };
    let tfo = if cell.asked.tfo { " TFO" } else { "" };
    let RequestedConnection { version, kind, group, .. } = cell.asked;
    let name = format!("{index:03} {}{http} {kind}{tfo} {group}{control}", version.name());
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

/// What the sniffer and a stretch's answers may take.
pub(super) const LIMIT: usize = 256 << 20;
/// Connections of a stretch that only fetch tickets, at most.
const MAX_TICKETS: usize = 1 << 12;

#[cfg(test)]
mod tests {
    use firstflight_emulator::monotonic_ns;

    use super::*;

    fn packet(direction: Direction) -> CapturedPacket {
        CapturedPacket {
            path: 0,
            direction,
            arrival_ns: 100,
            due_ns: 100,
            delivered_ns: 100,
            dropped_by: None,
            length: 60,
            frame: vec![0; 60].into(),
            altered: None,
        }
    }

    #[test]
    fn only_what_the_client_sends_is_held() {
        let packets = vec![packet(Direction::Up), packet(Direction::Down)];
        let mut batch = Batch { packets, missed: 0 };
        hold(&mut batch, 30);
        let times = batch.packets.iter().map(|packet| (packet.arrival_ns, packet.delivered_ns));
        assert_eq!(times.collect::<Vec<_>>(), [(100, 130), (100, 100)]);
        assert!(batch.packets.iter().all(|packet| packet.lateness_ns() == 0));
    }

    #[test]
    fn a_sample_without_packets_is_wrong_unless_the_capture_was_full() {
        let asked = super::super::config::RemoteConfig::new("https://lab.test/").asked()[0];
        let times = firstflight_samples::Times {
            setup: None,
            first_byte: Duration::from_millis(1),
            total: Duration::from_millis(1),
        };
        let mut taken = ClientRecord {
            slot: firstflight_samples::Slot { cell: 0, block: 0 },
            started_ns: monotonic_ns(),
            client_random: None,
            local: None,
            server: ([127, 0, 0, 1], 443).into(),
            outcome: Ok(times),
        };
        assert!(matches!(fault(&taken, None, &asked, 0), Some(Fault::Mislabelled(_))));
        assert!(matches!(fault(&taken, None, &asked, 3), Some(Fault::Spoiled(_))));
        taken.outcome = Err("status 500".to_owned());
        assert!(matches!(fault(&taken, None, &asked, 3), Some(Fault::Failed(_))));
    }
}
