//! What happens between a first flight and its copy.

use std::cell::{Cell as Counter, RefCell};
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use firstflight_audit::{Node, Report, Settings, Target, TcpTarget, Verdict, audit};
use firstflight_first_flight::Link;

use crate::nodes::Nodes;
use crate::peer::Peer;
use crate::table::{Cell, Outcome};

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Row {
    SameInstance,
    CopyDelayed,
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
    pub(crate) const ALL: [Self; 10] = [
        Self::SameInstance,
        Self::CopyDelayed,
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

    fn checks(self) -> &'static [&'static str] {
        match self {
            Self::SameInstance => &["replay-at-once", "replay-concurrent"],
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

    pub(crate) fn wants_nodes(self) -> bool {
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
        let (mut attempts, deadline) = (0, Instant::now() + WINDOW);
        while attempts < required(peer) {
            nodes.borrow().reset_clock();
            nodes.borrow().wait_until_ready();
            let Some(report) = attempt(&nodes, row, check) else {
                return Cell::undecided(peer, row, nodes.borrow().stderr());
            };
            if !report.server.ends_with(peer.recognised()) {
                return Cell::undecided(peer, row, format!("taken for {}", report.server));
            }
            let finding = report.findings.first().expect("a check has a finding");
            let cell = Cell::found(peer, row, finding);
            match finding.verdict {
                // For a while after a start early data is refused.
                Verdict::Inconclusive if Instant::now() < deadline => {
                    thread::sleep(Duration::from_secs(1));
                }
                Verdict::Pass | Verdict::NotApplicable => {
                    attempts += 1;
                    kept.get_or_insert(cell);
                }
                Verdict::Inconclusive => {
                    return Cell {
                        evidence: [cell.evidence.clone(), vec![nodes.borrow().stderr()]].concat(),
                        ..cell
                    };
                }
                _ => return cell,
            }
        }
    }
    kept.expect("a row has a check")
}

/// How often the rule has to be kept. nginx' copies have ten seconds, which a busy machine may miss.
fn required(peer: Peer) -> usize {
    if peer == Peer::Nginx { 6 } else { 2 }
}

/// Longer than any window in which no early data is accepted.
const WINDOW: Duration = Duration::from_secs(150);

/// One run of a check; `None` if the server cannot be audited.
fn attempt(nodes: &RefCell<Nodes>, row: Row, check: &str) -> Option<Report> {
    let defaults = Settings::new("localhost", "localhost", "/proxied/witness");
    let settings = Settings {
        witness: true,
        limit: LIMIT,
        delays: row.delays(nodes.borrow().count()),
        only: vec![check.to_owned()],
        refused_ages: match row {
            Row::PolicyChange => vec![Duration::ZERO],
            _ => defaults.refused_ages.clone(),
        },
        ..defaults
    };
    let base = TcpTarget::new(nodes.borrow().address(0), LIMIT);
    let scene = Scene {
        nodes,
        row,
        base,
        concurrent: check == "replay-concurrent",
        connections: Counter::new(0),
        waits: Counter::new(0),
        current: Counter::new(0),
    };
    audit(&[Node { address: String::new(), target: &scene }], &settings, "", |_| {}).ok()
}

/// How long a handshake or a response may take.
const LIMIT: Duration = Duration::from_secs(30);

/// The nodes as an audit sees them. Before a copy is sent, an audit waits: that is where things happen.
struct Scene<'a> {
    nodes: &'a RefCell<Nodes>,
    row: Row,
    base: TcpTarget,
    /// Whether each connection goes to the next node.
    concurrent: bool,
    connections: Counter<usize>,
    waits: Counter<usize>,
    /// The node that is connected to.
    current: Counter<usize>,
}

/// The connection of the original: the survey and the one for a ticket come before it.
const ORIGINAL: usize = 3;

impl Target for Scene<'_> {
    fn connect(&self) -> io::Result<Box<dyn Link>> {
        self.connections.set(self.connections.get() + 1);
        let mut nodes = self.nodes.borrow_mut();
        if self.row == Row::PolicyChange && self.connections.get() == ORIGINAL {
            nodes.set_early_data(false);
        }
        let node = match self.concurrent && self.row == Row::OtherNode {
            true => self.connections.get() % nodes.count(),
            false => self.current.get(),
        };
        self.base.at(nodes.address(node)).connect()
    }

    fn now(&self) -> Duration {
        self.base.now()
    }

    fn wait(&self, time: Duration) {
        self.base.wait(time);
        self.waits.set(self.waits.get() + 1);
        let mut nodes = self.nodes.borrow_mut();
        match self.row {
            Row::OtherNode | Row::ClockSkew | Row::RefusalOtherNode => {
                self.current.set(self.waits.get() % nodes.count());
            }
            Row::Restart => nodes.restart(),
            Row::ClockStep => nodes.step_clock(self.waits.get()),
            Row::PolicyChange => nodes.set_early_data(true),
            Row::SameInstance | Row::CopyDelayed | Row::OriginalDelayed | Row::Refusal => {}
        }
    }
}

/// The result of a verdict. What the RFC leaves to the server is a risk all the same.
pub(crate) fn outcome(verdict: Verdict) -> Outcome {
    match verdict {
        Verdict::Pass => Outcome::Once,
        Verdict::Fail | Verdict::Warn => Outcome::Again,
        Verdict::NotApplicable => Outcome::NotApplicable,
        Verdict::Inconclusive => Outcome::Undecided,
    }
}
