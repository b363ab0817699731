use firstflight_first_flight::FlightPlan;

use super::{Check, Concern, Needs};
use crate::Verdict;
use crate::finding::Outcome;
use crate::probe::{Probe, Stop, nonce};

pub(super) const CHECK: Check = Check {
    name: "changed-name",
    title: "another server name than the ticket's",
    section: "RFC 8446 section 4.6.1",
    explanation: "Resumes under the server name `other.invalid` with a ticket that was issued for the \
                  URL's host, if full handshakes show that the server has another certificate for \
                  that name, or none. Early data of one site should not run at another, where policy \
                  and replay protection may differ.",
    needs: Needs::EarlyData,
    concern: Concern::Replay,
    run,
};

fn run(probe: &Probe<'_>) -> Result<Outcome, Stop> {
    let certificate = |hello| {
        let mut exchange = probe.send(&probe.build(FlightPlan::full(hello)))?;
        let reception = exchange.reception(probe.settings.limit);
        Ok(reception.ended.is_none().then_some(reception.certificate))
    };
    let other = || probe.hello_to("other.invalid");
    if certificate(probe.hello())? == certificate(other())? {
        let summary = "the server has the same certificate for another name: it is one site";
        return Ok(Outcome::new(Verdict::NotApplicable, summary));
    }
    let ticket = probe.ticket()?;
    let request = probe.request("GET", &nonce());
    let plan = FlightPlan::resume(other(), &ticket).early_data(&request);
    let mut exchange = probe.send(&probe.build(plan))?;
    let reception = exchange.reception(probe.settings.limit);
    let evidence = vec![reception.to_string()];
    let accepted = (Verdict::Warn, "early data is accepted under another server name");
    let (verdict, summary) = probe.judge_refusal(&reception, accepted)?;
    Ok(Outcome::new(verdict, summary).with(evidence))
}

#[cfg(test)]
mod tests {
    use firstflight_first_flight::test_server::Behaviour;

    use super::*;
    use crate::checks::tests::assert_proven;

    #[test]
    fn rfc8446_4_6_1_early_data_is_for_the_name_of_the_ticket() {
        let wrong = Behaviour { binds_name: false, ..Behaviour::default() };
        assert_proven(&CHECK, &wrong, Verdict::Warn);
    }
}
