use super::{Check, Concern, Needs};
use crate::Verdict;
use crate::finding::Outcome;
use crate::probe::{Probe, Stop, nonce};

pub(super) const CHECK: Check = Check {
    name: "too-early",
    title: "the retry after 425",
    section: "RFC 8470 section 5.2",
    explanation: "If a POST in early data gets 425 (Too Early), completes the handshake and sends it \
                  again. A client must be able to: 425 again would lock it out.",
    needs: Needs::EarlyData,
    concern: Concern::Methods,
    run,
};

fn run(probe: &Probe<'_>) -> Result<Outcome, Stop> {
    let nonce = nonce();
    let flight = probe.build(probe.early("POST", &nonce)?);
    let mut exchange = probe.send(&flight)?;
    exchange.expect_early_data(probe.settings.limit)?;
    let early = exchange.response(probe.settings.early_limit).map(|(response, _)| response);
    let is_425 = early.as_ref().is_some_and(|response| !response.executed());
    if !is_425 {
        let summary = "the server does not respond 425 to a POST in early data";
        return Ok(Outcome::new(Verdict::NotApplicable, summary));
    }
    exchange.complete_and_send(&probe.request("POST", &nonce));
    let Some((again, _)) = exchange.response(probe.settings.limit) else {
        return Err(Stop("the retry got no response".to_owned()));
    };
    let evidence = vec![format!("425 before Finished, {} to the retry", again.status)];
    let (verdict, summary) = match again.executed() {
        true => (Verdict::Pass, "the retry on the same connection was executed"),
        false => (Verdict::Fail, "the retry after the handshake got 425 as well"),
    };
    Ok(Outcome::new(verdict, summary).with(evidence))
}

#[cfg(test)]
mod tests {
    use firstflight_first_flight::test_server::{Behaviour, EarlyRequest};

    use super::*;
    use crate::checks::tests::{assert_proven_beside, verdict};

    #[test]
    fn rfc8470_5_2_a_retry_after_the_handshake_is_executed() {
        let right = Behaviour { others: EarlyRequest::TooEarly, ..Behaviour::default() };
        let wrong = Behaviour { always_too_early: true, ..right.clone() };
        assert_proven_beside(&CHECK, &right, &wrong, Verdict::Fail);
        assert_eq!(verdict(&CHECK, &Behaviour::default(), true), Verdict::NotApplicable);
    }
}
