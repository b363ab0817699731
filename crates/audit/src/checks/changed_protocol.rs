use firstflight_first_flight::{FlightPlan, Hello};

use super::{Check, Concern, Needs};
use crate::Verdict;
use crate::finding::Outcome;
use crate::probe::{Probe, Stop, nonce};

pub(super) const CHECK: Check = Check {
    name: "changed-protocol",
    title: "another application protocol than the ticket's",
    section: "RFC 8446 section 4.2.10",
    explanation: "Offers only h2 with a ticket of a connection that negotiated http/1.1; over QUIC, only \
                  hq-interop with a ticket of h3. A server must not accept early data then: it would \
                  read the bytes of one protocol as another.",
    needs: Needs::EarlyData,
    concern: Concern::Library,
    run,
};

fn run(probe: &Probe<'_>) -> Result<Outcome, Stop> {
    let ticket = probe.ticket()?;
    if ticket.alpn.is_none() {
        let summary = "the server does not negotiate a protocol by ALPN";
        return Ok(Outcome::new(Verdict::NotApplicable, summary));
    }
    let request = probe.request("GET", &nonce());
    let hello = match probe.settings.http3 {
        true => Hello::new(&probe.settings.host, &["hq-interop"]).over_quic(b""),
        false => Hello::new(&probe.settings.host, &["h2"]),
    };
    let plan = FlightPlan::resume(hello, &ticket).early_data(&request);
    let mut exchange = probe.send(&probe.build(plan))?;
    let reception = exchange.reception(probe.settings.limit);
    let evidence = vec![reception.to_string()];
    let accepted = (Verdict::Fail, "early data is accepted under another protocol");
    let (verdict, summary) = probe.judge_refusal(&reception, accepted)?;
    Ok(Outcome::new(verdict, summary).with(evidence))
}

#[cfg(test)]
mod tests {
    use firstflight_first_flight::test_server::Behaviour;

    use super::*;
    use crate::checks::tests::assert_proven;

    #[test]
    fn rfc8446_4_2_10_early_data_is_for_the_protocol_of_the_ticket() {
        let wrong = Behaviour { binds_protocol: false, ..Behaviour::default() };
        assert_proven(&CHECK, &wrong, Verdict::Fail);
    }
}
