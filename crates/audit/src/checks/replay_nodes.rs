use firstflight_first_flight::FlightPlan;

use super::replay::original;
use super::{Check, Concern, Needs};
use crate::finding::Outcome;
use crate::probe::{Probe, Stop};

pub(super) const CHECK: Check = Check {
    name: "replay-nodes",
    title: "copies at the other addresses of the name",
    section: "RFC 9846 section 8",
    explanation: "Sends an original to the first address of the name, and copies to all others (A and AAAA \
                  records, or those of --resolve). Nodes that share ticket keys need a record of flights \
                  that they share too. The evidence says which of them accept tickets of the first.",
    needs: Needs::OtherAddresses,
    concern: Concern::Replay,
    run,
};

fn run(probe: &Probe<'_>) -> Result<Outcome, Stop> {
    let ticket = probe.ticket()?;
    let mut original = original(probe, "GET")?;
    original.exchange.close();
    let mut copies = original.copies();
    for node in probe.others {
        match probe.send_to(node, &original.flight) {
            Ok(mut copy) => copies.receive(probe, &mut copy, &format!("copy to {}", node.address)),
            Err(error) => copies.evidence.push(format!("no copy to {}: {error}", node.address)),
        }
    }
    for node in probe.others {
        let flight = probe.build(FlightPlan::resume(probe.hello(), &ticket));
        if let Ok(mut resumed) = probe.send_to(node, &flight) {
            let reception = resumed.reception(probe.copy_limit());
            let what = match (&reception.ended, reception.resumed) {
                (Some(failure), _) => failure.to_string(),
                (None, true) => "accepted: it has the same ticket keys".to_owned(),
                (None, false) => "not accepted".to_owned(),
            };
            copies
                .evidence
                .push(format!("a ticket of the first address at {}: {what}", node.address));
        }
    }
    if copies.sent == 0 {
        return Err(Stop("none of the other addresses responds".to_owned()));
    }
    copies.count(probe, &original.nonce)?;
    Ok(copies.verdict(1))
}

#[cfg(test)]
mod tests {
    use firstflight_first_flight::test_server::{Behaviour, EarlyRequest};

    use super::*;
    use crate::Verdict;
    use crate::checks::tests::{outcome_with_node, verdict};

    /// Of a service with two nodes; the same in all of fifty runs.
    fn with_node(keys: bool, register: bool, behaviour: &Behaviour, witness: bool) -> Outcome {
        let run = || outcome_with_node(&CHECK, behaviour, (keys, register), witness);
        let first = run();
        for _ in 1..50 {
            assert_eq!(run().verdict, first.verdict);
        }
        first
    }

    #[test]
    fn rfc9846_8_nodes_with_shared_keys_need_a_shared_register() {
        let right = Behaviour::default();
        for witness in [true, false] {
            assert_eq!(with_node(true, false, &right, witness).verdict, Verdict::Fail);
            assert_eq!(with_node(true, true, &right, witness).verdict, Verdict::Pass);
            assert_eq!(with_node(false, false, &right, witness).verdict, Verdict::Pass);
        }
        let shared = with_node(true, true, &right, true).evidence.join("\n");
        assert!(shared.contains("the same ticket keys"), "{shared}");
        let own = with_node(false, false, &right, true).evidence.join("\n");
        assert!(own.contains(": not accepted"), "{own}");
        let holds = Behaviour { safe: EarlyRequest::Hold, ..right.clone() };
        assert_eq!(with_node(true, false, &holds, true).verdict, Verdict::Pass);
        assert_eq!(verdict(&CHECK, &right, true), Verdict::NotApplicable, "one address");
    }
}
