use firstflight_first_flight::FlightPlan;

use super::replay::{Copies, UNRELIABLE_COUNT};
use super::{Check, Concern, Needs};
use crate::Verdict;
use crate::finding::Outcome;
use crate::http::Response;
use crate::probe::{Probe, Stop, nonce};

pub(super) const CHECK: Check = Check {
    name: "unsafe-method",
    title: "POST, and query strings, in early data",
    section: "RFC 8470 section 3",
    explanation: "Sends a POST with a query string in early data, does not complete the handshake, and \
                  sends the same bytes twice more. The server should wait for the handshake, or \
                  respond 425 (Too Early). It fails if the request runs for a copy too. The evidence \
                  says what becomes of a GET with a query string, which is safe by its method but may \
                  change something in an application that is not.",
    needs: Needs::EarlyData,
    concern: Concern::Methods,
    run,
};

fn run(probe: &Probe<'_>) -> Result<Outcome, Stop> {
    let query = get_with_query(probe)?;
    let nonce = nonce();
    let flight = probe.build(probe.early("POST", &nonce)?);
    let mut exchange = probe.send(&flight)?;
    exchange.expect_early_data(probe.settings.limit)?;
    let response = exchange.response(probe.settings.early_limit).map(|(response, _)| response);
    let mut copies = Copies { evidence: vec![query], ..Copies::default() };
    copies.evidence.push(match &response {
        Some(response) => format!("POST in early data: status {} before Finished", response.status),
        None => "POST in early data: no response before Finished".to_owned(),
    });
    for number in 1..=2 {
        copies.send(probe, &flight, &format!("copy {number}"));
    }
    copies.count(probe, &nonce)?;
    let is_silent = response.is_none() && copies.responded == 0;
    if copies.executions.is_none() && is_silent && !silence_means_waiting(probe)? {
        let summary = "the POST got no response before the handshake was complete; only a witness can \
                       tell whether it ran";
        copies.evidence.push("a POST that runs may get its response as late".to_owned());
        return Ok(Outcome::new(Verdict::Warn, summary).with(copies.evidence));
    }
    let (verdict, summary) = copies.qualify(judge(response.as_ref(), &copies));
    Ok(Outcome::new(verdict, summary).with(copies.evidence))
}

/// The verdict, from the response to the first POST before its Finished, and from its copies.
fn judge(response: Option<&Response>, copies: &Copies) -> (Verdict, String) {
    let responses = copies.responded + usize::from(response.is_some_and(Response::executed));
    match (copies.executions, response) {
        (Some(count), _) if count > 1 => {
            (Verdict::Fail, format!("the POST ran {count} times, counted by the witness"))
        }
        (None, _) if responses > 1 => (
            Verdict::Fail,
            format!("{responses} of 3 copies of a POST got responses before Finished"),
        ),
        // One execution that was counted is enough for a warning.
        (Some(0), _) if responses > 0 => (Verdict::Inconclusive, UNRELIABLE_COUNT.to_owned()),
        (Some(1), _) => {
            (Verdict::Warn, "the POST ran before the handshake was complete".to_owned())
        }
        (None, _) if responses == 1 => {
            (Verdict::Warn, "the POST got a response before the handshake was complete".to_owned())
        }
        (_, Some(response)) if !response.executed() => {
            (Verdict::Pass, "the POST got 425 (Too Early)".to_owned())
        }
        _ => (Verdict::Pass, "the POST waits for the handshake".to_owned()),
    }
}

/// Whether a POST without a response waits for the handshake: a POST after a full handshake gets
/// its response in half of the time that the early one had, and GETs in fresh flights get theirs
/// before Finished.
fn silence_means_waiting(probe: &Probe<'_>) -> Result<bool, Stop> {
    let mut exchange = probe.send(&probe.build(FlightPlan::full(probe.hello())))?;
    exchange.expect_finished(probe.settings.limit)?;
    exchange.complete_and_send(&probe.request("POST", &nonce()));
    let is_fast = exchange.response(probe.settings.early_limit / 2).is_some();
    exchange.close();
    Ok(is_fast && probe.responds_early())
}

/// What becomes of a GET with a query string in early data.
fn get_with_query(probe: &Probe<'_>) -> Result<String, Stop> {
    let mut exchange = probe.send(&probe.build(probe.early("GET", &nonce())?))?;
    let reception = exchange.expect_finished(probe.settings.limit)?;
    let response = exchange.response(probe.settings.early_limit);
    exchange.complete();
    exchange.close();
    Ok(match response {
        _ if !reception.early_data => format!("GET with a query string: {reception}"),
        Some((response, true)) if response.executed() => format!(
            "GET with a query string in early data: executed, status {} before Finished",
            response.status
        ),
        Some((response, true)) => {
            format!("GET with a query string in early data: status {}", response.status)
        }
        _ => "GET with a query string in early data: no response before Finished".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use firstflight_first_flight::test_server::{Behaviour, EarlyRequest, Recorded};

    use super::*;
    use crate::checks::tests::{assert_proven, verdict, verdict_over_quic};

    #[test]
    fn rfc8470_3_unsafe_requests_wait_or_are_refused() {
        let early = Behaviour { others: EarlyRequest::Execute, ..Behaviour::default() };
        assert_proven(&CHECK, &early, Verdict::Warn);
        let replayed = Behaviour { recorded: Recorded::Never, ..early };
        assert_eq!(verdict(&CHECK, &replayed, true), Verdict::Fail);
        assert_eq!(verdict(&CHECK, &replayed, false), Verdict::Fail);
        let refused = Behaviour { others: EarlyRequest::TooEarly, ..Behaviour::default() };
        assert_eq!(verdict(&CHECK, &refused, true), Verdict::Pass);
    }

    /// A balancer may send the first POST to a slow backend, and its copies to a fast one.
    #[test]
    fn rfc8470_3_responses_to_copies_count_without_one_to_the_first() {
        let verdict = |responded| {
            judge(None, &Copies { sent: 2, accepted: 2, responded, ..Copies::default() }).0
        };
        assert_eq!([0, 1, 2].map(verdict), [Verdict::Pass, Verdict::Warn, Verdict::Fail]);
        let counted = |responded, count| {
            let copies = Copies { sent: 2, accepted: 2, responded, ..Copies::default() };
            judge(None, &Copies { executions: Some(count), ..copies }).0
        };
        assert_eq!(counted(1, 0), Verdict::Inconclusive, "counted by another witness");
        assert_eq!(counted(2, 1), Verdict::Warn, "one ran in any case");
    }

    #[test]
    fn rfc8470_3_a_post_without_a_response_waits_only_if_responses_are_fast() {
        let holds = Behaviour::default();
        assert_eq!(verdict(&CHECK, &holds, false), Verdict::Pass);
        let slow = Behaviour { others_delay: Duration::from_millis(1500), ..holds.clone() };
        assert_eq!(verdict(&CHECK, &slow, false), Verdict::Warn);
        assert_eq!(verdict_over_quic(&CHECK, &slow, false), Verdict::Warn);
        assert_eq!(verdict(&CHECK, &slow, true), Verdict::Pass, "the witness counted none");
        let slow_and_early = Behaviour { others: EarlyRequest::Execute, ..slow };
        assert_eq!(verdict(&CHECK, &slow_and_early, false), Verdict::Warn);
        let all_hold = Behaviour { safe: EarlyRequest::Hold, ..holds };
        assert_eq!(verdict(&CHECK, &all_hold, false), Verdict::Warn);
    }
}
