//! What happens between a first flight and its copy.

use std::cell::{Cell as Counter, RefCell};
use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use firstflight_audit::{Finding, Node, Report, Settings, Target, Verdict, audit};
use firstflight_first_flight::{Link, TcpLink, UdpLink};

use crate::nodes::Nodes;
use crate::peer::{Peer, Server};
use crate::table::{Cell, Outcome};

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Row {
    SameInstance,
    CopyDelayed,
    /// Over QUIC.
    Addresses,
    /// Over QUIC.
    ConnectionIds,
    OtherNode,
    Restart,
    ClockSkew,
    ClockStep,
    OriginalDelayed,
    Refusal,
    RefusalOtherNode,
    PolicyChange,
}

impl Row {
    pub(crate) const ALL: [Self; 12] = [
        Self::SameInstance,
        Self::CopyDelayed,
        Self::Addresses,
        Self::ConnectionIds,
        Self::OtherNode,
        Self::Restart,
        Self::ClockSkew,
        Self::ClockStep,
        Self::OriginalDelayed,
        Self::Refusal,
        Self::RefusalOtherNode,
        Self::PolicyChange,
    ];

    /// The name in the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::SameInstance => "same instance, at once and at the same time",
            Self::CopyDelayed => "same instance, after 1 to 20 s",
            Self::Addresses => "same instance, from the same address and others after 1 s",
            Self::ConnectionIds => "same instance, under other connection ids",
            Self::OtherNode => "other node, same ticket keys",
            Self::Restart => "restart with kept ticket keys",
            Self::ClockSkew => "other node, its clock 5 s off",
            Self::ClockStep => "clock set an hour ahead and back, then 20 s back",
            Self::OriginalDelayed => "original after its copy",
            Self::Refusal => "refused for its age, resent, copy when fresh",
            Self::RefusalOtherNode => "the same, copy at the other node",
            Self::PolicyChange => "refused while early data is off, copy when on",
        }
    }

    /// The name in commands.
    pub(crate) fn slug(self) -> &'static str {
        match self {
            Self::SameInstance => "same-instance",
            Self::CopyDelayed => "copy-delayed",
            Self::Addresses => "addresses",
            Self::ConnectionIds => "connection-ids",
            Self::OtherNode => "other-node",
            Self::Restart => "restart",
            Self::ClockSkew => "clock-skew",
            Self::ClockStep => "clock-step",
            Self::OriginalDelayed => "original-delayed",
            Self::Refusal => "refusal",
            Self::RefusalOtherNode => "refusal-other-node",
            Self::PolicyChange => "policy-change",
        }
    }

    /// Whether the row applies only to QUIC.
    pub(crate) fn needs_quic(self) -> bool {
        matches!(self, Self::Addresses | Self::ConnectionIds)
    }

    fn checks(self) -> &'static [&'static str] {
        match self {
            Self::SameInstance => &["replay-at-once", "replay-concurrent"],
            Self::Addresses => &["replay-addresses"],
            Self::ConnectionIds => &["replay-connection-ids"],
            Self::OtherNode => &["replay-delayed", "replay-concurrent"],
            Self::CopyDelayed | Self::Restart | Self::ClockSkew | Self::ClockStep => {
                &["replay-delayed"]
            }
            Self::OriginalDelayed => &["overtaken-flight"],
            Self::Refusal | Self::RefusalOtherNode | Self::PolicyChange => &["refused-flight"],
        }
    }

    /// The offsets of the nodes' clocks, if they have clocks of their own.
    pub(crate) fn clocks(self) -> Option<[&'static str; 3]> {
        match self {
            Self::ClockSkew => Some(["+0s", "+5s", "-5s"]),
            Self::ClockStep => Some(["+0s"; 3]),
            _ => None,
        }
    }

    pub(crate) fn needs_other_nodes(self) -> bool {
        matches!(self, Self::OtherNode | Self::ClockSkew | Self::RefusalOtherNode)
    }

    fn delays(self, nodes: usize) -> Vec<Duration> {
        match self {
            Self::CopyDelayed => [1, 5, 10, 20].map(Duration::from_secs).to_vec(),
            // One copy for each other node.
            Self::OtherNode | Self::ClockSkew => vec![Duration::ZERO; nodes - 1],
            Self::ClockStep => vec![Duration::ZERO; 2],
            _ => vec![Duration::ZERO],
        }
    }
}

/// Runs the checks of a row, until the rule is broken or kept several times.
pub(crate) fn measure(peer: Peer, row: Row) -> Cell {
    let nodes = RefCell::new(Nodes::start(peer, row));
    let mut kept = None;
    for &check in row.checks() {
        let (mut attempts, deadline) = (0, Instant::now() + UNDECIDED_TIMEOUT);
        while attempts < required(peer) {
            nodes.borrow().reset_clock();
            nodes.borrow().wait_until_ready();
            let Some(report) = attempt(peer, &nodes, row, check) else {
                return Cell::undecided(peer, row, nodes.borrow().stderr());
            };
            if !report.server.ends_with(peer.recognised()) {
                return Cell::undecided(peer, row, format!("taken for {}", report.server));
            }
            let finding = report.findings.first().expect("a check has a finding");
            let counted = if peer.has_witness() { None } else { nodes.borrow().most_executions() };
            let cell = Cell::found(peer, row, finding, outcome(row, finding, counted), counted);
            match cell.result {
                // For a while after a start early data is refused.
                Outcome::Undecided if Instant::now() < deadline => {
                    thread::sleep(Duration::from_secs(1));
                }
                Outcome::Once | Outcome::NotApplicable => {
                    attempts += 1;
                    kept.get_or_insert(cell);
                }
                Outcome::Undecided => {
                    return Cell {
                        evidence: [cell.evidence.clone(), vec![nodes.borrow().stderr()]].concat(),
                        ..cell
                    };
                }
                Outcome::Again | Outcome::AgainByClient => return cell,
            }
        }
    }
    kept.expect("a row has a check")
}

/// How often the rule has to hold. nginx accepts copies for ten seconds, which a busy machine may
/// miss.
fn required(peer: Peer) -> usize {
    if peer.server == Server::Nginx { 6 } else { 2 }
}

/// Longer than any window in which no early data is accepted.
const UNDECIDED_TIMEOUT: Duration = Duration::from_secs(150);

/// One run of a check; `None` if the server cannot be audited.
fn attempt(peer: Peer, nodes: &RefCell<Nodes>, row: Row, check: &str) -> Option<Report> {
    let defaults = Settings::new("localhost", "localhost", "/proxied/witness");
    let settings = Settings {
        witness: peer.has_witness(),
        http3: peer.quic,
        limit: RESPONSE_TIMEOUT,
        delays: row.delays(nodes.borrow().count()),
        only: vec![check.to_owned()],
        refused_ages: match row {
            Row::PolicyChange => vec![Duration::ZERO],
            _ => defaults.refused_ages.clone(),
        },
        ..defaults
    };
    let scene = Scene {
        nodes,
        row,
        quic: peer.quic,
        epoch: Instant::now(),
        concurrent: check == "replay-concurrent",
        connections: Counter::new(0),
        waits: Counter::new(0),
        current: Counter::new(0),
    };
    audit(&[Node { address: String::new(), target: &scene }], &settings, "", |_| {}).ok()
}

/// How long a handshake or a response may take.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// The nodes as an audit sees them. What a row describes happens while the audit waits before a
/// copy.
struct Scene<'a> {
    nodes: &'a RefCell<Nodes>,
    row: Row,
    quic: bool,
    epoch: Instant,
    /// Whether each connection goes to the next node.
    concurrent: bool,
    connections: Counter<usize>,
    waits: Counter<usize>,
    /// The node to which connections go.
    current: Counter<usize>,
}

/// The number of the original's connection: the survey and one for a ticket come before it.
const ORIGINAL: usize = 3;

impl Scene<'_> {
    fn link(&self, local: Option<SocketAddr>) -> io::Result<Box<dyn Link>> {
        self.connections.set(self.connections.get() + 1);
        let mut nodes = self.nodes.borrow_mut();
        if self.row == Row::PolicyChange && self.connections.get() == ORIGINAL {
            nodes.set_early_data(false);
        }
        let node = match self.concurrent && self.row == Row::OtherNode {
            true => self.connections.get() % nodes.count(),
            false => self.current.get(),
        };
        let address = nodes.address(node);
        Ok(match self.quic {
            true => Box::new(UdpLink::connect(address, local, self.epoch)?),
            false => Box::new(TcpLink::connect(address, RESPONSE_TIMEOUT, self.epoch)?),
        })
    }
}

impl Target for Scene<'_> {
    fn connect(&self) -> io::Result<Box<dyn Link>> {
        self.link(None)
    }

    fn connect_from(&self, local: SocketAddr) -> io::Result<Box<dyn Link>> {
        self.link(Some(local))
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn wait(&self, time: Duration) {
        thread::sleep(time);
        self.waits.set(self.waits.get() + 1);
        let mut nodes = self.nodes.borrow_mut();
        match self.row {
            Row::OtherNode | Row::ClockSkew | Row::RefusalOtherNode => {
                self.current.set(self.waits.get() % nodes.count());
            }
            Row::Restart => nodes.restart(),
            Row::ClockStep => nodes.step_clock(self.waits.get()),
            Row::PolicyChange => nodes.set_early_data(true),
            Row::SameInstance
            | Row::CopyDelayed
            | Row::Addresses
            | Row::ConnectionIds
            | Row::OriginalDelayed
            | Row::Refusal => {}
        }
    }
}

/// The result of a finding and of the server's own log. Behaviour that the RFC permits is a risk,
/// too.
fn outcome(row: Row, finding: &Finding, counted: Option<u64>) -> Outcome {
    match (finding.verdict, counted) {
        (Verdict::Inconclusive, _) => Outcome::Undecided,
        (Verdict::NotApplicable, _) => Outcome::NotApplicable,
        (Verdict::Pass, None | Some(1)) | (Verdict::Warn, Some(1)) => Outcome::Once,
        // The check has sent it to see what the server remembers.
        (Verdict::Warn, _) if row == Row::ConnectionIds => Outcome::AgainByClient,
        (_, Some(0)) => Outcome::Undecided,
        _ => Outcome::Again,
    }
}
