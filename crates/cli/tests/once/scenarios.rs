//! Events between an honest request and the copies of its flight: nothing, a setting that is
//! changed and changed back, a setting that is changed on some nodes only, or a restart.

use std::thread;
use std::time::Duration;

use crate::client::Transport;
use crate::honest::{Honest, concurrently};
use crate::plan::{Attempt, Plan};
use crate::report::{Label, Row};
use crate::server::Server;
use crate::settings::Switch;
use crate::stage::{Servers, Shared, Stage};

/// One process with punctured keys for all shifts.
pub(crate) static PUNCTURED: Shared = Shared::new(Servers::OnePunctured);

/// One process with keys of its own for all shifts.
pub(crate) static ONE: Shared = Shared::new(Servers::One);

/// Three nodes for all shifts.
pub(crate) static THREE: Shared = Shared::new(Servers::NodesByStore(3));

/// A shift over TCP and QUIC.
pub(crate) fn shift(plan: &Plan, servers: &'static Shared, label: &Label, shift: i64) -> Vec<Row> {
    let stage = servers.get();
    let nodes = stage.addresses();
    let transports = [Transport::Http1, Transport::Http2, Transport::Http3];
    concurrently(&Attempt::all(plan, &transports, shift), |&attempt| {
        let ticket = stage.client.ticket(attempt.transport, nodes[0]).unwrap();
        if shift < 0 {
            // A ticket cannot be issued in the future.
            thread::sleep(Duration::from_secs(shift.unsigned_abs() + 2));
        }
        let honest = Honest::start(&stage.client, attempt, nodes[0], &ticket).finish();
        let copies = honest.copies(&nodes, plan);
        honest.row(&stage, label, copies, &[])
    })
}

/// A client that closes its connection when its early data is refused, and sends its request again
/// on another one, as Chromium does over TCP.
pub(crate) fn reconnect(plan: &Plan, servers: &'static Shared, label: &Label) -> Vec<Row> {
    let stage = servers.get();
    let nodes = stage.addresses();
    // With punctured keys the gate accepts what TLS does.
    let shift = if label.servers == Servers::OnePunctured { REFUSED_BY_TLS } else { REFUSED };
    concurrently(&Attempt::all(plan, &[Transport::Http1], shift), |&attempt| {
        let ticket = stage.client.ticket(attempt.transport, nodes[0]).unwrap();
        let honest = Honest::reconnecting(&stage.client, attempt, nodes[0], &ticket).finish();
        let copies = honest.copies(&nodes, plan);
        honest.row(&stage, label, copies, &[])
    })
}

/// A shift that is refused, with copies that become fresh within a short run.
const REFUSED: i64 = 30;

/// A shift beyond the library's limit of 60 s.
const REFUSED_BY_TLS: i64 = 70;

/// How an operator changes a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeMethod {
    /// SIGHUP.
    Reload,
    /// SIGUSR2.
    Upgrade,
}

impl ChangeMethod {
    fn switch(self, server: &mut Server, switch: Option<Switch>) {
        match self {
            Self::Reload => server.reload(switch),
            Self::Upgrade => server.upgrade(switch),
        }
    }
}

/// A setting is changed, so that flights are refused and their requests sent again. Then it is
/// changed back, and copies are sent.
pub(crate) fn switch_and_back(
    plan: &Plan,
    label: &Label,
    method: ChangeMethod,
    switch: Switch,
    shift: i64,
) -> Vec<Row> {
    let stage = Stage::start(label.servers);
    stage.wait_for_early_data();
    let address = stage.address(0);
    let tickets = concurrently(&Attempt::all(plan, switch.transports(), shift), |&attempt| {
        (attempt, stage.client.ticket(attempt.transport, address).unwrap())
    });
    method.switch(&mut stage.node(0), Some(switch));
    let recorded = concurrently(&tickets, |(attempt, ticket)| {
        Honest::start(&stage.client, *attempt, address, ticket).finish()
    });
    method.switch(&mut stage.node(0), None);
    concurrently(&recorded, |honest| {
        let copies = honest.copies(&[address], plan);
        honest.row(&stage, label, copies, &[])
    })
}

/// Two unchanged nodes, and one for each setting.
pub(crate) static NODES: Shared = Shared::new(Servers::NodesByFile(2 + Switch::ALL.len()));

/// One node with a changed setting refuses flights. Their copies are sent to the other nodes.
pub(crate) fn node_by_node(plan: &Plan, label: &Label, switch: Switch, shift: i64) -> Vec<Row> {
    let stage = NODES.get();
    let number = 2 + Switch::ALL.iter().position(|other| *other == switch).unwrap();
    let nodes = [stage.address(0), stage.address(1), stage.address(number)];
    stage.node(number).reload(Some(switch));
    concurrently(&Attempt::all(plan, switch.transports(), shift), |&attempt| {
        let ticket = stage.client.ticket(attempt.transport, nodes[0]).unwrap();
        let honest = Honest::start(&stage.client, attempt, nodes[2], &ticket).finish();
        let copies = honest.copies(&nodes, plan);
        honest.row(&stage, label, copies, &[])
    })
}

/// A flight is refused because of its age, or executed early. Then the server is restarted.
pub(crate) fn restart(plan: &Plan, label: &Label, shift: i64) -> Vec<Row> {
    let stage = Stage::start(label.servers);
    // A short run does not wait for the window after the start, so a flight may be refused then.
    if plan.long || label.servers != Servers::OneWithKeyFile {
        stage.wait_for_early_data();
    }
    let address = stage.address(0);
    let attempts = Attempt::all(plan, &[Transport::Http1, Transport::Http3], shift);
    let recorded = concurrently(&attempts, |&attempt| {
        let ticket = stage.client.ticket(attempt.transport, address).unwrap();
        Honest::start(&stage.client, attempt, address, &ticket).finish()
    });
    stage.node(0).restart();
    let address = stage.address(0);
    concurrently(&recorded, |honest| {
        let copies = honest.copies(&[address], plan);
        honest.row(&stage, label, copies, &[])
    })
}
