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
        (false, false) => (Verdict::Fail, "the handshake went on without the ticket"),
    };
    if verdict == Verdict::Pass {
        // A flight with the right binder must be accepted.
        let flight = probe.build(FlightPlan::resume(probe.hello(), &probe.ticket()?));
        probe.send(&flight)?.expect_finished(probe.settings.limit)?;
    }
    Ok(Outcome::new(verdict, summary).with(evidence))
}

#[cfg(test)]
mod tests {
    use firstflight_first_flight::test_server::Behaviour;

    use super::*;
    use crate::checks::tests::assert_proven;

    #[test]
    fn rfc8446_4_2_11_a_wrong_binder_ends_the_handshake() {
        let wrong = Behaviour { verifies_binder: false, ..Behaviour::default() };
        assert_proven(&CHECK, &wrong, Verdict::Fail);
    }
}
