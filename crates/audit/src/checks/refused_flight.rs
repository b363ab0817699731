use super::replay::Copies;
use super::{Check, Concern, Needs};
use crate::Verdict;
use crate::finding::Outcome;
use crate::probe::{Probe, Stop, nonce};

pub(super) const CHECK: Check = Check {
    name: "refused-flight",
    title: "a refused flight, resent after the handshake, then replayed",
    section: "RFC 9846 section 8",
    explanation: "The second attack of the section. Sends a flight whose stated ticket age is ahead, as \
                  that of a client with a fast clock: its early data is refused, and the request is \
                  sent again after the handshake, as clients do. When the age has become right, the \
                  flight's bytes are sent again. If they are accepted now, the request runs twice. A \
                  server has to record flights that it refused, too.",
    needs: Needs::EarlyData,
    concern: Concern::Replay,
    run,
};

fn run(probe: &Probe<'_>) -> Result<Outcome, Stop> {
    for &shift in &probe.settings.refused_ages {
        let nonce = nonce();
        let plan = probe.early("GET", &nonce)?.shift_age(shift.as_millis() as i64);
        let flight = probe.build(plan);
        let mut exchange = probe.send(&flight)?;
        let reception = exchange.expect_finished(probe.settings.limit)?;
        if reception.early_data {
            continue;
        }
        exchange.finish(&probe.request("GET", &nonce));
        let Some((response, _)) = exchange.response(probe.settings.limit) else {
            return Err(Stop("the request got no response after the handshake".to_owned()));
        };
        exchange.close();
        let mut evidence = vec![format!(
            "flight with an age of {} s too much: {reception}; sent again after the handshake, \
             status {}",
            shift.as_secs(),
            response.status
        )];
        if !response.executed() {
            let summary = "the request did not run after the handshake: its client was told so";
            return Ok(Outcome::new(Verdict::Pass, summary).with(evidence));
        }
        probe.wait(shift);
        let mut copies = Copies::default();
        copies.evidence.append(&mut evidence);
        let mut copy = probe.send(&flight)?;
        copies.receive(probe, &mut copy, &format!("the flight after {} s", shift.as_secs()));
        copies.count(probe, &nonce)?;
        return Ok(copies.verdict(1));
    }
    let summary = "early data is accepted with any age, so no flight is refused for its age";
    Ok(Outcome::new(Verdict::NotApplicable, summary))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use firstflight_first_flight::test_server::Behaviour;

    use super::*;
    use crate::checks::tests::{assert_proven, verdict};
    use crate::checks::{replay_at_once, replay_concurrent, replay_delayed};

    #[test]
    fn rfc9846_8_a_refused_flight_must_be_recorded() {
        let wrong = Behaviour { spends_refused: false, ..Behaviour::default() };
        assert_proven(&CHECK, &wrong, Verdict::Fail);
        assert_eq!(verdict(&CHECK, &wrong, false), Verdict::Fail);
        // No other replay shows it.
        for check in [&replay_at_once::CHECK, &replay_concurrent::CHECK, &replay_delayed::CHECK] {
            assert_eq!(verdict(check, &wrong, true), Verdict::Pass);
        }
    }

    #[test]
    fn rfc8446_8_3_a_wider_window_takes_a_larger_shift() {
        let freshness = Some(Duration::from_secs(60));
        let wrong = Behaviour { freshness, spends_refused: false, ..Behaviour::default() };
        assert_eq!(verdict(&CHECK, &wrong, true), Verdict::Fail);
        let unchecked = Behaviour { freshness: None, ..Behaviour::default() };
        assert_eq!(verdict(&CHECK, &unchecked, true), Verdict::NotApplicable);
    }
}
