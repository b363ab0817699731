use firstflight_first_flight::{Ended, FlightPlan};

use super::{Check, Concern, Needs};
use crate::Verdict;
use crate::finding::Outcome;
use crate::probe::{Failure, Probe, Stop, nonce};

pub(super) const CHECK: Check = Check {
    name: "reused-ticket",
    title: "one ticket in several first flights",
    section: "RFC 8446 section 8.1",
    explanation: "Makes three first flights of one ticket, each with a ClientHello and a request of its own, \
                  and completes each. That is no replay: clients that race connections do it. A server \
                  may accept each, or the first only; but the others have to go on without early data, \
                  and each request has to run once.",
    needs: Needs::EarlyData,
    concern: Concern::Library,
    run,
};

const FLIGHTS: usize = 3;

fn run(probe: &Probe<'_>) -> Result<Outcome, Stop> {
    let ticket = probe.ticket()?;
    let (mut accepted, mut evidence, mut faults) = (0, Vec::new(), Vec::new());
    for number in 1..=FLIGHTS {
        let nonce = nonce();
        let request = probe.request("GET", &nonce);
        let plan = FlightPlan::resume(probe.hello(), &ticket).early_data(&request);
        let mut exchange = probe.send(&probe.build(plan))?;
        let reception = exchange.reception(probe.settings.limit);
        let line = format!("flight {number}: {reception}");
        match &reception.ended {
            None => {}
            Some(Failure::Ended(Ended::TimedOut)) => return Err(Stop(line)),
            Some(_) if number == 1 => return Err(Stop(line)),
            Some(failure) => {
                // A server may end connections for another reason, such as their number.
                let full = probe.build(FlightPlan::full(probe.hello()));
                probe.send(&full)?.expect_finished(probe.settings.limit)?;
                faults.push(format!("flight {number} of a ticket ended the connection: {failure}"));
                evidence.push(line);
                continue;
            }
        }
        match reception.early_data {
            true => exchange.complete(),
            false => exchange.complete_and_send(&request),
        }
        accepted += usize::from(reception.early_data);
        let Some((response, _)) = exchange.response(probe.settings.limit) else {
            return Err(Stop(format!("{line}, and no response after the handshake")));
        };
        exchange.close();
        evidence.push(format!("{line}, status {}", response.status));
        match probe.executions(&nonce)? {
            Some(count) if count > 1 => {
                faults.push(format!("the request of flight {number} ran {count} times"));
            }
            Some(0) if response.executed() => {
                return Err(Stop("the witness did not count a request that got a response".into()));
            }
            _ => {}
        }
    }
    let (verdict, summary) = match faults.into_iter().next() {
        Some(fault) => (Verdict::Fail, fault),
        None => (
            Verdict::Pass,
            format!("early data was accepted in {accepted} of {FLIGHTS} flights of a ticket"),
        ),
    };
    Ok(Outcome::new(verdict, summary).with(evidence))
}

#[cfg(test)]
mod tests {
    use firstflight_first_flight::test_server::{Behaviour, Fault, FaultyPart, UsedTicket};

    use super::*;
    use crate::checks::tests::{assert_proven, assert_proven_beside, verdict};

    #[test]
    fn rfc8446_8_1_a_used_ticket_brings_a_full_handshake() {
        let wrong = Behaviour { used_tickets: UsedTicket::Abort, ..Behaviour::default() };
        assert_proven(&CHECK, &wrong, Verdict::Fail);
        assert_eq!(verdict(&CHECK, &wrong, false), Verdict::Fail);
        let once = Behaviour { used_tickets: UsedTicket::FullHandshake, ..Behaviour::default() };
        assert_proven_beside(&CHECK, &once, &wrong, Verdict::Fail);
    }

    #[test]
    fn a_server_that_ends_every_connection_does_not_end_them_for_the_ticket() {
        // The first three connections: the survey, the ticket and its first flight.
        let fault = Some((FaultyPart::Handshake, Fault::Reset));
        let limited = Behaviour { fault, faultless_connections: 3, ..Behaviour::default() };
        assert_eq!(verdict(&CHECK, &limited, false), Verdict::Inconclusive);
    }

    #[test]
    fn rfc8446_8_1_refused_early_data_of_a_used_ticket_does_not_run() {
        let wrong = Behaviour {
            used_tickets: UsedTicket::NoEarlyData,
            executes_refused: true,
            ..Behaviour::default()
        };
        assert_proven(&CHECK, &wrong, Verdict::Fail);
    }
}
