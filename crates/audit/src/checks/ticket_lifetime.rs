use std::time::Duration;

use firstflight_first_flight::FlightPlan;

use super::{Check, Concern, Needs};
use crate::Verdict;
use crate::finding::Outcome;
use crate::probe::{Probe, Stop};

pub(super) const CHECK: Check = Check {
    name: "ticket-lifetime",
    title: "a ticket after its lifetime",
    section: "RFC 8446 section 4.6.1",
    explanation: "Waits until a ticket has outlived its announced lifetime, if that is not more than a \
                  minute, and resumes with it. A server that accepts it keeps sessions, and the keys \
                  that seal them, for longer than it says.",
    needs: Needs::Resumption,
    concern: Concern::Tickets,
    run,
};

/// Longer lifetimes are not tested.
const MAX_WAIT: Duration = Duration::from_secs(60);

fn run(probe: &Probe<'_>) -> Result<Outcome, Stop> {
    let ticket = probe.ticket()?;
    let lifetime = ticket.lifetime;
    if lifetime > MAX_WAIT {
        let summary = format!("{} s are longer than an audit waits", lifetime.as_secs());
        return Ok(Outcome::new(Verdict::NotApplicable, summary));
    }
    // Servers count in whole seconds.
    probe.wait(lifetime + Duration::from_secs(2));
    let mut exchange = probe.send(&probe.build(FlightPlan::resume(probe.hello(), &ticket)))?;
    let reception = exchange.expect_finished(probe.settings.limit)?;
    let evidence = vec![format!("after {} s: {reception}", lifetime.as_secs() + 2)];
    let (verdict, summary) = match reception.resumed {
        true => (Verdict::Warn, "the ticket is accepted after its announced lifetime"),
        false => (Verdict::Pass, "the ticket is refused after its announced lifetime"),
    };
    Ok(Outcome::new(verdict, summary).with(evidence))
}

#[cfg(test)]
mod tests {
    use firstflight_first_flight::test_server::Behaviour;

    use super::*;
    use crate::checks::tests::{assert_proven_beside, verdict};

    #[test]
    fn rfc8446_4_6_1_a_ticket_ends_with_its_lifetime() {
        let right = Behaviour { lifetime: 30, ..Behaviour::default() };
        let wrong = Behaviour { enforces_lifetime: false, ..right.clone() };
        assert_proven_beside(&CHECK, &right, &wrong, Verdict::Warn);
        assert_eq!(verdict(&CHECK, &Behaviour::default(), true), Verdict::NotApplicable);
    }
}
