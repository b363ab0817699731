use firstflight_first_flight::FlightPlan;

use super::{Check, Concern, Needs};
use crate::Verdict;
use crate::finding::Outcome;
use crate::http::Response;
use crate::probe::{Exchange, Probe, Stop, nonce};

pub(super) const CHECK: Check = Check {
    name: "early-data-header",
    title: "`Early-Data: 1` at the upstream",
    section: "RFC 8470 section 5.1",
    explanation: "Asks the witness which Early-Data field it received. A request that is forwarded before \
                  the handshake is complete must carry `Early-Data: 1`, even if its client sends another \
                  value, or names the field in `Connection` to have it removed; other requests must not, \
                  unless their client sent it, in which case it must be left there.",
    needs: Needs::Witness,
    concern: Concern::Header,
    run,
};

fn run(probe: &Probe<'_>) -> Result<Outcome, Stop> {
    let Some((mut exchange, early)) = early_response(probe, &[])? else {
        let summary = "no request reaches the upstream before the handshake is complete";
        return Ok(Outcome::new(Verdict::NotApplicable, summary));
    };
    let mut send_after_handshake = |request: &[u8]| {
        exchange.complete_and_send(request);
        let response = exchange.response(probe.settings.limit);
        response
            .map(|(response, _)| response)
            .ok_or_else(|| Stop("no response after the handshake".to_owned()))
    };
    let plain = send_after_handshake(&probe.request("GET", &nonce()))?;
    let forged = send_after_handshake(&probe.request_with(&nonce(), &[("Early-Data", "1")]))?;
    exchange.close();
    let mut evidence = vec![
        format!("early: {}", field(&early)),
        format!("after the handshake: {}", field(&plain)),
        format!("after the handshake, sent by the client: {}", field(&forged)),
    ];
    let (mut verdict, mut summary) =
        match (is_marked(&early), is_marked(&plain), is_marked(&forged)) {
            (false, ..) => (Verdict::Fail, "early requests reach the upstream without Early-Data"),
            (_, true, _) => (Verdict::Warn, "requests after the handshake are marked as early"),
            (.., false) => (Verdict::Warn, "a client's own Early-Data field is removed"),
            (true, false, true) => (Verdict::Pass, "early requests, and only those, are marked"),
        };
    for (name, value) in hiding_fields(probe) {
        let seen = early_response(probe, &[(name, value)]);
        let what = match &seen {
            Ok(Some((_, response))) => field(response),
            Ok(None) => "not executed before Finished".to_owned(),
            Err(Stop(reason)) => reason.clone(),
        };
        evidence.push(format!("early, with `{name}: {value}` of the client: {what}"));
        let is_hidden = matches!(&seen, Ok(Some((_, response))) if !is_marked(response));
        if verdict == Verdict::Pass && is_hidden {
            (verdict, summary) = (Verdict::Warn, "a client can hide that its request is early");
        } else if verdict == Verdict::Pass && seen.is_err() {
            (verdict, summary) =
                (Verdict::Inconclusive, "not every request that may hide its mark could be sent");
        }
    }
    Ok(Outcome::new(verdict, summary).with(evidence))
}

/// Client fields that may hide the mark from the upstream. HTTP/3 has no Connection (RFC 9114
/// section 4.2).
fn hiding_fields(probe: &Probe<'_>) -> &'static [(&'static str, &'static str)] {
    match probe.settings.http3 {
        true => &[("Early-Data", "0")],
        false => &[("Early-Data", "0"), ("Connection", "Early-Data")],
    }
}

/// The response to an early request with these fields, if it ran before Finished: the response came
/// before, or the witness had counted the request.
fn early_response(
    probe: &Probe<'_>,
    fields: &[(&str, &str)],
) -> Result<Option<(Exchange, Response)>, Stop> {
    let nonce = nonce();
    let request = probe.request_with(&nonce, fields);
    let plan = FlightPlan::resume(probe.hello(), &probe.ticket()?).early_data(&request);
    let mut exchange = probe.send(&probe.build(plan))?;
    exchange.expect_early_data(probe.settings.limit)?;
    let response = match exchange.response(probe.settings.early_limit) {
        None if probe.executions(&nonce)?.is_some_and(|count| count > 0) => {
            exchange.complete();
            exchange.response(probe.settings.limit).map(|(response, _)| response)
        }
        found => found.filter(|(_, before)| *before).map(|(response, _)| response),
    };
    Ok(response.filter(Response::executed).map(|response| (exchange, response)))
}

/// Whether `Early-Data` is 1, or one of several values is (RFC 8470 section 5.1).
fn is_marked(response: &Response) -> bool {
    let value = response.field("early_data");
    let value = value.as_ref().and_then(|value| value.as_str());
    value.is_some_and(|value| value.split(',').any(|value| value.trim() == "1"))
}

fn field(response: &Response) -> String {
    match response.field("early_data") {
        Some(serde_json::Value::String(value)) => format!("Early-Data: {value}"),
        _ => "no Early-Data".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use firstflight_first_flight::test_server::{Behaviour, EarlyRequest};

    use super::*;
    use crate::checks::tests::{assert_proven, verdict};

    #[test]
    fn rfc8470_5_1_early_requests_are_marked() {
        let wrong = Behaviour { marks_early: false, ..Behaviour::default() };
        assert_proven(&CHECK, &wrong, Verdict::Fail);
        let hidden = Behaviour { client_hides_early: true, ..Behaviour::default() };
        assert_proven(&CHECK, &hidden, Verdict::Warn);
        let slow = Behaviour { safe_delay: Duration::from_millis(1500), ..wrong.clone() };
        assert_eq!(verdict(&CHECK, &slow, true), Verdict::Fail);
        let holds = Behaviour { safe: EarlyRequest::Hold, ..wrong };
        assert_eq!(verdict(&CHECK, &holds, true), Verdict::NotApplicable);
        assert_eq!(verdict(&CHECK, &holds, false), Verdict::NotApplicable);
    }
}
