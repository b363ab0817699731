//! Holds what the packets of a sample show against its cell.

use firstflight_report::{Fault, Sample};
use firstflight_samples::{ClientRecord, Flow, Flows, described, wrong, wrong_but_for_group};

use crate::Client;
use crate::plan::{Plan, PlannedCell};

/// The sample as it goes into the record.
pub(crate) fn sample(flows: &Flows, taken: &ClientRecord, plan: &Plan, origin_ns: u64) -> Sample {
    let cell = &plan.cells[taken.slot.cell];
    let flow = flows.flow(taken);
    let mut sample = described(taken, flow, origin_ns);
    sample.fault = match (&taken.outcome, flow) {
        (Err(why), Some(flow)) if flow.facts.transport.dropped() > 0 => {
            Some(Fault::Disturbed(format!("{}: {why}", flow.dropped())))
        }
        (Err(why), _) => Some(Fault::Failed(why.clone())),
        (Ok(_), None) => Some(Fault::Mislabelled("no packets".to_owned())),
        (Ok(_), Some(flow)) => fault(flow, cell, plan.paths[cell.path].may_lose()),
    };
    sample
}

/// Later than this, a delivery is the machine's doing and the sample is left out.
const SPOILED_NS: u64 = 1_000_000;

/// Why a connection does not enter the figures of its cell; `may_lose`: its network drops or
/// overtakes packets on purpose.
fn fault(flow: &Flow, cell: &PlannedCell, may_lose: bool) -> Option<Fault> {
    let transport = &flow.facts.transport;
    let (again, dropped) = (transport.sent_again(), transport.dropped());
    if !may_lose && (again > 0 || dropped > 0) {
        return Some(Fault::Spoiled(format!("{again} packets sent twice")));
    }
    if flow.lateness_ns > SPOILED_NS {
        let late = flow.lateness_ns as f64 / 1e6;
        return Some(Fault::Spoiled(format!("a packet {late:.1} ms late on the link")));
    }
    let wrong = match cell.client {
        Client::Firstflight => wrong(&flow.facts, &cell.asked)?,
        // What groups another make's client has key shares for is its own affair.
        _ => wrong_but_for_group(&flow.facts, &cell.asked)?,
    };
    Some(match dropped {
        0 => Fault::Mislabelled(wrong),
        _ => Fault::Disturbed(format!("{}: {wrong}", flow.dropped())),
    })
}
