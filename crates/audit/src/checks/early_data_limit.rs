use firstflight_first_flight::{Ended, Event, FlightPlan};

use super::{Check, Concern, Needs};
use crate::Verdict;
use crate::finding::Outcome;
use crate::probe::{Probe, Stop, nonce};

pub(super) const CHECK: Check = Check {
    name: "early-data-limit",
    title: "more early data than permitted",
    section: "RFC 8446 section 4.2.10",
    explanation: "Sends one byte more of early data than the ticket permits. The server should end the \
                  connection with unexpected_message; one that reads on lets anybody with a ticket \
                  fill its memory before the handshake.",
    needs: Needs::EarlyData,
    concern: Concern::Library,
    run,
};

/// Bytes; larger limits are not tested.
const MAX_TESTED: u32 = 1 << 20;

fn run(probe: &Probe<'_>) -> Result<Outcome, Stop> {
    let ticket = probe.ticket()?;
    let max = ticket.max_early_data.unwrap_or(0);
    if probe.settings.http3 {
        let summary = "over QUIC early data is limited by flow control, not by the ticket";
        return Ok(Outcome::new(Verdict::NotApplicable, summary));
    }
    if max > MAX_TESTED {
        let summary = format!("the ticket permits {max} bytes, more than are tried");
        return Ok(Outcome::new(Verdict::NotApplicable, summary));
    }
    let length = max as usize + 1;
    let mut data = String::from_utf8_lossy(&probe.request("POST", &nonce()))
        .replace("Content-Length: 0", &format!("Content-Length: {length}"))
        .into_bytes();
    data.resize(length, b'x');
    let plan = FlightPlan::resume(probe.hello(), &ticket).early_data(&data);
    let mut exchange = probe.send(&probe.build(plan))?;
    let reception = exchange.reception(probe.settings.limit);
    let mut evidence = vec![format!("{length} bytes, {max} permitted: {reception}")];
    let is_ended = reception.was_ended()?;
    if is_ended || !reception.early_data {
        probe.expect_accepted()?;
        let summary = match is_ended {
            true => "the connection was ended",
            false => "the early data was refused",
        };
        return Ok(Outcome::new(Verdict::Pass, summary).with(evidence));
    }
    let end = |event: &Event| matches!(event, Event::Alert(_));
    let (verdict, summary) = match exchange.driver.wait_for(probe.settings.early_limit, end) {
        Ok(Event::Alert(alert)) => {
            evidence.push(format!("then the alert {}", alert.name()));
            (Verdict::Pass, "the connection was ended")
        }
        Err(Ended::TimedOut) | Ok(_) => {
            (Verdict::Warn, "the server accepts more early data than its tickets permit")
        }
        Err(Ended::Closed) => {
            evidence.push(Ended::Closed.to_string());
            (Verdict::Pass, "the connection was ended")
        }
        Err(ended) => return Err(Stop(ended.to_string())),
    };
    Ok(Outcome::new(verdict, summary).with(evidence))
}

#[cfg(test)]
mod tests {
    use firstflight_first_flight::test_server::Behaviour;

    use super::*;
    use crate::checks::tests::{assert_proven, verdict};

    #[test]
    fn rfc8446_4_2_10_too_much_early_data_ends_the_connection() {
        let wrong = Behaviour { enforces_limit: false, ..Behaviour::default() };
        assert_proven(&CHECK, &wrong, Verdict::Warn);
        let unlimited = Behaviour { max_early_data: Some(u32::MAX), ..Behaviour::default() };
        assert_eq!(verdict(&CHECK, &unlimited, true), Verdict::NotApplicable);
    }
}
