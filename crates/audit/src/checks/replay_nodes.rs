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
    let mut ignored_by = Vec::new();
    for node in probe.others {
        let ignored_before = copies.ignored;
        match probe.send_to(node, &original.flight) {
            Ok(mut copy) => copies.receive(probe, &mut copy, &format!("copy to {}", node.address)),
            Err(error) => {
                copies.unreachable += 1;
                copies.evidence.push(format!("no copy to {}: {error}", node.address));
            }
        }
        ignored_by.push(copies.ignored > ignored_before);
    }
    for (node, is_ignored) in probe.others.iter().zip(ignored_by) {
        let flight = probe.build(FlightPlan::resume(probe.hello(), &ticket));
        // A node without a response did not ignore a copy: it is down, or does not support QUIC.
        let Ok(mut resumed) = probe.send_to(node, &flight) else {
            copies.unanswered += usize::from(is_ignored);
            continue;
        };
        let reception = resumed.reception(probe.copy_limit());
        let is_down = reception.ended.as_ref().is_some_and(|failure| !failure.is_explicit());
        copies.unanswered += usize::from(is_ignored && is_down);
        let what = match (&reception.ended, reception.resumed) {
            (Some(_), _) => reception.to_string(),
            (None, true) => "accepted: it has the same ticket keys".to_owned(),
            (None, false) => "not accepted".to_owned(),
        };
        copies.evidence.push(format!("a ticket of the first address at {}: {what}", node.address));
    }
    if copies.sent == 0 {
        return Err(Stop("none of the other addresses responds".to_owned()));
    }
    copies.count(probe, &original.nonce)?;
    Ok(copies.verdict(1))
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::time::Duration;

    use firstflight_first_flight::Link;
    use firstflight_first_flight::test_server::{Behaviour, EarlyRequest, Fault, FaultyPart};

    use super::*;
    use crate::checks::tests::{TestTarget, outcome_with_node, settings, verdict};
    use crate::target::{Node, Target};
    use crate::{Settings, Verdict, audit};

    /// The outcome at a service with two nodes. Asserts that the verdict is the same in 50 runs.
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

    /// The outcome if the second address is that of `other`, or of the audited server itself.
    fn with_address_of(other: Option<&TestTarget>, settings: &Settings) -> Outcome {
        let behaviour = Behaviour { witness: settings.witness, ..Behaviour::default() };
        let target = TestTarget::new(behaviour, settings.http3);
        let address = "192.0.2.2:443".to_owned();
        let others = [Node { address, target: other.unwrap_or(&target) }];
        let probe = Probe::survey(&target, &others, settings).unwrap();
        audit::run(&CHECK, &probe)
    }

    #[test]
    fn a_node_that_is_down_is_inconclusive() {
        for (http3, witness) in [(false, false), (false, true), (true, false), (true, true)] {
            let settings = Settings { http3, witness, ..settings() };
            for fault in Fault::ALL {
                let fault = Some((FaultyPart::Handshake, fault));
                let down = TestTarget::new(Behaviour { fault, ..Behaviour::default() }, http3);
                let outcome = with_address_of(Some(&down), &settings);
                assert_eq!(outcome.verdict, Verdict::Inconclusive, "{fault:?}: {outcome:#?}");
            }
        }
    }

    /// A node that refuses connections.
    struct Closed<'a>(&'a TestTarget);

    impl Target for Closed<'_> {
        fn connect(&self) -> io::Result<Box<dyn Link>> {
            Err(io::ErrorKind::ConnectionRefused.into())
        }

        fn now(&self) -> Duration {
            self.0.now()
        }

        fn wait(&self, time: Duration) {
            self.0.wait(time);
        }
    }

    #[test]
    fn no_copy_to_one_of_the_nodes_is_inconclusive() {
        let target = TestTarget::new(Behaviour { witness: true, ..Behaviour::default() }, false);
        let (reached, closed) = (target.node(true, true), Closed(&target));
        let node = |address: &str, target| Node { address: address.to_owned(), target };
        let others =
            [node("192.0.2.2:443", &reached as &dyn Target), node("192.0.2.3:443", &closed)];
        let settings = settings();
        let probe = Probe::survey(&target, &others, &settings).unwrap();
        let outcome = audit::run(&CHECK, &probe);
        assert_eq!(outcome.verdict, Verdict::Inconclusive, "{outcome:#?}");
    }

    #[test]
    fn nodes_with_a_witness_each_are_inconclusive() {
        let target = TestTarget::new(Behaviour { witness: true, ..Behaviour::default() }, false);
        let other = target.node_with_own_upstream();
        let others = [Node { address: "192.0.2.2:443".to_owned(), target: &other }];
        let settings = settings();
        let probe = Probe::survey(&target, &others, &settings).unwrap();
        let outcome = audit::run(&CHECK, &probe);
        assert_eq!(outcome.verdict, Verdict::Inconclusive, "{outcome:#?}");
    }

    #[test]
    fn rfc9000_5_1_another_address_of_the_same_server_may_ignore_copies() {
        for witness in [false, true] {
            let settings = Settings { http3: true, witness, ..settings() };
            let outcome = with_address_of(None, &settings);
            assert_eq!(outcome.verdict, Verdict::Pass, "{outcome:#?}");
            let evidence = outcome.evidence.join("\n");
            assert!(evidence.contains("no response in time"), "{evidence}");
            assert!(evidence.contains("the same ticket keys"), "{evidence}");
        }
    }
}
