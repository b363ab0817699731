//! Flights at nodes that cannot reach the store. Their requests may have to wait for it.

use std::thread;
use std::time::Duration;

use firstflight_testkit::{StoreListen, StoreProcess};

use crate::client::{Ticket, Transport};
use crate::honest::{Honest, abreast};
use crate::pipe::Pipe;
use crate::plan::{Attempt, Plan};
use crate::report::{Label, Row};
use crate::settings::Settings;
use crate::stage::Stage;

/// What happens to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Away {
    /// It is frozen, and goes on while copies are fresh.
    Frozen,
    /// It is frozen until the request is done.
    StaysFrozen,
    /// The node cannot reach it. Copies are sent to the others once the request is done.
    CutOff,
    /// The same; copies are sent while the request waits.
    CutOffAtOnce,
}

impl Away {
    /// All of them.
    pub(crate) const ALL: [Self; 4] =
        [Self::Frozen, Self::StaysFrozen, Self::CutOff, Self::CutOffAtOnce];

    /// The name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Frozen => "store_frozen",
            Self::StaysFrozen => "store_stays_frozen",
            Self::CutOff => "store_cut_off",
            Self::CutOffAtOnce => "store_cut_off_at_once",
        }
    }
}

/// Flights at the first of three nodes.
pub(crate) fn away(plan: &Plan, label: &Label, away: Away) -> Vec<Row> {
    let store = StoreProcess::redis(StoreListen::Tcp);
    let pipes: Vec<_> = (0..3).map(|_| Pipe::to(store.tcp().1)).collect();
    let url = |node: usize| format!("redis://127.0.0.1:{}", pipes[node].port());
    let stage = Stage::with(label.servers, url, |settings| Settings {
        freshness: Duration::from_secs(2),
        ..settings
    });
    stage.wait_for_early_data();
    let nodes = stage.addresses();
    // Copies become fresh after the store has come back.
    let shift = if away == Away::Frozen { 6 } else { 2 };
    let attempts = Attempt::all(plan, &[Transport::Http1, Transport::Http3], shift);
    let tickets = abreast(&attempts, |&attempt| {
        (attempt, stage.client.ticket(attempt.transport, nodes[0]).unwrap())
    });
    match away {
        Away::Frozen | Away::StaysFrozen => store.freeze(),
        Away::CutOff | Away::CutOffAtOnce => pipes[0].cut(),
    }
    // Now the node does not even try.
    thread::sleep(NOTICED);
    // While the store is away for good, the node runs nothing that it cannot record, and says 425.
    let start = |(attempt, ticket): &(Attempt, Ticket)| match away {
        Away::CutOff | Away::StaysFrozen => {
            Honest::retrying(&stage.client, *attempt, nodes[0], ticket)
        }
        Away::Frozen | Away::CutOffAtOnce => {
            Honest::start(&stage.client, *attempt, nodes[0], ticket)
        }
    };
    let started: Vec<_> = tickets.iter().map(start).collect();
    match away {
        Away::CutOff | Away::StaysFrozen => {
            let recorded: Vec<_> = started.into_iter().map(Honest::finish).collect();
            store.thaw();
            abreast(&recorded, |honest| {
                let copies = honest.copies(&nodes, plan);
                honest.row(&stage, label, copies, &[])
            })
        }
        Away::Frozen | Away::CutOffAtOnce => {
            if away == Away::Frozen {
                thread::sleep(Duration::from_secs(1));
                store.thaw();
                // A copy that comes too early is in the way of those that follow.
                thread::sleep(RECOVERED);
            }
            abreast(started, |honest| {
                let (honest, copies) = honest.finish_under_copies(&nodes, plan);
                // Where a copy ran before the request could, the client is told so.
                honest.row(&stage, label, copies, &[425])
            })
        }
    }
}

/// Until a node knows that the store is away, by its heartbeats.
const NOTICED: Duration = Duration::from_secs(2);

/// Until nodes know that it is back.
const RECOVERED: Duration = Duration::from_millis(3500);
