use super::{Check, Concern, Needs};
use crate::Verdict;
use crate::finding::Outcome;
use crate::probe::{Probe, Stop, nonce};

pub(super) const CHECK: Check = Check {
    name: "flipped-ticket",
    title: "a ticket with a flipped bit",
    section: "RFC 8446 section 4.6.1",
    explanation: "Flips a bit at the start, in the middle and at the end of a ticket. A sealed ticket does \
                  not open then, and a lookup finds nothing: the server should go on with a full \
                  handshake. Accepting it would mean that tickets are not authenticated.",
    needs: Needs::Resumption,
    concern: Concern::Library,
    run,
};

fn run(probe: &Probe<'_>) -> Result<Outcome, Stop> {
    let bits = probe.ticket()?.identity.len() * 8;
    let (mut evidence, mut accepted, mut ended) = (Vec::new(), 0, 0);
    for (place, bit) in [("first", 0), ("middle", bits / 2 + 3), ("last", bits - 1)] {
        let plan = probe.early("GET", &nonce())?.flip_ticket_bit(bit);
        let mut exchange = probe.send(&probe.build(plan))?;
        let reception = exchange.reception(probe.settings.limit);
        accepted += usize::from(reception.ended.is_none() && reception.resumed);
        ended += usize::from(reception.ended.is_some());
        evidence.push(format!("{place} byte: {reception}"));
    }
    let (verdict, summary) = match (accepted, ended) {
        (0, 0) => (Verdict::Pass, "full handshakes".to_owned()),
        (0, ended) => (Verdict::Warn, format!("{ended} of 3 handshakes were ended")),
        (accepted, _) => (Verdict::Fail, format!("{accepted} of 3 changed tickets were accepted")),
    };
    Ok(Outcome::new(verdict, summary).with(evidence))
}

#[cfg(test)]
mod tests {
    use firstflight_first_flight::test_server::Behaviour;

    use super::*;
    use crate::checks::tests::assert_proven;

    #[test]
    fn rfc8446_4_6_1_tickets_are_authenticated() {
        let wrong = Behaviour { authenticates_tickets: false, ..Behaviour::default() };
        assert_proven(&CHECK, &wrong, Verdict::Fail);
    }
}
