use super::{Check, Concern, Needs};
use crate::Verdict;
use crate::finding::Outcome;
use crate::probe::{Probe, Stop, nonce};

pub(super) const CHECK: Check = Check {
    name: "ticket-age",
    title: "how far the ticket age may be off",
    section: "RFC 8446 section 8.3",
    explanation: "Sends flights whose stated ticket age is off by 2 s to an hour, in both directions. A \
                  server without a window has to remember each flight for as long as its ticket is \
                  valid; few do. About 10 s are usual.",
    needs: Needs::EarlyData,
    concern: Concern::Tickets,
    run,
};

/// Seconds, from the smallest.
const SHIFTS: [i64; 6] = [2, 8, 15, 55, 300, 3600];
/// More than this is no window.
const MAX_WINDOW: i64 = 300;

fn run(probe: &Probe<'_>) -> Result<Outcome, Stop> {
    let (mut evidence, mut widest) = (Vec::new(), 0);
    for shift in SHIFTS {
        for signed in [shift, -shift] {
            let plan = probe.early("GET", &nonce())?.shift_age(signed * 1000);
            let mut exchange = probe.send(&probe.build(plan))?;
            let reception = exchange.reception(probe.settings.limit);
            if reception.early_data && reception.ended.is_none() {
                widest = shift;
            }
            evidence.push(format!("{signed:+} s: {reception}"));
        }
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
    use std::time::Duration;

    use firstflight_first_flight::test_server::Behaviour;

    use super::*;
    use crate::checks::tests::{assert_proven, verdict};

    #[test]
    fn rfc8446_8_3_a_wrong_age_is_refused() {
        let wrong = Behaviour { freshness: None, ..Behaviour::default() };
        assert_proven(&CHECK, &wrong, Verdict::Warn);
        let wide = Behaviour { freshness: Some(Duration::from_secs(60)), ..Behaviour::default() };
        assert_eq!(verdict(&CHECK, &wide, true), Verdict::Pass);
        let wider = Behaviour { freshness: Some(Duration::from_secs(600)), ..Behaviour::default() };
        assert_eq!(verdict(&CHECK, &wider, true), Verdict::Warn);
    }
}
