//! Results of a run: packets to samples, samples to the figures of cells (sans-IO).

use firstflight_report::{Bytes, Cell, Cost, Fault, Residual, Sample, Summary};
use firstflight_samples::{
    ClientRecord, Flow, Flows, mismatch, mismatch_except_group, round_trips, sample_from_flow,
    version_number,
};

use crate::paths::PlannedPath;
use crate::plan::{Plan, PlannedCell};
use crate::{CipherSuite, ClientKind, Experiment, Workload};

/// The cells of the record with their figures, in the order of the plan.
pub(crate) fn cells(
    plan: &Plan,
    experiments: &[Experiment],
    samples: &[Sample],
    costs: &[Cost],
) -> Vec<Cell> {
    let mut good: Vec<Vec<&Sample>> = vec![Vec::new(); plan.cells.len()];
    for sample in samples.iter().filter(|sample| sample.fault.is_none()) {
        good[sample.cell].push(sample);
    }
    let cell = |(planned, good): (&PlannedCell, &Vec<&Sample>)| {
        let path = &plan.paths[planned.path];
        let mut cell = without_summary(planned, path, &experiments[planned.experiment].name);
        cell.summary = Summary::of_samples(good.iter().copied());
        if let Some(summary) = &mut cell.summary {
            summary.residual = residual(summary, path, cost_ms(planned, costs));
        }
        cell
    };
    plan.cells.iter().zip(&good).map(cell).collect()
}

fn without_summary(planned: &PlannedCell, path: &PlannedPath, experiment: &str) -> Cell {
    let requested = &planned.requested;
    let get = requested.workload == Workload::Get;
    Cell {
        experiment: experiment.to_owned(),
        client: planned.client.name().to_owned(),
        server: planned.server.name().to_owned(),
        workload: requested.workload.name().to_owned(),
        profile: path.name().to_owned(),
        rtt_ms: path.rtt_ms(),
        transport: requested.transport.name().to_owned(),
        tls: version_number(requested.version).to_owned(),
        kind: requested.kind.name().to_owned(),
        tfo: requested.tfo,
        token: requested.token,
        http: if get { requested.http.name().to_owned() } else { String::new() },
        // Third-party clients choose their groups themselves.
        group: match planned.client {
            ClientKind::Firstflight => requested.group.name().to_owned(),
            _ => String::new(),
        },
        cipher: cipher_name(requested.cipher),
        certificate: requested.certificate_name(),
        response_bytes: if get { requested.size.bytes() as u64 } else { PONG_BYTES },
        control: planned.control_of.is_some(),
        expected_round_trips: Some(round_trips(requested)),
        summary: None,
    }
}

/// The name of a cipher suite in the record. Empty if the suite is negotiated.
pub(crate) fn cipher_name(cipher: CipherSuite) -> String {
    cipher.iana().map_or_else(String::new, |_| cipher.name().to_owned())
}

/// The length of PONG.
const PONG_BYTES: u64 = 4;

/// What the model does not cover on any path: clocks, schedulers, and work of the kernel that is
/// charged to no process.
const TOLERANCE_MS: f64 = 0.5;
/// What the model does not cover in each round trip: waking both ends and the link.
const TOLERANCE_PER_ROUND_TRIP_MS: f64 = 0.15;
/// The additional share of the model on paths with varying delay.
const TOLERANCE_SHARE_IF_VARYING: f64 = 0.15;

/// Compares the median time to the first byte with a model: round trips x RTT, the serialisation
/// of the bytes at the path's rates, and the processor time of both sides.
fn residual(summary: &Summary, path: &PlannedPath, cost_ms: Option<f64>) -> Option<Residual> {
    let trips = f64::from(summary.round_trips?);
    let network_ms = trips * path.rtt_ms() + serialisation_ms(summary, path);
    let model_ms = network_ms + cost_ms?;
    let residual_ms = summary.first_byte.p50_ms - model_ms;
    let mut tolerance = TOLERANCE_MS + TOLERANCE_PER_ROUND_TRIP_MS * trips;
    if path.varies() {
        tolerance += TOLERANCE_SHARE_IF_VARYING * model_ms;
    }
    // Some processor time is spent after the first byte, so a median below the model is expected. A
    // median below the network's share is not.
    let too_fast = summary.first_byte.p50_ms < network_ms - tolerance;
    Some(Residual { model_ms, residual_ms, flagged: residual_ms > tolerance || too_fast })
}

fn serialisation_ms(summary: &Summary, path: &PlannedPath) -> f64 {
    let at = |mbps: Option<f64>, bytes: fn(Bytes) -> u64| {
        let bytes = summary.first_byte_bytes.map(bytes);
        mbps.zip(bytes).map_or(0.0, |(mbps, bytes)| bytes as f64 * 8.0 / mbps / 1e3)
    };
    at(path.up_mbps(), |bytes| bytes.up) + at(path.down_mbps(), |bytes| bytes.down)
}

/// The processor time of both sides for a connection of this cell, in milliseconds.
fn cost_ms(planned: &PlannedCell, costs: &[Cost]) -> Option<f64> {
    let requested = &planned.requested;
    if planned.client != ClientKind::Firstflight {
        return None;
    }
    // Refused early data costs little more than a resumed handshake.
    let kind = match requested.kind {
        crate::HandshakeKind::Refused => crate::HandshakeKind::Resumed,
        kind => kind,
    };
    let row = costs.iter().find(|row| {
        row.server == planned.server.name()
            && row.workload == requested.workload.name()
            && row.transport == requested.transport.name()
            && row.tls == version_number(requested.version)
            && row.kind == kind.name()
            && row.group == requested.group.name()
            && row.cipher == cipher_name(requested.cipher)
            && row.certificate == requested.certificate_name()
    })?;
    Some((row.client_us + row.server_us) / 1e3)
}

/// The sample of a connection, with the fault that keeps it out of the figures, if any.
pub(crate) fn sample(flows: &Flows, record: &ClientRecord, plan: &Plan, origin_ns: u64) -> Sample {
    let cell = &plan.cells[record.slot.cell];
    let flow = flows.flow(record);
    let mut sample = sample_from_flow(record, flow, origin_ns);
    sample.fault = match (&record.outcome, flow) {
        (Err(why), Some(flow)) if flow.facts.transport.dropped() > 0 => {
            Some(Fault::Disturbed(format!("{}: {why}", flow.dropped_description())))
        }
        (Err(why), _) => Some(Fault::Failed(why.clone())),
        (Ok(_), None) => Some(Fault::Mislabelled("no packets".to_owned())),
        (Ok(_), Some(flow)) => {
            let path = &plan.paths[cell.path];
            fault(flow, cell, path.may_lose(), max_lateness_ns(path, sample.wire_total_ms))
        }
    };
    sample
}

/// A later delivery means that the machine stalled; the sample is spoiled and left out.
const MAX_LATENESS_NS: u64 = 1_000_000;
/// The additional lateness allowed on paths with a limited rate, as a share of the connection's
/// duration. Connections take long there, and any machine stalls within seconds.
const RATE_LIMITED_LATENESS_SHARE: f64 = 0.005;

/// How late the link may deliver a packet of a connection on a path.
fn max_lateness_ns(path: &PlannedPath, total_ms: Option<f64>) -> u64 {
    let has_rate = path.down_mbps().or(path.up_mbps()).is_some();
    let total_ns = total_ms.filter(|_| has_rate).unwrap_or(0.0) * 1e6;
    MAX_LATENESS_NS + (RATE_LIMITED_LATENESS_SHARE * total_ns) as u64
}

/// Says why a connection does not enter the figures of its cell. `may_lose`: whether its network is
/// meant to drop or reorder packets.
fn fault(flow: &Flow, cell: &PlannedCell, may_lose: bool, max_lateness_ns: u64) -> Option<Fault> {
    if let Some(disturbance) = disturbance(flow, may_lose, max_lateness_ns) {
        return Some(Fault::Spoiled(disturbance));
    }
    let mismatch = match cell.client {
        ClientKind::Firstflight => mismatch(&flow.facts, &cell.requested)?,
        // Third-party clients choose the groups of their key shares themselves.
        _ => mismatch_except_group(&flow.facts, &cell.requested)?,
    };
    Some(match flow.facts.transport.dropped() {
        0 => Fault::Mislabelled(mismatch),
        _ => Fault::Disturbed(format!("{}: {mismatch}", flow.dropped_description())),
    })
}

/// Describes what the link did to a connection beyond its profile.
///
/// Other retransmissions show a pause of an endpoint, which is part of the measurement. TCP's timer
/// (200 ms) outlasts most pauses. QUIC's timer on a path of 0.2 ms (3 ms) does not, so leaving out
/// such samples would hide pauses over QUIC only.
fn disturbance(flow: &Flow, may_lose: bool, max_lateness_ns: u64) -> Option<String> {
    if !may_lose && flow.facts.transport.dropped() > 0 {
        return Some(flow.dropped_description());
    }
    let [late, stalled] = [flow.lateness_ns, flow.stalled_ns].map(|ns| ns as f64 / 1e6);
    (flow.lateness_ns > max_lateness_ns).then(|| {
        format!(
            "a packet {late:.1} ms late on the link, {stalled:.1} ms of it because the machine did \
             not run the link"
        )
    })
}

#[cfg(test)]
mod tests {
    use firstflight_emulator::Profile;
    use firstflight_packets::{
        FirstFlight, FirstResponse, FlowFacts, LastResponse, QuicFacts, TcpFacts, TransportFacts,
    };

    use super::*;

    fn flow(transport: TransportFacts, lateness_ns: u64) -> Flow {
        let facts = FlowFacts {
            client: ([10, 0, 0, 1], 40_000).into(),
            server: ([10, 0, 0, 2], 443).into(),
            started: 0,
            ended: 0,
            transport,
            tls: None,
            connected: None,
            setup_done: None,
            first_response: FirstResponse::None,
            last_response: LastResponse::None,
            response_bytes: None,
            first_flight: FirstFlight::Stream(Vec::new()),
        };
        Flow {
            facts,
            trace: None,
            lateness_ns,
            stalled_ns: 0,
            handshake_bytes: None,
            first_byte_bytes: Bytes::default(),
            dropped_by: None,
        }
    }

    #[test]
    fn a_pause_of_an_endpoint_is_measured_over_tcp_and_quic_alike() {
        let tcp = |dropped| {
            let resent = TcpFacts { client_retransmissions: 1, dropped, ..TcpFacts::default() };
            TransportFacts::Tcp(resent)
        };
        let quic = |dropped| {
            let mut resent = QuicFacts::default();
            (resent.client_retransmissions, resent.dropped) = (2, dropped);
            TransportFacts::Quic(Box::new(resent))
        };
        for resent in [&tcp as &dyn Fn(u32) -> TransportFacts, &quic] {
            assert_eq!(disturbance(&flow(resent(0), 5_000), false, MAX_LATENESS_NS), None);
            let late = flow(resent(0), MAX_LATENESS_NS + 1);
            let why = disturbance(&late, false, MAX_LATENESS_NS).unwrap();
            assert!(why.starts_with("a packet 1.0 ms late"), "{why}");
            let dropped = flow(resent(1), 5_000);
            let why = disturbance(&dropped, false, MAX_LATENESS_NS).unwrap();
            assert_eq!(why, "1 packets dropped by the link");
            assert_eq!(disturbance(&dropped, true, MAX_LATENESS_NS), None);
        }
    }

    fn measured(time_ms: f64, round_trips: u32) -> Sample {
        Sample {
            time_ms: Some(time_ms),
            setup_ms: Some(time_ms / 2.0),
            total_ms: Some(time_ms + 1.0),
            round_trips: Some(round_trips),
            total_round_trips: Some(round_trips + 1),
            first_byte_bytes: Some(Bytes { up: 700, down: 1_500 }),
            ..Sample::default()
        }
    }

    fn path(name: &str) -> PlannedPath {
        PlannedPath::new(Profile::parse(name).unwrap())
    }

    #[test]
    fn a_long_transfer_at_a_rate_may_have_a_later_packet() {
        assert_eq!(max_lateness_ns(&path("200"), Some(800.0)), 1_000_000);
        assert_eq!(max_lateness_ns(&path("2g"), None), 1_000_000);
        assert_eq!(max_lateness_ns(&path("2g"), Some(2_000.0)), 11_000_000);
    }

    #[test]
    fn a_residual_beyond_the_tolerance_is_flagged() {
        let judged = |ms: f64, path: &PlannedPath| {
            let summary = Summary::of_samples([&measured(ms, 3)].into_iter()).unwrap();
            residual(&summary, path, Some(0.4)).unwrap()
        };
        let plain = judged(60.9, &path("20"));
        assert!((plain.model_ms - 60.4).abs() < 1e-9 && (plain.residual_ms - 0.5).abs() < 1e-9);
        assert!(!plain.flagged);
        assert!(judged(62.0, &path("20")).flagged, "slow");
        assert!(judged(58.0, &path("20")).flagged, "faster than the network");
        // 700 bytes up at 1 Mbit/s take 5.6 ms, 1,500 down at 5 take 2.4.
        let cable = judged(100.0, &path("cable"));
        assert!((cable.model_ms - (3.0 * 28.0 + 5.6 + 2.4 + 0.4)).abs() < 1e-9, "{cable:?}");
    }
}
