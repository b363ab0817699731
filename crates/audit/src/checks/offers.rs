use firstflight_first_flight::FlightPlan;

use super::{Check, Concern, Needs};
use crate::Verdict;
use crate::finding::Outcome;
use crate::probe::{Probe, Stop, nonce};

pub(super) const CHECK: Check = Check {
    name: "offers",
    title: "what the server offers",
    section: "RFC 8446 section 4.6.1",
    explanation: "Makes a full handshake and reads the tickets. A lifetime of more than seven days \
                  is forbidden. The evidence lists what the server offers: cipher suite, protocol, \
                  tickets, their lifetime, early data and its limit, and whether a first flight fits \
                  into a SYN of TCP Fast Open.",
    needs: Needs::Nothing,
    concern: Concern::Tickets,
    run,
};

/// Seven days, in seconds.
const MAX_LIFETIME: u64 = 604_800;
/// Payload of a SYN with the usual options on Ethernet, and of a datagram.
const SYN_BYTES: usize = 1400;

fn run(probe: &Probe<'_>) -> Result<Outcome, Stop> {
    let facts = &probe.facts;
    let mut evidence = vec![format!(
        "TLS 1.3, {}, X25519, protocol {}",
        facts.suite,
        facts.alpn.as_deref().unwrap_or("not negotiated")
    )];
    let Some(ticket) = facts.tickets.first() else {
        let summary = "no resumption: the server issues no tickets";
        return Ok(Outcome::new(Verdict::Pass, summary).with(evidence));
    };
    let lifetime = ticket.lifetime.as_secs();
    evidence.push(format!(
        "{} tickets of {} bytes for each handshake, valid for {lifetime} s",
        facts.tickets.len(),
        ticket.identity.len()
    ));
    let early = match ticket.max_early_data {
        Some(max) => {
            let request = probe.request("GET", &nonce());
            let plan = FlightPlan::resume(probe.hello(), ticket).early_data(&request);
            let bytes = probe.build(plan).bytes().len();
            let fits = if bytes <= SYN_BYTES { "fits" } else { "does not fit" };
            let whole = if probe.settings.http3 { "a datagram" } else { "a SYN" };
            evidence.push(format!("a first flight takes {bytes} bytes, which {fits} into {whole}"));
            match probe.settings.http3 {
                true => "early data".to_owned(),
                false => format!("early data of up to {max} bytes"),
            }
        }
        None => "no early data".to_owned(),
    };
    if lifetime > MAX_LIFETIME {
        let summary = format!("tickets are valid for {lifetime} s, more than seven days");
        return Ok(Outcome::new(Verdict::Fail, summary).with(evidence));
    }
    let summary = format!("resumption with tickets of {lifetime} s, {early}");
    Ok(Outcome::new(Verdict::Pass, summary).with(evidence))
}

#[cfg(test)]
mod tests {
    use firstflight_first_flight::test_server::Behaviour;

    use super::*;
    use crate::checks::tests::assert_proven;

    #[test]
    fn rfc8446_4_6_1_tickets_live_for_seven_days_at_most() {
        let wrong = Behaviour { lifetime: 604_801, ..Behaviour::default() };
        assert_proven(&CHECK, &wrong, Verdict::Fail);
    }
}
