use super::replay::{UNRELIABLE_COUNT, count_text};
use super::{Check, Concern, Needs};
use crate::Verdict;
use crate::finding::Outcome;
use crate::probe::{Probe, Stop, nonce};

pub(super) const CHECK: Check = Check {
    name: "overtaken-flight",
    title: "an original that a copy has overtaken",
    section: "RFC 8470 section 3",
    explanation: "Sends a copy of a flight before the original, as an attacker can who holds the original \
                  back. The copy runs. The original's early data is refused then, its client sends the \
                  request again after the handshake, and it runs a second time. TLS cannot prevent \
                  that; a server that responds 425 (Too Early) leaves the decision to the client.",
    needs: Needs::EarlyData,
    concern: Concern::Replay,
    run,
};

fn run(probe: &Probe<'_>) -> Result<Outcome, Stop> {
    let nonce = nonce();
    let flight = probe.build(probe.early("GET", &nonce)?);
    let mut copy = probe.copy(&flight)?;
    let reception = copy.expect_early_data(probe.settings.limit)?;
    let response = copy.response(probe.settings.early_limit);
    let no_response = response.is_none();
    let counted = if no_response { probe.executions(&nonce)? } else { None };
    if no_response && counted.is_none() {
        let summary =
            "the copy got no response before Finished; only a witness can tell whether it ran";
        let evidence = vec![format!("copy: {reception}, no response before Finished")];
        return Ok(Outcome::new(Verdict::Inconclusive, summary).with(evidence));
    }
    let responded = response.is_some_and(|(response, before)| before && response.executed());
    if !responded && counted.is_none_or(|count| count == 0) {
        let summary = "the copy does not run, as no request runs before the handshake is complete";
        let evidence = vec![format!("copy: {reception}, no response before Finished")];
        return Ok(Outcome::new(Verdict::NotApplicable, summary).with(evidence));
    }
    let mut original = probe.send(&flight)?;
    let reception = original.reception(probe.settings.limit);
    if probe.settings.http3 && reception.ended.is_some() {
        let summary = "the server takes the original's packets for ones of the copy's connection: \
                       its client gets no response, and connects anew";
        let evidence = vec![format!("original: {reception}")];
        return Ok(Outcome::new(Verdict::NotApplicable, summary).with(evidence));
    }
    if let Some(failure) = &reception.ended {
        return Err(Stop(format!("a handshake without faults failed: {failure}")));
    }
    match reception.early_data {
        true => original.complete(),
        false => original.complete_and_send(&probe.request("GET", &nonce)),
    }
    let Some((response, _)) = original.response(probe.settings.limit) else {
        return Err(Stop("the original got no response".to_owned()));
    };
    original.close();
    // The first query of the witness was an execution too.
    let executions = probe.executions(&nonce)?;
    let executions = executions.map(|count| count.saturating_sub(u64::from(counted.is_some())));
    let mut evidence = vec![
        match responded {
            true => "copy: early data accepted, executed before Finished".to_owned(),
            false => "copy: early data accepted, counted by the witness, no response".to_owned(),
        },
        format!("original: {reception}, completed, status {}", response.status),
    ];
    evidence.extend(executions.map(count_text));
    let twice = executions.map_or(response.executed(), |count| count > 1);
    let (verdict, summary) = match (twice, response.executed()) {
        (true, _) => (Verdict::Warn, "the request of the overtaken original ran again"),
        (false, false) => (Verdict::Pass, "the overtaken original got 425 (Too Early)"),
        // Both got a response, so a witness that counted fewer than two executions missed one.
        (false, true) => (Verdict::Inconclusive, UNRELIABLE_COUNT),
    };
    Ok(Outcome::new(verdict, summary).with(evidence))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use firstflight_first_flight::test_server::{Behaviour, EarlyRequest};

    use super::*;
    use crate::checks::tests::{assert_proven, verdict};

    #[test]
    fn rfc8470_3_an_overtaken_original_is_rejected() {
        let wrong = Behaviour { rejects_overtaken: false, ..Behaviour::default() };
        assert_proven(&CHECK, &wrong, Verdict::Warn);
        assert_eq!(verdict(&CHECK, &wrong, false), Verdict::Warn);
        assert_eq!(verdict(&CHECK, &Behaviour::default(), false), Verdict::Pass);
        let holds = Behaviour { safe: EarlyRequest::Hold, ..wrong };
        assert_eq!(verdict(&CHECK, &holds, true), Verdict::NotApplicable);
        let refuses = Behaviour { safe: EarlyRequest::TooEarly, ..holds };
        assert_eq!(verdict(&CHECK, &refuses, false), Verdict::NotApplicable);
    }

    #[test]
    fn rfc8470_3_only_a_witness_knows_whether_a_copy_without_a_response_ran() {
        let slow = Behaviour { safe_delay: Duration::from_millis(1500), ..Behaviour::default() };
        let wrong = Behaviour { rejects_overtaken: false, ..slow.clone() };
        for (behaviour, witnessed) in [(&wrong, Verdict::Warn), (&slow, Verdict::Pass)] {
            assert_eq!(verdict(&CHECK, behaviour, false), Verdict::Inconclusive);
            assert_eq!(verdict(&CHECK, behaviour, true), witnessed);
        }
    }
}
