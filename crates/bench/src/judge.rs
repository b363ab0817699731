//! Finds the packets of each sample and holds what they show against what its cell asked for.

use std::collections::HashMap;
use std::net::SocketAddr;

use firstflight_link::{Batch, Direction as Way};
use firstflight_report::{Fault, Sample};
use firstflight_tls::Version;
use firstflight_wire::{
    Direction, FastOpen, FirstResponse, FlowFacts, LabelKind, Observer, Packet, TlsVersion,
};

use crate::Kind;
use crate::plan::{Plan, PlannedCell};
use crate::sampler::Taken;

/// The connections of a stretch of a run, by their two ends.
pub(crate) struct Judge {
    flows: HashMap<(SocketAddr, SocketAddr), Vec<Flow>>,
}

struct Flow {
    facts: FlowFacts,
    /// The latest delivery among its packets, in nanoseconds.
    lateness_ns: u64,
}

impl Judge {
    pub(crate) fn new(batch: &Batch, key_log: &str) -> Self {
        let mut observer = Observer::new();
        observer.add_secrets(key_log);
        let mut late: HashMap<u16, Vec<(u64, u64)>> = HashMap::new();
        for packet in &batch.packets {
            let direction = match packet.direction {
                Way::Up => Direction::ToServer,
                Way::Down => Direction::ToClient,
            };
            observer.packet(&Packet {
                direction,
                arrived: packet.arrival_ns,
                delivered: packet.delivered(),
                frame: &packet.frame,
            });
            if let Some(port) = client_port(&packet.frame, packet.direction) {
                late.entry(port).or_default().push((packet.delivered_ns, packet.lateness_ns()));
            }
        }
        let mut flows: HashMap<_, Vec<Flow>> = HashMap::new();
        for facts in observer.finish() {
            let lateness_ns = late.get(&facts.client.port()).map_or(0, |packets| {
                let during = packets.iter().filter(|(at, _)| {
                    (facts.started..=facts.ended.max(facts.started)).contains(at)
                });
                during.map(|(_, lateness)| *lateness).max().unwrap_or(0)
            });
            flows
                .entry((facts.client, facts.server))
                .or_default()
                .push(Flow { facts, lateness_ns });
        }
        Self { flows }
    }

    /// What the packets of a connection show.
    pub(crate) fn facts(&self, taken: &Taken) -> Option<&FlowFacts> {
        self.flow(taken).map(|flow| &flow.facts)
    }

    /// The sample as it goes into the record.
    pub(crate) fn sample(&self, taken: &Taken, plan: &Plan, origin_ns: u64) -> Sample {
        let cell = &plan.cells[taken.cell];
        let mut sample = Sample {
            cell: taken.cell,
            at_ms: milliseconds(taken.began_ns.saturating_sub(origin_ns)),
            ..Sample::default()
        };
        let flow = self.flow(taken);
        if let Some(flow) = flow {
            sample.lateness_us = flow.lateness_ns as f64 / 1e3;
            sample.round_trips = flow.facts.round_trips();
            sample.label = flow.facts.label().ok().map(|label| label.to_string());
            if let FirstResponse::Seen { delivered: Some(delivered), .. } =
                flow.facts.first_response
            {
                // Both delays lie between these moments: the tap stamps a packet before it delays
                // it, and again when it hands it over.
                sample.wire_ms = Some(milliseconds(delivered.saturating_sub(flow.facts.started)));
            }
        }
        match &taken.outcome {
            Ok(time) => sample.time_ms = Some(time.as_secs_f64() * 1e3),
            Err(why) => {
                sample.fault = Some(Fault::Failed(why.clone()));
                return sample;
            }
        }
        sample.fault = match flow {
            None => Some(Fault::Mislabelled("no packets".to_owned())),
            Some(flow) => fault(flow, cell),
        };
        sample
    }

    /// The connection between these ends that began when the sample did: ports come back.
    fn flow(&self, taken: &Taken) -> Option<&Flow> {
        let flows = self.flows.get(&(taken.local?, taken.server))?;
        flows.iter().min_by_key(|flow| flow.facts.started.abs_diff(taken.began_ns))
    }
}

/// Later than this, a delivery is the machine's doing and the sample is left out.
const SPOILED_NS: u64 = 1_000_000;

fn fault(flow: &Flow, cell: &PlannedCell) -> Option<Fault> {
    let tcp = &flow.facts.tcp;
    let again = tcp.client_retransmissions + tcp.server_retransmissions + tcp.syn_retransmissions;
    if again > 0 || tcp.dropped > 0 {
        return Some(Fault::Spoiled(format!("{again} packets sent twice")));
    }
    if flow.lateness_ns > SPOILED_NS {
        let late = flow.lateness_ns as f64 / 1e6;
        return Some(Fault::Spoiled(format!("a packet {late:.1} ms late on the link")));
    }
    match flow.facts.label() {
        Err(why) => Some(Fault::Mislabelled(why.to_string())),
        Ok(label) => {
            let kind = match cell.kind {
                Kind::Full => LabelKind::Full,
                Kind::Resumed => LabelKind::Resumed,
                Kind::ZeroRtt => LabelKind::EarlyAccepted,
                Kind::Refused => LabelKind::EarlyRefused,
            };
            let tfo = if cell.tfo { FastOpen::Used } else { FastOpen::Off };
            let right = label.version == tls_version(cell.version)
                && label.kind == kind
                && label.tfo == tfo;
            (!right).then(|| Fault::Mislabelled(label.to_string()))
        }
    }
}

fn tls_version(version: Version) -> TlsVersion {
    match version {
        Version::Tls10 => TlsVersion::Tls10,
        Version::Tls11 => TlsVersion::Tls11,
        Version::Tls12 => TlsVersion::Tls12,
        Version::Tls13 => TlsVersion::Tls13,
    }
}

/// The client's port in an Ethernet frame with IPv4 and TCP in it.
fn client_port(frame: &[u8], way: Way) -> Option<u16> {
    let ip = frame.get(14..)?;
    let tcp = ip.get(usize::from(ip.first()? & 0xf) * 4..)?;
    let at = match way {
        Way::Up => 0,
        Way::Down => 2,
    };
    Some(u16::from_be_bytes([*tcp.get(at)?, *tcp.get(at + 1)?]))
}

fn milliseconds(ns: u64) -> f64 {
    ns as f64 / 1e6
}
