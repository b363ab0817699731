use std::io::ErrorKind;

use firstflight_first_flight::{FastOpen, FlightPlan};

use super::{Check, Concern, Needs};
use crate::Verdict;
use crate::finding::Outcome;
use crate::probe::{Probe, Stop};

pub(super) const CHECK: Check = Check {
    name: "fast-open",
    title: "TCP Fast Open",
    section: "RFC 7413 section 4.1",
    explanation: "Makes two connections with TCP Fast Open. The first requests a cookie, the second sends its \
                  ClientHello in the SYN if there was one. What became of it is what this machine's kernel \
                  saw in the packets: acknowledged by the SYN-ACK, not acknowledged, or lost, so that every \
                  client waits a second. A server without Fast Open loses nothing but the round trip.",
    needs: Needs::Nothing,
    concern: Concern::FastOpen,
    run,
};

fn run(probe: &Probe<'_>) -> Result<Outcome, Stop> {
    if probe.settings.http3 {
        return Ok(Outcome::new(Verdict::NotApplicable, "QUIC has no SYN"));
    }
    let mut evidence = Vec::new();
    let mut last = None;
    for connection in ["without a cookie", "again"] {
        let flight = probe.build(FlightPlan::full(probe.hello()));
        let mut exchange = match probe.send_with_fast_open(&flight) {
            Ok(exchange) => exchange,
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                let summary =
                    "this machine's clients have no TCP Fast Open (sysctl net.ipv4.tcp_fastopen=1)";
                return Err(Stop(summary.to_owned()));
            }
            Err(error) => return Err(Stop(format!("cannot connect with Fast Open: {error}"))),
        };
        let reception = exchange.reception(probe.settings.limit);
        let found = exchange.driver.fast_open();
        exchange.complete();
        exchange.close();
        let what = match (&reception.ended, found) {
            (Some(failure), _) => failure.to_string(),
            (None, None) => "this machine does not say what became of it".to_owned(),
            (None, Some(found)) => found.to_string(),
        };
        evidence
            .push(format!("ClientHello of {} bytes, {connection}: {what}", flight.bytes().len()));
        if reception.ended.is_some() {
            let flight = probe.build(FlightPlan::full(probe.hello()));
            // Otherwise the server has become slow, or is down.
            probe.send(&flight)?.expect_finished(probe.settings.limit)?;
            let summary = format!("a connection with TCP Fast Open fails, others do not: {what}");
            return Ok(Outcome::new(Verdict::Warn, summary).with(evidence));
        }
        last = found;
        // One lost SYN is enough.
        if last == Some(FastOpen::SynLost) {
            break;
        }
    }
    let (verdict, summary) = match last {
        Some(FastOpen::Accepted) => {
            (Verdict::Pass, "data in a SYN is accepted, which saves clients a round trip")
        }
        Some(FastOpen::NoCookie) => {
            (Verdict::NotApplicable, "the server offers no TCP Fast Open: it gives no cookie")
        }
        Some(FastOpen::NotAccepted) => {
            (Verdict::Warn, "the server gives cookies, and does not accept the data they are for")
        }
        Some(FastOpen::SynLost) => {
            (Verdict::Warn, "a SYN of TCP Fast Open is lost on the path, and clients wait for it")
        }
        None => return Err(Stop(evidence.pop().unwrap_or_default())),
    };
    Ok(Outcome::new(verdict, summary).with(evidence))
}

#[cfg(test)]
mod tests {
    use firstflight_first_flight::test_server::{Behaviour, Fault, FaultyPart};

    use super::*;
    use crate::checks::tests::{assert_proven, verdict};

    #[test]
    fn rfc7413_4_1_data_in_a_syn_is_accepted_or_not_offered() {
        let with = |fast_open| Behaviour { fast_open, ..Behaviour::default() };
        assert_proven(&CHECK, &with(FastOpen::NotAccepted), Verdict::Warn);
        assert_eq!(verdict(&CHECK, &with(FastOpen::SynLost), true), Verdict::Warn);
        assert_eq!(verdict(&CHECK, &with(FastOpen::NoCookie), true), Verdict::NotApplicable);
        let fault = Some((FaultyPart::FastOpen, Fault::Silent));
        let fails = Behaviour { fault, ..Behaviour::default() };
        assert_eq!(verdict(&CHECK, &fails, true), Verdict::Warn);
    }
}
