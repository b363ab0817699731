//! Capture files next to the record, and typical samples packet by packet.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use firstflight_emulator::{Batch, CapturedPacket};
use firstflight_packets::{Direction, FirstResponse, KeyLog, LastResponse, Trace};
use firstflight_report::{Capture, Cell, Sample, Waterfall, WaterfallPacket};
use firstflight_samples::{
    CaptureFile, CaptureInfo, ClientRecord, Flow, Flows, capture_path, version_number,
};
use firstflight_tls::Version;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::plan::Plan;
use crate::{ClientKind, HandshakeKind, HttpVersion, LabError, Transport, Workload};

/// Which samples are written to capture files, with their secrets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Captures {
    /// None.
    None,
    /// One valid sample of each cell.
    #[default]
    One,
    /// All samples, in one file for each cell.
    All,
}

/// Collects the captures of a run.
pub(crate) struct CaptureCollector<'a> {
    mode: Captures,
    /// The directory of the record.
    output: Option<&'a Path>,
    plan: &'a Plan,
    /// The cells for which a typical sample is shown packet by packet.
    typical: Vec<usize>,
    candidates: HashMap<usize, Reservoir<Candidate>>,
    rng: StdRng,
    open: HashMap<usize, OpenCapture>,
    written: HashMap<usize, Capture>,
    failure: Option<LabError>,
}

/// A valid sample of a cell for which a typical one is shown.
struct Candidate {
    cell: usize,
    time_ms: f64,
    label: String,
    trace: Trace,
    first_byte_ns: u64,
    last_byte_ns: u64,
    /// Its packets, if it may be written to a capture file.
    packets: Vec<CapturedPacket>,
    secrets: Vec<String>,
}

/// A random selection of at most [`MAX_CANDIDATES`] items, in which each item seen has the same
/// probability (algorithm R).
struct Reservoir<T> {
    seen: usize,
    items: Vec<T>,
}

impl<T> Default for Reservoir<T> {
    fn default() -> Self {
        Self { seen: 0, items: Vec::new() }
    }
}

impl<T> Reservoir<T> {
    /// Adds an item. Calls `make` only if the item is selected.
    fn add(&mut self, rng: &mut StdRng, make: impl FnOnce() -> Option<T>) {
        self.seen += 1;
        let place = match self.items.len() < MAX_CANDIDATES {
            true => self.items.len(),
            false => rng.random_range(0..self.seen),
        };
        let Some(item) = (place < MAX_CANDIDATES).then(make).flatten() else { return };
        match self.items.get_mut(place) {
            Some(replaced) => *replaced = item,
            None => self.items.push(item),
        }
    }
}

/// How many samples of a cell are kept to choose the typical one from: a random 30 come close to
/// the median, and with 1 MiB each they fit in memory.
const MAX_CANDIDATES: usize = 30;

struct OpenCapture {
    file: CaptureFile,
    capture: Capture,
}

impl<'a> CaptureCollector<'a> {
    pub(crate) fn new(mode: Captures, output: Option<&'a Path>, plan: &'a Plan) -> Self {
        Self {
            mode: if output.is_some() { mode } else { Captures::None },
            output,
            plan,
            typical: typical_cells(plan),
            candidates: HashMap::new(),
            rng: StdRng::seed_from_u64(plan.seed),
            open: HashMap::new(),
            written: HashMap::new(),
            failure: None,
        }
    }

    /// The client addresses of the samples whose packets must be traced.
    pub(crate) fn traced(&self, records: &[ClientRecord]) -> HashSet<SocketAddr> {
        let typical = records.iter().filter(|record| self.typical.contains(&record.slot.cell));
        typical.filter_map(|record| record.local).collect()
    }

    /// Writes a sample, or keeps it as a candidate for a typical one. After a failure nothing is
    /// written any more, and [`finish`](Self::finish) returns it: the samples are not lost with it.
    pub(crate) fn add(
        &mut self,
        batch: &Batch,
        flows: &Flows,
        keys: &KeyLog,
        record: &ClientRecord,
        sample: &Sample,
    ) {
        if let Err(error) = self.try_add(batch, flows, keys, record, sample) {
            self.fail(error);
        }
    }

    fn try_add(
        &mut self,
        batch: &Batch,
        flows: &Flows,
        keys: &KeyLog,
        record: &ClientRecord,
        sample: &Sample,
    ) -> Result<(), LabError> {
        let Some(flow) = flows.flow(record) else { return Ok(()) };
        let (cell, valid) = (record.slot.cell, sample.fault.is_none());
        let candidate = valid && self.typical.contains(&cell);
        let first = valid && !self.written.contains_key(&cell) && !self.typical.contains(&cell);
        let write = match self.mode {
            Captures::None => false,
            Captures::One => first,
            Captures::All => true,
        };
        if !candidate && !write {
            return Ok(());
        }
        let packets: Vec<&CapturedPacket> = flows.packets(batch, flow).collect();
        let secrets =
            flow.facts.tls.as_ref().map_or_else(Vec::new, |tls| keys.lines_for(&tls.client_random));
        if write {
            self.write(cell, &packets, &secrets)?;
            if self.mode == Captures::One {
                self.close(cell)?;
            }
        }
        if candidate {
            let writes_later = self.mode == Captures::One;
            let make = || {
                let packets = packets.into_iter().filter(|_| writes_later).cloned().collect();
                Candidate::new(cell, flow, sample, packets, secrets)
            };
            self.candidates.entry(cell).or_default().add(&mut self.rng, make);
        }
        Ok(())
    }

    /// Chooses the typical samples, and completes all files.
    pub(crate) fn finish(
        mut self,
        cells: &[Cell],
    ) -> (Vec<Waterfall>, Result<Vec<Capture>, LabError>) {
        let mut waterfalls = Vec::new();
        for cell in self.typical.clone() {
            let Some(summary) = &cells[cell].summary else { continue };
            let median = summary.first_byte.p50_ms;
            let candidates = self.candidates.remove(&cell).unwrap_or_default().items;
            let nearest = candidates.into_iter().min_by(|a, b| {
                let distance = |candidate: &Candidate| (candidate.time_ms - median).abs();
                distance(a).total_cmp(&distance(b))
            });
            let Some(sample) = nearest else { continue };
            if self.mode == Captures::One {
                let packets: Vec<_> = sample.packets.iter().collect();
                let written = self.write(cell, &packets, &sample.secrets);
                if let Err(error) = written.and_then(|()| self.close(cell)) {
                    self.fail(error);
                }
            }
            let file = match self.mode {
                Captures::None => None,
                Captures::One | Captures::All => Some(file_name(self.plan, cell)),
            };
            waterfalls.push(sample.waterfall(file));
        }
        for cell in self.open.keys().copied().collect::<Vec<_>>() {
            if let Err(error) = self.close(cell) {
                self.fail(error);
            }
        }
        if let Some(error) = self.failure {
            return (waterfalls, Err(error));
        }
        let mut written: Vec<(usize, Capture)> = self.written.into_iter().collect();
        written.sort_unstable_by_key(|(cell, _)| *cell);
        (waterfalls, Ok(written.into_iter().map(|(_, capture)| capture).collect()))
    }

    fn fail(&mut self, error: LabError) {
        self.mode = Captures::None;
        self.failure.get_or_insert(error);
    }

    /// Adds a connection to the file of its cell.
    fn write(
        &mut self,
        cell: usize,
        packets: &[&CapturedPacket],
        secrets: &[String],
    ) -> Result<(), LabError> {
        let Some(output) = self.output else { return Ok(()) };
        let name = file_name(self.plan, cell);
        let path = output.join(&name);
        let failed = |source| LabError::File { verb: "write", path: path.clone(), source };
        if !self.open.contains_key(&cell) {
            let what = cell_description(self.plan, cell);
            let comment = "timestamps are those of arrival at the link, before its delay";
            let info = CaptureInfo { interface: "link", comment, description: &what };
            let open = CaptureFile::create(&path, &info).map_err(failed)?;
            let capture = Capture { file: name, what, connections: 0 };
            self.open.insert(cell, OpenCapture { file: open, capture });
        }
        let Some(open) = self.open.get_mut(&cell) else { return Ok(()) };
        open.capture.connections += 1;
        open.file.add(packets, secrets).map_err(failed)
    }

    fn close(&mut self, cell: usize) -> Result<(), LabError> {
        let Some(OpenCapture { file, capture }) = self.open.remove(&cell) else { return Ok(()) };
        file.finish().map_err(|source| LabError::File {
            verb: "write",
            path: self.output.map_or_else(PathBuf::new, |output| output.join(&capture.file)),
            source,
        })?;
        self.written.insert(cell, capture);
        Ok(())
    }
}

impl Candidate {
    fn new(
        cell: usize,
        flow: &Flow,
        sample: &Sample,
        packets: Vec<CapturedPacket>,
        secrets: Vec<String>,
    ) -> Option<Self> {
        let FirstResponse::Seen { delivered: first, .. } = flow.facts.first_response else {
            return None;
        };
        let last = match flow.facts.last_response {
            LastResponse::Seen { delivered, .. } => delivered,
            LastResponse::None | LastResponse::Unknown(_) => None,
        };
        Some(Self {
            cell,
            time_ms: sample.time_ms?,
            label: sample.label.clone()?,
            trace: flow.trace.clone()?,
            first_byte_ns: first?,
            last_byte_ns: last.or(first)?,
            packets,
            secrets,
        })
    }

    fn waterfall(self, capture: Option<String>) -> Waterfall {
        let started = self.trace.started;
        let ms = |ns: u64| ns.saturating_sub(started) as f64 / 1e6;
        let packet = |packet: firstflight_packets::TracedPacket| WaterfallPacket {
            up: packet.direction == Direction::ToServer,
            sent_ms: ms(packet.arrived),
            delivered_ms: packet.delivered.map(ms),
            what: packet.carries.iter().map(ToString::to_string).collect(),
            payload: packet.payload_bytes,
            again: packet.retransmission,
            depth: packet.round_trips,
        };
        Waterfall {
            cell: self.cell,
            label: self.label,
            first_byte_ms: ms(self.first_byte_ns),
            last_byte_ms: ms(self.last_byte_ns),
            packets: self.trace.packets.into_iter().map(packet).collect(),
            capture,
        }
    }
}

/// The cells for which a typical sample is shown: all handshakes of TLS 1.3 over TCP and over QUIC,
/// and of TLS 1.2 without TCP Fast Open. Only our client at the first server counts, on the path
/// closest to [`TYPICAL_RTT_MS`], in an experiment with GETs if there is one.
fn typical_cells(plan: &Plan) -> Vec<usize> {
    // Traces are selected by the client's address, which only our client reports.
    let ours = || plan.cells.iter().filter(|cell| cell.client == ClientKind::Firstflight);
    let get = |cell: &&crate::PlannedCell| cell.requested.workload == Workload::Get;
    let Some(first) = ours().find(get).or_else(|| ours().next()) else {
        return Vec::new();
    };
    let same = |cell: &&crate::PlannedCell| {
        (cell.experiment, cell.client, cell.server)
            == (first.experiment, first.client, first.server)
            && cell.requested.workload == first.requested.workload
    };
    let distance =
        |path: &usize| (plan.paths[*path].rtt_ms().max(0.01) / TYPICAL_RTT_MS).ln().abs();
    let paths = plan.cells.iter().filter(same).map(|cell| cell.path);
    let path = paths.min_by(|a, b| distance(a).total_cmp(&distance(b)));
    let typical = |index: &usize| {
        let cell = &plan.cells[*index];
        let (requested, reference) = (&cell.requested, &first.requested);
        same(&cell)
            && Some(cell.path) == path
            && cell.control_of.is_none()
            && (requested.http == reference.http || requested.over_quic())
            && (requested.group, requested.cipher, requested.certificate, requested.size)
                == (reference.group, reference.cipher, reference.certificate, reference.size)
            && requested.compression == reference.compression
            && match requested.version {
                Version::Tls13 => true,
                Version::Tls12 => !requested.tfo,
                _ => false,
            }
    };
    (0..plan.cells.len()).filter(typical).collect()
}

/// Long enough that delay outweighs processing, short enough to be common.
const TYPICAL_RTT_MS: f64 = 20.0;

/// The path of a cell's capture, relative to the record.
fn file_name(plan: &Plan, cell: usize) -> String {
    capture_path(&cell_properties(plan, cell).join("-"))
}

/// The properties of a cell, without defaults.
fn cell_properties(plan: &Plan, cell: usize) -> Vec<String> {
    let planned = &plan.cells[cell];
    let requested = &planned.requested;
    let mut properties = vec![
        format!("{:03}", cell),
        planned.server.name().to_owned(),
        requested.workload.name().to_owned(),
        plan.paths[planned.path].name().to_owned(),
        match requested.transport {
            Transport::Tcp => format!("TLS {}", version_number(requested.version)),
            Transport::Quic => "QUIC".to_owned(),
        },
        requested.kind.name().to_owned(),
    ];
    let mut add_if =
        |condition: bool, property: &str| properties.extend(condition.then(|| property.to_owned()));
    add_if(requested.kind == HandshakeKind::Refused, "early data");
    add_if(requested.tfo, "TFO");
    add_if(requested.token, "token");
    add_if(planned.client != ClientKind::Firstflight, planned.client.name());
    if requested.workload == Workload::Get {
        add_if(requested.http == HttpVersion::Two, "h2");
        add_if(requested.http == HttpVersion::Three, "h3");
        add_if(requested.size != crate::ResponseSize::OneKib, requested.size.name());
    }
    add_if(requested.group != crate::Group::X25519, requested.group.name());
    add_if(requested.cipher != crate::CipherSuite::Negotiated, requested.cipher.name());
    add_if(
        requested.certificate != crate::CertificateKind::EcdsaP256,
        requested.certificate.name(),
    );
    add_if(requested.compression, "compressed");
    add_if(planned.control_of.is_some(), "control");
    properties
}

fn cell_description(plan: &Plan, cell: usize) -> String {
    cell_properties(plan, cell)[1..].join(", ")
}

#[cfg(test)]
mod tests {
    use firstflight_emulator::Profile;

    use super::*;
    use crate::{Axes, Experiment, ServerKind};

    /// The clients of the cells for which a typical sample is shown.
    fn clients_of_typical_cells(clients: &[ClientKind]) -> Vec<ClientKind> {
        let experiment = Experiment {
            name: "matrix".to_owned(),
            title: String::new(),
            profiles: vec![Profile::parse("20").unwrap()],
            axes: Axes::baseline(),
            samples: 1,
            control: false,
        };
        let mut plan = Plan::new(&[experiment], &|_: ServerKind, _: &_| None, 1);
        let cells = plan.cells.clone();
        // Set here, since a plan has only clients that are installed.
        let cells_of = |client: &ClientKind| {
            let client = *client;
            cells.iter().map(move |cell| crate::PlannedCell { client, ..cell.clone() })
        };
        plan.cells = clients.iter().flat_map(cells_of).collect();
        typical_cells(&plan).into_iter().map(|cell| plan.cells[cell].client).collect()
    }

    #[test]
    fn a_bounded_number_of_candidates_is_kept_from_the_whole_run() {
        let (mut reservoir, mut rng) = (Reservoir::default(), StdRng::seed_from_u64(7));
        for sample in 0..1_000 {
            reservoir.add(&mut rng, || Some(sample));
        }
        assert_eq!(reservoir.items.len(), MAX_CANDIDATES);
        assert!(reservoir.items.iter().any(|sample| *sample < 500));
        assert!(reservoir.items.iter().any(|sample| *sample >= 500));
    }

    #[test]
    fn typical_samples_are_those_of_our_client() {
        use ClientKind::{Curl, Firstflight};
        let ours = clients_of_typical_cells(&[Firstflight]);
        assert!(!ours.is_empty() && ours.iter().all(|client| *client == Firstflight), "{ours:?}");
        assert_eq!(clients_of_typical_cells(&[Curl, Firstflight]), ours);
        assert!(clients_of_typical_cells(&[Curl]).is_empty());
    }
}
