use firstflight_first_flight::FlightPlan;

use super::{Check, Concern, Needs};
use crate::Verdict;
use crate::finding::Outcome;
use crate::probe::{Probe, Stop, nonce};

pub(super) const CHECK: Check = Check {
    name: "wrong-binder",
    title: "a wrong PSK binder",
    section: "RFC 8446 section 4.2.11",
    explanation: "Sends a first flight whose binder has a flipped bit. The binder proves that the client \
                  holds the ticket's secret, and replay protection identifies flights by it. A server \
                  must end such a handshake.",
    needs: Needs::Resumption,
    concern: Concern::Library,
    run,
};

fn run(probe: &Probe<'_>) -> Result<Outcome, Stop> {
    let plan = probe.early("GET", &nonce())?.tamper_with_binder();
    let mut exchange = probe.send(&probe.build(plan))?;
    let reception = exchange.reception(probe.settings.limit);
    let evidence = vec![reception.to_string()];
    let (verdict, summary) = match (reception.was_ended()?, reception.resumed) {
        (true, _) => (Verdict::Pass, "the handshake was ended"),
        (false, true) => (Verdict::Fail, "the ticket was accepted in spite of its wrong binder"),
        (false, false) => {
            expect_resumption(probe)?;
            (Verdict::Fail, "the handshake went on without the ticket")
        }
    };
    if verdict == Verdict::Pass {
        // A flight with the right binder must be accepted.
        let flight = probe.build(FlightPlan::resume(probe.hello(), &probe.ticket()?));
        probe.send(&flight)?.expect_finished(probe.settings.limit)?;
    }
    Ok(Outcome::new(verdict, summary).with(evidence))
}

/// Fails unless tickets with a right binder are accepted each time. A node that cannot open a ticket
/// has to go on without it, whatever its binder.
fn expect_resumption(probe: &Probe<'_>) -> Result<(), Stop> {
    for _ in 0..3 {
        let flight = probe.build(FlightPlan::resume(probe.hello(), &probe.ticket()?));
        if !probe.send(&flight)?.expect_finished(probe.settings.limit)?.resumed {
            return Err(Stop("tickets with a right binder are not always accepted".to_owned()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use firstflight_first_flight::test_server::Behaviour;

    use super::*;
    use crate::audit;
    use crate::checks::tests::{RoundRobin, assert_proven, settings};

    #[test]
    fn rfc8446_4_2_11_a_wrong_binder_ends_the_handshake() {
        let wrong = Behaviour { verifies_binder: false, ..Behaviour::default() };
        assert_proven(&CHECK, &wrong, Verdict::Fail);
    }

    #[test]
    fn rfc8446_4_2_11_a_node_without_the_tickets_key_ignores_its_binder() {
        let target = RoundRobin::without_shared_keys();
        let settings = settings();
        let probe = Probe::survey(&target, &[], &settings).unwrap();
        assert_eq!(audit::run(&CHECK, &probe).verdict, Verdict::Inconclusive);
    }
}
