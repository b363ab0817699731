//! Captures beside the record, and the packets of typical samples.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::BufWriter;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use firstflight_emulator::{Batch, CapturedPacket};
use firstflight_packets::pcapng::Writer;
use firstflight_packets::{Direction, FirstResponse, KeyLog, LastResponse, Trace};
use firstflight_report::{Capture, Cell, Sample, Waterfall, WaterfallPacket};
use firstflight_samples::{
    ClientRecord, Flow, Flows, Scene, append, begin, file_for, version_number, wire_packet,
};
use firstflight_tls::Version;

use crate::plan::Plan;
use crate::{Client, Http, Kind, LabError, Transport, Workload};

/// Which samples' packets are written to files, their secrets with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Captures {
    /// None.
    None,
    /// One good sample of each cell.
    #[default]
    One,
    /// All samples, a file for each cell.
    All,
}

/// The captures of a run as they come about.
pub(crate) struct CaptureCollector<'a> {
    mode: Captures,
    /// Where the record will lie; the files are in a directory below.
    output: Option<&'a Path>,
    plan: &'a Plan,
    /// The cells of which a typical sample is shown packet by packet.
    typical: Vec<usize>,
    kept: Vec<Kept>,
    open: HashMap<usize, Open>,
    written: HashMap<usize, Capture>,
}

/// A good sample of a cell that is shown.
struct Kept {
    cell: usize,
    time_ms: f64,
    label: String,
    trace: Trace,
    first_byte_ns: u64,
    last_byte_ns: u64,
    packets: Vec<CapturedPacket>,
    secrets: Vec<String>,
}

struct Open {
    writer: Writer<BufWriter<File>>,
    capture: Capture,
}

impl<'a> CaptureCollector<'a> {
    pub(crate) fn new(mode: Captures, output: Option<&'a Path>, plan: &'a Plan) -> Self {
        Self {
            mode: if output.is_some() { mode } else { Captures::None },
            output,
            plan,
            typical: shown(plan),
            kept: Vec::new(),
            open: HashMap::new(),
            written: HashMap::new(),
        }
    }

    /// The client's ends of samples whose packets have to be traced.
    pub(crate) fn traced(&self, taken: &[ClientRecord]) -> HashSet<SocketAddr> {
        let shown = taken.iter().filter(|taken| self.typical.contains(&taken.slot.cell));
        shown.filter_map(|taken| taken.local).collect()
    }

    /// Keeps or writes what is wanted of a sample.
    pub(crate) fn add(
        &mut self,
        batch: &Batch,
        flows: &Flows,
        keys: &KeyLog,
        taken: &ClientRecord,
        sample: &Sample,
    ) -> Result<(), LabError> {
        let Some(flow) = flows.flow(taken) else { return Ok(()) };
        let (cell, good) = (taken.slot.cell, sample.fault.is_none());
        let shown = good && self.typical.contains(&cell);
        let first = good && !self.written.contains_key(&cell) && !self.typical.contains(&cell);
        let write = match self.mode {
            Captures::None => false,
            Captures::One => first,
            Captures::All => true,
        };
        if !shown && !write {
            return Ok(());
        }
        let packets: Vec<&CapturedPacket> =
            flows.packets(batch, flow).filter(|p| flow.facts.owns(&wire_packet(p))).collect();
        let secrets =
            flow.facts.tls.as_ref().map_or_else(Vec::new, |tls| keys.lines_for(&tls.client_random));
        if write {
            self.write(cell, &packets, &secrets)?;
            if self.mode == Captures::One {
                self.close(cell)?;
            }
        }
        if shown {
            let packets = packets.into_iter().cloned().collect();
            self.kept.extend(Kept::new(cell, flow, sample, packets, secrets));
        }
        Ok(())
    }

    /// Chooses the typical samples, and ends all files.
    pub(crate) fn finish(
        mut self,
        cells: &[Cell],
    ) -> Result<(Vec<Waterfall>, Vec<Capture>), LabError> {
        let mut waterfalls = Vec::new();
        for cell in self.typical.clone() {
            let Some(summary) = &cells[cell].summary else { continue };
            let median = summary.first_byte.p50_ms;
            let of_cell = (0..self.kept.len()).filter(|kept| self.kept[*kept].cell == cell);
            let nearest = of_cell.min_by(|a, b| {
                let off = |index: &usize| (self.kept[*index].time_ms - median).abs();
                off(a).total_cmp(&off(b))
            });
            let Some(nearest) = nearest else { continue };
            let kept = self.kept.swap_remove(nearest);
            if self.mode == Captures::One {
                self.write(cell, &kept.packets.iter().collect::<Vec<_>>(), &kept.secrets)?;
                self.close(cell)?;
            }
            let file = match self.mode {
                Captures::None => None,
                Captures::One | Captures::All => Some(file_name(self.plan, cell)),
            };
            waterfalls.push(kept.waterfall(file));
        }
        for cell in self.open.keys().copied().collect::<Vec<_>>() {
            self.close(cell)?;
        }
        let mut written: Vec<(usize, Capture)> = self.written.into_iter().collect();
        written.sort_unstable_by_key(|(cell, _)| *cell);
        Ok((waterfalls, written.into_iter().map(|(_, capture)| capture).collect()))
    }

    /// Writes a connection to its cell's file.
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
            let what = in_words(self.plan, cell);
            let comment = "times are those at the link, before its delay";
            let scene = Scene { interface: "link", comment, what: &what };
            let writer = begin(&path, &scene).map_err(failed)?;
            let capture = Capture { file: name, what, connections: 0 };
            self.open.insert(cell, Open { writer, capture });
        }
        let Some(open) = self.open.get_mut(&cell) else { return Ok(()) };
        open.capture.connections += 1;
        append(&mut open.writer, packets, secrets).map_err(failed)
    }

    fn close(&mut self, cell: usize) -> Result<(), LabError> {
        let Some(Open { writer, capture }) = self.open.remove(&cell) else { return Ok(()) };
        writer.finish().map_err(|source| LabError::File {
            verb: "write",
            path: PathBuf::from(&capture.file),
            source,
        })?;
        self.written.insert(cell, capture);
        Ok(())
    }
}

impl Kept {
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

/// The cells of which a typical sample is shown: all kinds of TLS 1.3 over TCP and over QUIC, and
/// TLS 1.2 without TCP Fast Open, at the first server, on the path that is nearest to
/// [`SHOWN_RTT_MS`]; of an experiment with GETs if there is one.
fn shown(plan: &Plan) -> Vec<usize> {
    let get = |cell: &&crate::PlannedCell| cell.asked.workload == Workload::Get;
    let Some(first) = plan.cells.iter().find(get).or(plan.cells.first()) else {
        return Vec::new();
    };
    let same = |cell: &&crate::PlannedCell| {
        (cell.experiment, cell.client, cell.server)
            == (first.experiment, first.client, first.server)
            && cell.asked.workload == first.asked.workload
    };
    let distance = |path: &usize| (plan.paths[*path].rtt_ms().max(0.01) / SHOWN_RTT_MS).ln().abs();
    let paths = plan.cells.iter().filter(same).map(|cell| cell.path);
    let path = paths.min_by(|a, b| distance(a).total_cmp(&distance(b)));
    let shown = |index: &usize| {
        let cell = &plan.cells[*index];
        let (asked, as_first) = (&cell.asked, &first.asked);
        same(&cell)
            && Some(cell.path) == path
            && cell.twin_of.is_none()
            && (asked.http == as_first.http || asked.over_quic())
            && (asked.group, asked.certificate, asked.size)
                == (as_first.group, as_first.certificate, as_first.size)
            && match asked.version {
                Version::Tls13 => true,
                Version::Tls12 => !asked.tfo,
                _ => false,
            }
    };
    (0..plan.cells.len()).filter(shown).collect()
}

/// Long enough that delays can be told from computing, short enough to be familiar.
const SHOWN_RTT_MS: f64 = 20.0;

/// The file of a cell, relative to the record.
fn file_name(plan: &Plan, cell: usize) -> String {
    file_for(&words(plan, cell).join("-"))
}

/// A cell in words, what goes without saying left out.
fn words(plan: &Plan, cell: usize) -> Vec<String> {
    let planned = &plan.cells[cell];
    let asked = &planned.asked;
    let mut words = vec![
        format!("{:03}", cell),
        planned.server.name().to_owned(),
        asked.workload.name().to_owned(),
        plan.paths[planned.path].name().to_owned(),
        match asked.transport {
            Transport::Tcp => format!("TLS {}", version_number(asked.version)),
            Transport::Quic => "QUIC".to_owned(),
        },
        asked.kind.name().to_owned(),
    ];
    let mut say = |said: bool, word: &str| words.extend(said.then(|| word.to_owned()));
    say(asked.kind == Kind::Refused, "early data");
    say(asked.tfo, "TFO");
    say(asked.token, "token");
    say(planned.client != Client::Firstflight, planned.client.name());
    if asked.workload == Workload::Get {
        say(asked.http == Http::Two, "h2");
        say(asked.http == Http::Three, "h3");
        say(asked.size != crate::Size::OneKib, asked.size.name());
    }
    say(asked.group != crate::Group::X25519, asked.group.name());
    say(asked.certificate != crate::Certificate::EcdsaP256, asked.certificate.name());
    say(planned.twin_of.is_some(), "control");
    words
}

fn in_words(plan: &Plan, cell: usize) -> String {
    words(plan, cell)[1..].join(", ")
}
