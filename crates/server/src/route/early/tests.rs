use std::sync::Arc;

use firstflight_config::{EarlyDataSettings, EarlyRules, Nonce};
use firstflight_replay::{ClaimOutcome, EpochScope, HandoffQuery, HandoffReply, TicketEpochs};
use futures_util::FutureExt;
use http::{HeaderName, StatusCode};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::gate::{Successor, SuccessorRequest};
use crate::route::early::*;

const DAY: Duration = Duration::from_secs(86_400);

fn rules() -> EarlyRules {
    EarlyRules {
        idempotency_key: Some(DAY),
        nonce: Some(Nonce { header: HeaderName::from_static("x-nonce"), lifetime: DAY }),
        flight_header: Some(HeaderName::from_static("flight-id")),
        ..EarlyRules::default()
    }
}

fn request(method: &str, headers: &[(&str, &str)]) -> Request<()> {
    let mut request = Request::builder().method(method).uri("/pay").header("host", "h");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap()
}

fn keyed(key: &str) -> Request<()> {
    request("POST", &[("idempotency-key", key)])
}

fn gate(capacity: usize) -> Arc<EarlyDataGate> {
    let settings =
        EarlyDataSettings { register_capacity: capacity, ..EarlyDataSettings::default() };
    let epochs = Arc::new(TicketEpochs::new(EpochScope::Process));
    Arc::new(EarlyDataGate::new(&settings, epochs, None))
}

async fn status(
    rules: &EarlyRules,
    request: &Request<()>,
    decision: Option<Decision>,
    gate: &Arc<EarlyDataGate>,
) -> StatusCode {
    let claims = claim(&RouteRules::new(rules), request, (decision, None), gate).await;
    claims.map_or_else(|rejection| rejection.response().status(), |_| StatusCode::OK)
}

async fn claim(
    rules: &RouteRules,
    request: &Request<()>,
    arrival: (Option<Decision>, Option<Flight>),
    gate: &Arc<EarlyDataGate>,
) -> Result<RequestClaims, Rejection> {
    rules.required_claims(request, arrival)?.claim(gate, || Execution::new(true)).await
}

#[test]
fn an_unsafe_method_may_run_early_with_a_key_where_the_route_says_so() {
    let rules = EarlyRules { idempotency_key: Some(DAY), ..EarlyRules::default() };
    let may = |rules: &EarlyRules, request: &Request<()>, mode| {
        RouteRules::new(rules).may_run_early(request, mode)
    };
    assert!(may(&rules, &keyed("a"), Mode::Permissive));
    assert!(may(&rules, &keyed("a"), Mode::Strict));
    assert!(!may(&rules, &keyed("a"), Mode::Disabled));
    assert!(!may(&rules, &keyed(""), Mode::Permissive));
    assert!(!may(&rules, &request("POST", &[]), Mode::Permissive));
    assert!(!may(&EarlyRules::default(), &keyed("a"), Mode::Permissive));
    assert!(may(&rules, &request("GET", &[]), Mode::Permissive));
}

#[test]
fn a_routes_rules_apply_to_every_early_request() {
    let now = SteadyClock::unix_micros() / 1_000_000;
    let (fresh, stale) = (now.to_string(), (now - 60).to_string());
    let timestamp =
        Timestamp { header: HeaderName::from_static("x-time"), window: Duration::from_secs(30) };
    let rules = RouteRules::new(&EarlyRules { timestamp: Some(timestamp), ..rules() });
    for (headers, may) in [
        (vec![("x-time", fresh.as_str()), ("x-nonce", "1")], true),
        (vec![("x-time", stale.as_str()), ("x-nonce", "1")], false),
        (vec![("x-nonce", "1")], false),
        (vec![("x-time", fresh.as_str())], false),
        (vec![("x-time", fresh.as_str()), ("x-nonce", "")], false),
    ] {
        let request = request("GET", &headers);
        assert_eq!(rules.may_run_early(&request, Mode::Permissive), may, "{headers:?}");
        assert!(!rules.may_run_early(&request, Mode::Disabled));
    }
}

#[tokio::test]
async fn a_key_runs_one_request_early_or_late() {
    let gate = gate(10);
    let claim =
        async |request: &Request<()>, decision| status(&rules(), request, decision, &gate).await;
    assert_eq!(claim(&keyed("a"), Some(Decision::Execute)).await, StatusCode::OK);
    assert_eq!(claim(&keyed("a"), None).await, StatusCode::CONFLICT);
    assert_eq!(claim(&keyed("a"), Some(Decision::Execute)).await, StatusCode::CONFLICT);
    assert_eq!(claim(&keyed("b"), None).await, StatusCode::OK);
    assert_eq!(claim(&keyed(""), None).await, StatusCode::BAD_REQUEST);
    // Requests without a key, and those with a safe method, are not limited.
    for _ in 0..2 {
        assert_eq!(claim(&request("POST", &[]), None).await, StatusCode::OK);
        let get = request("GET", &[("idempotency-key", "a")]);
        assert_eq!(claim(&get, None).await, StatusCode::OK);
    }
    let rules = EarlyRules::default();
    assert_eq!(status(&rules, &keyed("a"), None, &gate).await, StatusCode::OK);
}

#[tokio::test]
async fn a_used_nonce_gets_425_early_and_409_late() {
    let gate = gate(10);
    let with = |nonce| request("GET", &[("x-nonce", nonce)]);
    let claim =
        async |request: &Request<()>, decision| status(&rules(), request, decision, &gate).await;
    let early = Some(Decision::Execute);
    assert_eq!(claim(&with("1"), early).await, StatusCode::OK);
    assert_eq!(claim(&with("1"), early).await, StatusCode::TOO_EARLY);
    assert_eq!(claim(&with("1"), None).await, StatusCode::CONFLICT);
    assert_eq!(claim(&request("GET", &[]), None).await, StatusCode::OK);
}

#[tokio::test]
async fn a_request_whose_claim_cannot_be_recorded_does_not_run() {
    let gate = gate(1);
    assert_eq!(status(&rules(), &keyed("a"), None, &gate).await, StatusCode::OK);
    let full = status(&rules(), &keyed("b"), None, &gate).await;
    assert_eq!(full, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn names_are_released_if_the_request_was_certainly_not_executed() {
    let gate = gate(10);
    let rules = RouteRules::new(&rules());
    let claim = async |nonce, executed| {
        let request = request("POST", &[("idempotency-key", "a"), ("x-nonce", nonce)]);
        let required = rules.required_claims(&request, (None, None)).unwrap();
        required.claim(&gate, || Execution::new(executed)).await
    };
    for executed in [false, true] {
        claim("1", executed).await.unwrap().release_unless_executed().await;
    }
    // The key is used, and the second attempt leaves its nonce as it was.
    for _ in 0..2 {
        let rejected = claim("2", false).await;
        assert!(matches!(rejected, Err(Rejection::KeyUsed)));
    }
}

#[tokio::test]
async fn names_are_released_if_the_request_is_dropped_before_it_was_executed() {
    let gate = gate(10);
    let rules = RouteRules::new(&rules());
    let request = request("POST", &[("idempotency-key", "a"), ("x-nonce", "1")]);
    let required = || rules.required_claims(&request, (None, None)).unwrap();
    drop(required().claim(&gate, || Execution::new(false)).await.unwrap());
    for executed in [false, true] {
        let mut claims = None;
        // Releases run in the background.
        for _ in 0..100 {
            tokio::task::yield_now().await;
            let again = required().claim(&gate, || Execution::new(executed)).await;
            claims = claims.or(again.ok());
        }
        assert!(claims.is_some());
    }
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(required().claim(&gate, || Execution::new(false)).await.is_err());
}

#[tokio::test]
async fn a_name_is_released_if_the_request_is_dropped_while_another_process_claims_it() {
    let gate = gate(10);
    let (requests, mut received) = mpsc::unbounded_channel();
    gate.hand_off(Successor::new(requests)).expect("the first handoff");
    let required = (ClaimKey::from_name(&[b"name"]), DAY);
    let mut claiming = Box::pin(HeldName::claim(&gate, required, Execution::new(false)));
    assert!((&mut claiming).now_or_never().is_none());
    drop(claiming);
    let mut next = async || {
        let request = timeout(Duration::from_secs(30), received.recv()).await.expect("a request");
        let Some(SuccessorRequest::Claim { query, reply }) = request else { panic!("no query") };
        (query, reply)
    };
    let (claim, reply) = next().await;
    assert!(matches!(claim, HandoffQuery::Name(name, _) if name == required.0));
    reply.send(HandoffReply::Name(ClaimOutcome::Won)).ok();
    assert!(matches!(next().await.0, HandoffQuery::Release(name) if name == required.0));
}

#[tokio::test]
async fn a_name_whose_claim_has_nearly_expired_is_not_released() {
    let gate = gate(10);
    let name = ClaimKey::from_name(&[b"name"]);
    let lifetime = Duration::from_secs(1);
    let held = HeldName::claim(&gate, (name, lifetime), Execution::new(false)).await;
    held.ok().unwrap().release_unless_executed().await;
    assert_eq!(gate.claim_name(name, lifetime).await, NameClaim::Taken);
}

#[tokio::test]
async fn the_upstream_gets_flight_ids_only_from_this_server() {
    let gate = gate(10);
    let rules = RouteRules::new(&rules());
    let offer = firstflight_replay::FlightOffer::new(
        firstflight_replay::ClaimKey::of_flight(&[0; 32]),
        0,
        Duration::ZERO,
        0,
    );
    let flight = Some(offer.settled(true));
    for (decision, id) in
        [(None, None), (Some(Decision::Execute), Some("00000000000000000000000000000000"))]
    {
        let mut request = request("GET", &[("flight-id", "forged"), ("flight_id", "forged")]);
        let claims = claim(&rules, &request, (decision, flight), &gate).await.unwrap();
        claims.set_flight_field(request.headers_mut());
        assert!(!request.headers().contains_key("flight_id"), "the same to some upstreams");
        let received = request.headers().get("flight-id").map(|id| id.to_str().unwrap());
        assert_eq!(received, id);
    }
}
