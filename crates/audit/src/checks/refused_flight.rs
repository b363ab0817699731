use std::time::Duration;

use firstflight_first_flight::{FlightPlan, Hello};

use super::replay::Copies;
use super::{Check, Concern, Needs};
use crate::Verdict;
use crate::finding::Outcome;
use crate::probe::{Probe, Stop, nonce};

pub(super) const CHECK: Check = Check {
    name: "refused-flight",
    title: "a refused flight, resent after the handshake, then replayed",
    section: "RFC 9846 section 8",
    explanation: "The second attack of the section. Sends flights that are refused: without a key share, \
                  which forces a HelloRetryRequest; under another protocol than the ticket's; with a \
                  stated ticket age that is ahead, as that of a client with a fast clock. Each \
                  request is sent again after the handshake, as clients do, and then the flight's \
                  bytes once more, when the age has become right. If they are accepted now, or if \
                  refused bytes run at all, the request runs twice. A server has to record flights \
                  that it refused, too.",
    needs: Needs::EarlyData,
    concern: Concern::Replay,
    run,
};

/// Why a flight is refused, and when its copy is sent.
struct Refusal {
    cause: String,
    plan: FlightPlan,
    wait: Duration,
}

fn run(probe: &Probe<'_>) -> Result<Outcome, Stop> {
    let mut outcomes = Vec::new();
    if let Err(Stop(reason)) = attack_with_each_cause(probe, &mut outcomes) {
        // Earlier outcomes still count.
        outcomes.push(Outcome::new(Verdict::Inconclusive, reason));
    }
    Ok(Outcome::worst(outcomes).unwrap_or_else(|| {
        let summary = "no flight was refused: not for its age, and for nothing else";
        Outcome::new(Verdict::NotApplicable, summary)
    }))
}

/// Attacks with flights that are refused for different causes.
fn attack_with_each_cause(probe: &Probe<'_>, outcomes: &mut Vec<Outcome>) -> Result<(), Stop> {
    for &shift in &probe.settings.refused_ages {
        let nonce = nonce();
        let age = Refusal {
            cause: format!("with an age of {} s too much", shift.as_secs()),
            plan: probe.early("GET", &nonce)?.shift_age(shift.as_millis() as i64),
            wait: shift,
        };
        if let Some(outcome) = attack(probe, age, &nonce)? {
            outcomes.push(outcome);
            break;
        }
    }
    let retried = nonce();
    let request = probe.request("GET", &retried);
    let retry = Refusal {
        cause: "without a key share, which forces a HelloRetryRequest".to_owned(),
        plan: FlightPlan::resume(probe.hello().without_key_share(), &probe.ticket()?)
            .early_data(&request),
        wait: Duration::ZERO,
    };
    outcomes.extend(attack(probe, retry, &retried)?);
    // QUIC requires ALPN.
    if !probe.settings.http3 && probe.facts.alpn.is_some() {
        let nonce = nonce();
        let ticket = probe.ticket_for(Hello::new(&probe.settings.host, &[]))?;
        let protocol = Refusal {
            cause: "under another protocol than the ticket's".to_owned(),
            plan: FlightPlan::resume(probe.hello(), &ticket)
                .early_data(&probe.request("GET", &nonce)),
            wait: Duration::ZERO,
        };
        outcomes.extend(attack(probe, protocol, &nonce)?);
    }
    Ok(())
}

/// Sends a flight that should be refused, its request after the handshake, and the flight again.
/// Returns `None` if the flight was not refused.
fn attack(probe: &Probe<'_>, refusal: Refusal, nonce: &str) -> Result<Option<Outcome>, Stop> {
    let flight = probe.build(refusal.plan);
    let mut exchange = probe.send(&flight)?;
    let reception = exchange.reception(probe.settings.limit);
    match &reception.ended {
        None => {}
        Some(failure) if failure.is_explicit() => {
            let evidence = format!("flight {}: {failure}", refusal.cause);
            let summary = "the server ends the handshakes of flights that it refuses, so no request \
                           is sent again after one";
            let outcome = Outcome::new(Verdict::NotApplicable, summary).with(vec![evidence]);
            return Ok(Some(outcome));
        }
        Some(failure) => return Err(Stop(format!("a handshake without faults failed: {failure}"))),
    }
    if reception.early_data {
        return Ok(None);
    }
    exchange.complete_and_send(&probe.request("GET", nonce));
    let Some((response, _)) = exchange.response(probe.settings.limit) else {
        return Err(Stop("the request got no response after the handshake".to_owned()));
    };
    exchange.close();
    let evidence = vec![format!(
        "flight {}: {reception}; sent again after the handshake, status {}",
        refusal.cause, response.status
    )];
    if !response.executed() {
        let summary = "the request did not run after the handshake: its client was told so";
        return Ok(Some(Outcome::new(Verdict::Pass, summary).with(evidence)));
    }
    probe.wait(refusal.wait);
    let since = Some(exchange.driver.started());
    let mut copies = Copies { evidence, since, ..Copies::default() };
    let mut copy = probe.copy(&flight)?;
    copies.receive(probe, &mut copy, "the flight again");
    copies.count(probe, nonce)?;
    Ok(Some(copies.verdict(1)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use firstflight_first_flight::test_server::Behaviour;

    use super::*;
    use crate::checks::tests::{assert_proven, verdict, verdict_over_quic};
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
        assert_eq!(verdict(&CHECK, &unchecked, true), Verdict::Pass, "refused for other causes");
    }

    #[test]
    fn rfc8446_4_1_4_a_server_without_hello_retry_request_is_judged_by_other_refusals() {
        let right = Behaviour { retries: false, ..Behaviour::default() };
        for http3 in [false, true] {
            let verdict = if http3 { verdict_over_quic } else { verdict };
            assert_eq!(verdict(&CHECK, &right, true), Verdict::Pass);
            let wrong = Behaviour { spends_refused: false, ..right.clone() };
            assert_eq!(verdict(&CHECK, &wrong, true), Verdict::Fail);
        }
    }

    #[test]
    fn rfc8446_4_2_10_refused_early_data_does_not_run() {
        let wrong = Behaviour { executes_refused: true, ..Behaviour::default() };
        assert_proven(&CHECK, &wrong, Verdict::Fail);
        // This holds for each cause of a refusal.
        let settings = crate::checks::tests::settings();
        let target = crate::checks::tests::TestTarget::new(wrong, false);
        let probe = Probe::survey(&target, &[], &settings).unwrap();
        let outcome = crate::audit::run(&CHECK, &probe);
        for cause in ["HelloRetryRequest", "another protocol", "too much"] {
            let after = outcome.evidence.iter().skip_while(|line| !line.contains(cause));
            let counted = after.skip(1).find(|line| line.contains("counted")).unwrap();
            assert!(!counted.contains("counted 1 "), "{cause}: {:#?}", outcome.evidence);
        }
    }
}
