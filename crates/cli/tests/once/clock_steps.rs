//! Clocks that are set, with punctured keys: tickets from before bring early data, no flight is executed
//! twice, and a new process accepts early data at once.

use std::time::Duration;

use crate::attacker::Copies;
use crate::client::{Ticket, Transport};
use crate::honest::{Honest, Recorded, concurrently};
use crate::plan::{Attack, Attempt};
use crate::report::{Label, Row};
use crate::settings::Settings;
use crate::stage::Stage;

/// What follows a step of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// SIGUSR2.
    Upgrade,
    /// SIGTERM, and another process.
    Restart,
    /// SIGKILL, and another process.
    Crash,
}

impl After {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::Upgrade, Self::Restart, Self::Crash];

    /// The name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Upgrade => "upgrade",
            Self::Restart => "restart",
            Self::Crash => "crash",
        }
    }
}

/// The clock is set, the process is replaced, and the clock is set back. Requests before, between and
/// after these; copies of all of them while the clock is off, and afterwards. All must be early, on
/// tickets from before a step, too, unless another process issued them.
pub(crate) fn clock_step(label: &Label, step: i64, after: After) -> Vec<Row> {
    let stage = Stage::start_with(
        label.servers,
        |_| unreachable!("no store"),
        |settings| Settings { settable_clock: true, ..settings },
    );
    let first = visit(&stage, tickets(&stage));
    let [kept, carried] = [tickets(&stage), tickets(&stage)];
    stage.node(0).set_clock(step);
    let second = visit(&stage, kept);
    match after {
        After::Upgrade => stage.node(0).upgrade(None),
        After::Restart => stage.node(0).restart(),
        After::Crash => stage.node(0).crash(),
    }
    let third = visit(
        &stage,
        match after {
            After::Upgrade => carried,
            After::Restart | After::Crash => tickets(&stage),
        },
    );
    let kept = tickets(&stage);
    let recorded: Vec<_> = [first, second, third].into_iter().flatten().collect();
    // While the clock is off, and when it is right again.
    let off = copies(&stage, &recorded);
    stage.node(0).set_clock(0);
    let fourth = visit(&stage, kept);
    let right = copies(&stage, &recorded);
    let last = copies(&stage, &fourth);
    let rows = recorded.iter().zip(off.into_iter().zip(right)).map(|(recorded, (off, right))| {
        (
            recorded,
            Copies { sent: off.sent + right.sent, responses: off.responses + right.responses },
        )
    });
    let rows = rows.chain(fourth.iter().zip(last));
    rows.map(|(recorded, copies)| recorded.row(&stage, label, copies, &[]).early()).collect()
}

/// A ticket for each transport.
fn tickets(stage: &Stage) -> Vec<(Attempt, Ticket)> {
    let transports = [Transport::Http1, Transport::Http3];
    concurrently(transports, |transport| {
        let attempt = Attempt { transport, shift: 0, attack: Attack::Eager };
        (attempt, stage.client.ticket(transport, stage.address(0)).unwrap())
    })
}

/// A request on each of these tickets.
fn visit(stage: &Stage, tickets: Vec<(Attempt, Ticket)>) -> Vec<Recorded> {
    concurrently(tickets, |(attempt, ticket)| {
        Honest::start(&stage.client, attempt, stage.address(0), &ticket).finish()
    })
}

fn copies(stage: &Stage, recorded: &[Recorded]) -> Vec<Copies> {
    concurrently(recorded, |recorded| recorded.copies_for(&[stage.address(0)], COPY_TIME))
}

/// Longer than a server needs to notice that its clock was set.
const COPY_TIME: Duration = Duration::from_secs(5);
