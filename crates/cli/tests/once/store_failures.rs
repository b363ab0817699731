//! Flights at nodes that cannot reach the store, so that their requests may wait.

use std::thread;
use std::time::Duration;

use firstflight_testkit::{StoreListen, StoreProcess};

use crate::client::{Ticket, Transport};
use crate::honest::{Honest, concurrently};
use crate::link::Link;
use crate::plan::{Attempt, Plan};
use crate::report::{Label, Row};
use crate::settings::Settings;
use crate::stage::Stage;

/// A failure of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreFailure {
    /// The store is frozen, and resumed while copies are fresh.
    Frozen,
    /// The store is frozen until the request is complete.
    StaysFrozen,
    /// The node cannot reach the store. Copies are sent to other nodes after the request.
    CutOff,
    /// The node cannot reach the store. Copies are sent while the request waits.
    CutOffAtOnce,
}

impl StoreFailure {
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
pub(crate) fn store_failure(plan: &Plan, label: &Label, store_failure: StoreFailure) -> Vec<Row> {
    let store = StoreProcess::redis(StoreListen::Tcp);
    let links: Vec<_> = (0..3).map(|_| Link::to(store.tcp().1)).collect();
    let url = |node: usize| format!("redis://127.0.0.1:{}", links[node].port());
    let stage = Stage::start_with(label.servers, url, |settings| Settings {
        freshness: Duration::from_secs(2),
        ..settings
    });
    stage.wait_for_early_data();
    let nodes = stage.addresses();
    // Copies become fresh after the store is reachable again.
    let shift = if store_failure == StoreFailure::Frozen { 6 } else { 2 };
    let attempts = Attempt::all(plan, &[Transport::Http1, Transport::Http3], shift);
    let tickets = concurrently(&attempts, |&attempt| {
        (attempt, stage.client.ticket(attempt.transport, nodes[0]).unwrap())
    });
    match store_failure {
        StoreFailure::Frozen | StoreFailure::StaysFrozen => store.freeze(),
        StoreFailure::CutOff | StoreFailure::CutOffAtOnce => links[0].cut(),
    }
    // Now the node does not try to reach the store.
    thread::sleep(DETECTION_TIME);
    // While the store is unavailable, the node executes no request that it cannot record, and
    // responds 425.
    let start = |(attempt, ticket): &(Attempt, Ticket)| match store_failure {
        StoreFailure::CutOff | StoreFailure::StaysFrozen => {
            Honest::retrying(&stage.client, *attempt, nodes[0], ticket)
        }
        StoreFailure::Frozen | StoreFailure::CutOffAtOnce => {
            Honest::start(&stage.client, *attempt, nodes[0], ticket)
        }
    };
    let started: Vec<_> = tickets.iter().map(start).collect();
    match store_failure {
        StoreFailure::CutOff | StoreFailure::StaysFrozen => {
            let recorded: Vec<_> = started.into_iter().map(Honest::finish).collect();
            store.thaw();
            concurrently(&recorded, |honest| {
                let copies = honest.copies(&nodes, plan);
                honest.row(&stage, label, copies, &[])
            })
        }
        StoreFailure::Frozen | StoreFailure::CutOffAtOnce => {
            if store_failure == StoreFailure::Frozen {
                thread::sleep(Duration::from_secs(1));
                store.thaw();
                // An earlier copy would block the following ones.
                thread::sleep(RECOVERY_TIME);
            }
            concurrently(started, |honest| {
                let (honest, copies) = honest.finish_under_copies(&nodes, plan);
                // If a copy was executed first, the client gets 425.
                honest.row(&stage, label, copies, &[425])
            })
        }
    }
}

/// Time until a node detects that the store is unreachable, by heartbeats.
const DETECTION_TIME: Duration = Duration::from_secs(2);

/// Time until nodes detect that the store is reachable again.
const RECOVERY_TIME: Duration = Duration::from_millis(3500);
