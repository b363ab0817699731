use std::time::Duration;

use firstflight_first_flight::{Ended, Event, FlightPlan};

use super::{Check, Concern, Needs};
use crate::Verdict;
use crate::finding::Outcome;
use crate::probe::{Probe, Stop, nonce};

pub(super) const CHECK: Check = Check {
    name: "slow-early-data",
    title: "early data that arrives in pieces",
    section: "RFC 8470 section 6.3",
    explanation: "Sends an accepted first flight with the start of a request, and a header field of it in \
                  a further record of early data every five seconds. A server that starts its time limit \
                  again with each record lets one ticket hold a connection for as long as its early data \
                  lasts.",
    needs: Needs::EarlyData,
    concern: Concern::Limits,
    run,
};

/// Shorter than usual time limits.
const RECORD_INTERVAL: Duration = Duration::from_secs(5);

fn run(probe: &Probe<'_>) -> Result<Outcome, Stop> {
    if probe.settings.http3 {
        let summary = "over QUIC a server gives up in silence";
        return Ok(Outcome::new(Verdict::NotApplicable, summary));
    }
    let request = probe.request("GET", &nonce());
    // Without the empty line that ends the header section.
    let start = request.strip_suffix(b"\r\n").unwrap_or(&request);
    let ticket = probe.ticket()?;
    let plan = FlightPlan::resume(probe.hello(), &ticket).early_data(start);
    let mut exchange = probe.send(&probe.build(plan))?;
    exchange.expect_early_data(probe.settings.limit)?;
    let (started, limit) = (probe.now(), probe.settings.unfinished_limit);
    let mut remaining = ticket.max_early_data.unwrap_or(0) as usize;
    remaining = remaining.saturating_sub(start.len());
    let mut records = 0;
    let ended = loop {
        let took = probe.now() - started;
        if took >= limit {
            break None;
        }
        if remaining < FIELD.len() {
            return Err(Stop(format!(
                "the ticket permits no more early data after {records} records"
            )));
        }
        exchange.driver.connection().send_early_data(FIELD);
        (remaining, records) = (remaining - FIELD.len(), records + 1);
        let alert = |event: &Event| matches!(event, Event::Alert(_));
        match exchange.driver.wait_for(RECORD_INTERVAL.min(limit - took), alert) {
            Err(Ended::TimedOut) => {}
            Ok(Event::Alert(alert)) => break Some(format!("the alert {}", alert.name())),
            Ok(_) => {}
            Err(ended) => break Some(ended.to_string()),
        }
    };
    let after = (probe.now() - started).as_secs();
    let mut evidence = vec![format!("{} bytes of early data, then {records} records", start.len())];
    let (verdict, summary) = match ended {
        None => (Verdict::Warn, format!("the connection was still open after {after} s")),
        Some(ended) => {
            evidence.push(ended);
            (Verdict::Pass, format!("the connection was closed after {after} s"))
        }
    };
    Ok(Outcome::new(verdict, summary).with(evidence))
}

const FIELD: &[u8] = b"Accept: */*\r\n";

#[cfg(test)]
mod tests {
    use firstflight_first_flight::test_server::Behaviour;

    use super::*;
    use crate::checks::tests::{assert_proven, verdict};
    use crate::checks::unfinished;

    #[test]
    fn rfc8470_6_3_a_record_of_early_data_brings_no_more_time() {
        let wrong = Behaviour { timeout_restarts: true, ..Behaviour::default() };
        assert_proven(&CHECK, &wrong, Verdict::Warn);
        // No other check shows it.
        assert_eq!(verdict(&unfinished::CHECK, &wrong, true), Verdict::Pass);
        let small = Behaviour { max_early_data: Some(150), ..wrong };
        assert_eq!(verdict(&CHECK, &small, true), Verdict::Inconclusive);
    }
}
