use std::time::Duration;

use firstflight_first_flight::{FlightPlan, Ticket};

use super::{Check, Concern, Needs};
use crate::Verdict;
use crate::finding::Outcome;
use crate::probe::{Probe, Stop, nonce};

pub(super) const CHECK: Check = Check {
    name: "ticket-age",
    title: "how far the ticket age may be off",
    section: "RFC 8446 section 8.3",
    explanation: "Sends flights whose stated ticket age is too large by 2 s to an hour, or too small by 2 \
                  to 15 s. A server without a window has to remember each flight for as long as its \
                  ticket is valid; few do. About 10 s are usual.",
    needs: Needs::EarlyData,
    concern: Concern::Replay,
    run,
};

/// Seconds by which a flight's stated ticket age is too large.
const OLDER_BY_SECONDS: [u64; 6] = [2, 8, 15, 55, 300, 3600];
/// Seconds by which the age is too small. The ticket must be older than that, since a stated age
/// cannot be negative.
const YOUNGER_BY_SECONDS: [u64; 3] = [2, 8, 15];
/// Seconds; a window of this size or more gives a warning.
const MAX_WINDOW: u64 = 300;

fn run(probe: &Probe<'_>) -> Result<Outcome, Stop> {
    // First, since a server that has just started may refuse all early data for a while.
    probe.expect_accepted()?;
    let (mut evidence, mut widest) = (Vec::new(), 0);
    let mut send = |ticket: &Ticket, sign: i64, shift: u64| -> Result<(), Stop> {
        let request = probe.request("GET", &nonce());
        let plan = FlightPlan::resume(probe.hello(), ticket).early_data(&request);
        let signed = sign * shift as i64;
        let mut exchange = probe.send(&probe.build(plan.shift_age(signed * 1000)))?;
        let reception = exchange.reception(probe.settings.limit);
        if !reception.was_ended()? && reception.early_data {
            widest = widest.max(shift);
        }
        evidence.push(format!("{signed:+} s: {reception}"));
        Ok(())
    };
    for shift in OLDER_BY_SECONDS {
        send(&probe.ticket()?, 1, shift)?;
    }
    let tickets =
        YOUNGER_BY_SECONDS.iter().map(|_| probe.ticket()).collect::<Result<Vec<_>, _>>()?;
    let oldest = YOUNGER_BY_SECONDS.iter().max().copied().unwrap_or_default();
    probe.wait(Duration::from_secs(oldest + 1));
    for (shift, ticket) in YOUNGER_BY_SECONDS.into_iter().zip(&tickets) {
        send(ticket, -1, shift)?;
    }
    let (verdict, summary) = match widest {
        0 => (Verdict::Pass, "an age that is off by 2 s is refused".to_owned()),
        widest if widest < MAX_WINDOW => {
            (Verdict::Pass, format!("an age that is off by {widest} s is accepted, not by more"))
        }
        widest => {
            (Verdict::Warn, format!("early data is accepted with an age that is off by {widest} s"))
        }
    };
    Ok(Outcome::new(verdict, summary).with(evidence))
}

#[cfg(test)]
mod tests {
    use firstflight_first_flight::test_server::Behaviour;

    use super::*;
    use crate::checks::tests::{assert_proven, outcome_with_node, verdict};

    #[test]
    fn rfc8446_8_3_a_wrong_age_is_refused() {
        let wrong = Behaviour { freshness: None, ..Behaviour::default() };
        assert_proven(&CHECK, &wrong, Verdict::Warn);
        let wide = Behaviour { freshness: Some(Duration::from_secs(60)), ..Behaviour::default() };
        assert_eq!(verdict(&CHECK, &wide, true), Verdict::Pass);
        let outcome = outcome_with_node(&CHECK, &wide, (false, false), true);
        assert!(outcome.evidence.contains(&"-15 s: early data accepted".to_owned()), "{outcome:?}");
        let wider = Behaviour { freshness: Some(Duration::from_secs(600)), ..Behaviour::default() };
        assert_eq!(verdict(&CHECK, &wider, true), Verdict::Warn);
    }
}
