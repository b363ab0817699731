//! `keys = "punctured"`: each ticket can be used once, whatever the clock says and whichever process
//! receives it.

use std::sync::Arc;
use std::time::Duration;

use firstflight_config::{Content, KeySource, ServerConfig};
use firstflight_testkit::{MemorySnapshot, RecordedFlight, StolenSecret, Upstream};
use firstflight_tls::Session;
use http::{Method, StatusCode};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;

use crate::metrics::assert_metrics;
use crate::support::quic::{Quic, UdpRelay, remembered, reply, request};
use crate::support::{
    Client, RunningServer, TEST_TIMEOUT, executions, get, line, replay, start_upstream,
};

fn punctured(config: &mut ServerConfig) {
    config.tickets.keys = KeySource::Punctured;
}

async fn start(upstream: &Upstream) -> RunningServer {
    RunningServer::proxy(upstream, punctured).await
}

/// Whether the request ran early, and whether its session was resumed.
fn early_and_resumed(log: &[Value], target: &str) -> (bool, bool) {
    let line = line(log, target);
    (line["early"] == true && line["executed"] == true, line["resumed"] == true)
}

/// Sends a request on a session as early data, and returns the response's status and the flight.
async fn visit(server: &RunningServer, session: &Session, target: &str) -> (String, Vec<u8>) {
    let client = Client::prepare("http/1.1", Some(session), &get(target));
    let flight = client.flight.clone();
    let response = client.run(server.address).await;
    (response.get(9..12).unwrap_or(&response).to_owned(), flight)
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_of_a_flight_execute_nothing_and_resume_nothing() {
    let upstream = start_upstream();
    let server = start(&upstream).await;
    let session = server.session("http/1.1").await;
    let (status, flight) = visit(&server, &session, "/once").await;
    assert_eq!(status, "200");
    for _ in 0..100 {
        // A full handshake's flight has a certificate; a resumed one is shorter than a kilobyte.
        let mut tcp = replay(server.address, &flight).await;
        let mut received = vec![0; 600];
        let read = tokio::time::timeout(TEST_TIMEOUT, tcp.read_exact(&mut received)).await;
        read.expect("a certificate follows").expect("the server waits for the client");
    }
    let log = server.stop().await;
    assert_eq!((upstream.recorded("/once").len(), executions(&log, "/once")), (1, 1));
    assert_eq!(early_and_resumed(&log, "/once"), (true, true));
}

/// A copy's handshake never completes, so it has no line in the access log. The console shows it.
#[tokio::test(flavor = "multi_thread")]
async fn copies_are_counted_and_another_use_of_the_ticket_is_no_copy() {
    let upstream = start_upstream();
    let server = start(&upstream).await;
    let session = server.session("http/1.1").await;
    let (_, flight) = visit(&server, &session, "/once").await;
    for _ in 0..3 {
        drop(replay(server.address, &flight).await);
    }
    assert_eq!(server.handle.replays().iter().map(|replay| replay.copies).sum::<u64>(), 3);
    assert_eq!(visit(&server, &session, "/twice").await.0, "200");
    assert_metrics(
        &server,
        "early_data_offered_total 5
         early_data_accepted_total 1
         early_data_refused_total reason=replayed 3
         early_data_refused_total reason=ticket_used 1
         handshakes_failed_total reason=protocol 3
         claims_total result=won 1
         too_early_total 0",
    )
    .await;
    let log = server.stop().await;
    assert_eq!(line(&log, "/twice")["early_data"], "ticket_used");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_the_original_and_copies_that_race_it_one_is_executed() {
    let upstream = start_upstream();
    let server = start(&upstream).await;
    for round in 0..20 {
        let session = server.session("http/1.1").await;
        let word = format!("/race/{round}.");
        let client = Client::prepare("http/1.1", Some(&session), &get(&word));
        let (flight, address) = (client.flight.clone(), server.address);
        let mut copies = JoinSet::new();
        for _ in 0..2 {
            let flight = flight.clone();
            copies.spawn(async move { replay(address, &flight).await });
        }
        if round % 2 == 0 {
            tokio::task::yield_now().await;
        }
        let response = client.run(address).await;
        let open = copies.join_all().await;
        upstream.wait_for(&word).await;
        drop(open);
        let status = response.get(9..12).unwrap_or_default();
        assert!(["200", "425"].contains(&status), "round {round}: {response:?}");
        assert_eq!(upstream.recorded(&word).len(), 1, "round {round}");
    }
    let log = server.stop().await;
    for round in 0..20 {
        let word = format!("/race/{round}.");
        assert_eq!((upstream.recorded(&word).len(), executions(&log, &word)), (1, 1), "{word}");
    }
}

/// The copy has used the ticket up, so the original is refused and sent again by its client.
#[tokio::test(flavor = "multi_thread")]
async fn rfc8470_5_2_an_original_overtaken_by_a_copy_gets_425() {
    let upstream = start_upstream();
    let server = start(&upstream).await;
    let session = server.session("http/1.1").await;
    let client = Client::prepare("http/1.1", Some(&session), &get("/overtaken"));
    let copy = replay(server.address, &client.flight).await;
    upstream.wait_for("/overtaken").await;
    let response = client.run(server.address).await;
    assert!(response.starts_with("HTTP/1.1 425"), "{response}");
    drop(copy);
    assert_metrics(
        &server,
        "early_data_offered_total 2\n early_data_refused_total reason=replayed 1",
    )
    .await;
    assert_eq!(server.handle.replays().len(), 1);
    let log = server.stop().await;
    assert_eq!(upstream.recorded("/overtaken").len(), 1);
    assert_eq!(executions(&log, "/overtaken"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc8446_c_4_a_client_that_uses_a_ticket_twice_makes_a_full_handshake() {
    let upstream = start_upstream();
    let server = start(&upstream).await;
    let session = server.session("http/1.1").await;
    for target in ["/first", "/second", "/third"] {
        assert_eq!(visit(&server, &session, target).await.0, "200", "{target}");
    }
    let metrics = server.handle.metrics();
    assert_eq!(metrics.sum("firstflight_punctured_tickets_used_total", &[]), 1.0);
    // Two from each full handshake, one to replace the used ticket.
    assert_eq!(metrics.sum("firstflight_punctured_tickets_outstanding", &[]), 6.0);
    let log = server.stop().await;
    assert_eq!(early_and_resumed(&log, "/first"), (true, true));
    assert_eq!(early_and_resumed(&log, "/second"), (false, false));
    assert_eq!(early_and_resumed(&log, "/third"), (false, false));
    for target in ["/first", "/second", "/third"] {
        assert_eq!(upstream.recorded(target).len(), 1, "{target}");
    }
}

/// An attacker who has seen the ticket sends it in another ClientHello, but cannot compute the
/// binder.
#[tokio::test(flavor = "multi_thread")]
async fn rfc8446_4_2_11_2_a_ticket_cannot_be_used_up_without_its_key() {
    let upstream = start_upstream();
    let server = start(&upstream).await;
    let session = server.session("http/1.1").await;
    let client = Client::prepare("http/1.1", Some(&session), &get("/honest"));
    for at in [client.hello_length - 1, client.hello_length - 40, 20] {
        let mut forged = client.flight.clone();
        // The binder, the ticket age or the ticket's end, the client random.
        forged[at] ^= 1;
        let mut tcp = TcpStream::connect(server.address).await.unwrap();
        tcp.write_all(&forged).await.unwrap();
        let mut received = [0; 7];
        let read = tokio::time::timeout(TEST_TIMEOUT, tcp.read_exact(&mut received)).await;
        read.expect("the server responds").expect("an alert or a flight");
        if at == client.hello_length - 1 {
            // A fatal alert: decrypt_error (section 6.2).
            assert_eq!((received[0], &received[5..]), (21, &[2, 51][..]));
        }
    }
    let response = client.run(server.address).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    assert_eq!(early_and_resumed(&server.stop().await, "/honest"), (true, true));
}

/// Early data is refused because it is switched off, or by TLS with a HelloRetryRequest. Its client
/// sends it again. Later the same flight would be accepted.
#[tokio::test(flavor = "multi_thread")]
async fn rfc8446_8_a_refused_flight_uses_its_ticket_up() {
    let upstream = start_upstream();
    let server = start(&upstream).await;
    let off = |config: &mut ServerConfig| config.early_data.enabled = false;
    let other_group = |config: &mut ServerConfig| {
        config.tls.ciphers.groups = Some("P-384".to_owned());
    };
    type Change<'a> = &'a dyn Fn(&mut ServerConfig);
    let changes: [(&str, Change<'_>); 2] = [("/off", &off), ("/retried", &other_group)];
    for (target, change) in changes {
        let session = server.session("http/1.1").await;
        server.reload(|config| change(config)).await.unwrap();
        let (status, flight) = visit(&server, &session, target).await;
        assert_eq!(status, "200");
        server.reload(|_| {}).await.unwrap();
        for _ in 0..5 {
            drop(replay(server.address, &flight).await);
        }
    }
    let log = server.stop().await;
    for target in ["/off", "/retried"] {
        assert_eq!(early_and_resumed(&log, target), (false, true), "{target}");
        assert_eq!((upstream.recorded(target).len(), executions(&log, target)), (1, 1), "{target}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_costs_a_full_handshake_and_a_reload_nothing() {
    let upstream = start_upstream();
    let first = start(&upstream).await;
    let (kept, lost) = (first.session("http/1.1").await, first.session("http/1.1").await);
    first.reload(|config| config.limits.connections = 77).await.unwrap();
    assert_eq!(visit(&first, &kept, "/reloaded").await.0, "200");
    assert_eq!(early_and_resumed(&first.stop().await, "/reloaded"), (true, true));

    let second = start(&upstream).await;
    assert_eq!(visit(&second, &lost, "/restarted").await.0, "200");
    // At once, without a recording window.
    let session = second.session("http/1.1").await;
    assert_eq!(visit(&second, &session, "/new").await.0, "200");
    let log = second.stop().await;
    assert_eq!(early_and_resumed(&log, "/restarted"), (false, false));
    assert_eq!(early_and_resumed(&log, "/new"), (true, true));
}

/// Two processes, as at an upgrade: on ports of their own, so that the test decides who receives what.
async fn two_processes(upstream: &Upstream) -> (RunningServer, RunningServer) {
    let start = async || {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        RunningServer::start(dir, Content::upstream(&upstream.url()).unwrap(), punctured).await
    };
    (start().await, start().await)
}

async fn hand_off(old: &RunningServer, new: &RunningServer) {
    let (old_end, new_end) = UnixStream::pair().unwrap();
    let (handed_over, taken) =
        tokio::join!(old.handle.hand_off(old_end), new.handle.take_over(new_end));
    handed_over.unwrap();
    taken.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_hands_the_keys_over() {
    let upstream = start_upstream();
    let (old, new) = two_processes(&upstream).await;
    let (before, after) = (old.session("http/1.1").await, old.session("http/1.1").await);
    let late = old.session("http/1.1").await;
    let (status, used) = visit(&old, &before, "/before").await;
    assert_eq!(status, "200");
    hand_off(&old, &new).await;
    let (status, early) = visit(&new, &after, "/after").await;
    assert_eq!(status, "200");
    // The old process has no keys. It lets the new one open the ticket, which is used up there.
    let (status, forwarded) = visit(&old, &late, "/late").await;
    assert_eq!(status, "200");
    for flight in [&used, &early, &forwarded] {
        for server in [&old, &new] {
            drop(replay(server.address, flight).await);
        }
    }
    let (old, new) = (old.stop().await, new.stop().await);
    assert_eq!(early_and_resumed(&old, "/before"), (true, true));
    assert_eq!(early_and_resumed(&new, "/after"), (true, true));
    assert_eq!(early_and_resumed(&old, "/late"), (true, true));
    for target in ["/before", "/after", "/late"] {
        assert_eq!(upstream.recorded(target).len(), 1, "{target}");
        assert_eq!(executions(&old, target) + executions(&new, target), 1, "{target}");
    }
}

/// A copy runs in the new process; the original is on the way to the old one.
#[tokio::test(flavor = "multi_thread")]
async fn an_original_at_the_old_process_gets_425_if_its_copy_ran_in_the_new_one() {
    let upstream = start_upstream();
    let (old, new) = two_processes(&upstream).await;
    let session = old.session("http/1.1").await;
    let mut client = Client::prepare("http/1.1", Some(&session), &get("/overtaken"));
    let mut tcp = TcpStream::connect(old.address).await.unwrap();
    hand_off(&old, &new).await;
    let copy = replay(new.address, &client.flight).await;
    upstream.wait_for("/overtaken").await;
    tcp.write_all(&client.flight).await.unwrap();
    let response = client.finish(&mut tcp).await;
    assert!(response.starts_with("HTTP/1.1 425"), "{response}");
    drop(copy);
    let (old, new) = (old.stop().await, new.stop().await);
    assert_eq!(upstream.recorded("/overtaken").len(), 1);
    assert_eq!(executions(&old, "/overtaken") + executions(&new, "/overtaken"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_runs_twice_while_the_keys_are_handed_over() {
    const FLIGHTS: usize = 60;
    let upstream = start_upstream();
    let (old, new) = two_processes(&upstream).await;
    let mut sessions = Vec::new();
    for _ in 0..FLIGHTS {
        sessions.push(old.session("http/1.1").await);
    }
    let (to_old, to_new) = (old.address, new.address);
    let mut tasks = JoinSet::new();
    for (n, session) in sessions.into_iter().enumerate() {
        tasks.spawn(async move {
            // One after the other, over the time that the handoff takes.
            tokio::time::sleep(Duration::from_millis(5 * n as u64)).await;
            let client = Client::prepare("http/1.1", Some(&session), &get(&format!("/race/{n}.")));
            let flight = client.flight.clone();
            let response = client.run(to_old).await;
            drop(replay(to_new, &flight).await);
            drop(replay(to_old, &flight).await);
            (n, response)
        });
    }
    upstream.wait_for(&format!("/race/{}.", FLIGHTS / 4)).await;
    hand_off(&old, &new).await;
    while let Some(done) = tasks.join_next().await {
        let (n, response) = done.unwrap();
        assert!(response.starts_with("HTTP/1.1 200"), "{n}: {response}");
    }
    let (old, new) = (old.stop().await, new.stop().await);
    for n in 0..FLIGHTS {
        let word = format!("/race/{n}.");
        assert_eq!(upstream.recorded(&word).len(), 1, "{word}");
        assert_eq!(executions(&old, &word) + executions(&new, &word), 1, "{word}");
        assert_eq!(early_and_resumed(&old, &word), (true, true), "{word}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_no_process_takes_stay_where_they_were() {
    let upstream = start_upstream();
    let (old, new) = two_processes(&upstream).await;
    let (first, second) = (old.session("http/1.1").await, old.session("http/1.1").await);
    let (_, used) = visit(&old, &first, "/used").await;
    let (stream, mut other) = UnixStream::pair().unwrap();
    let handing = tokio::spawn({
        let server = old.handle.clone();
        async move { server.hand_off(stream).await }
    });
    // The successor starts to read and dies.
    other.read_exact(&mut [0; 48]).await.unwrap();
    drop(other);
    handing.await.unwrap().unwrap_err();
    assert_eq!(visit(&old, &second, "/still").await.0, "200");
    drop(replay(old.address, &used).await);
    let log = old.stop().await;
    new.stop().await;
    assert_eq!(early_and_resumed(&log, "/still"), (true, true));
    assert_eq!((upstream.recorded("/used").len(), executions(&log, "/used")), (1, 1));
}

/// The successor ends, and the keys with it. This process continues with new ones.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_successor_has_died_its_tickets_cost_a_full_handshake() {
    let upstream = start_upstream();
    let (old, new) = two_processes(&upstream).await;
    let (first, second) = (old.session("http/1.1").await, old.session("http/1.1").await);
    // Both ends are connected through the test, so that it can cut them apart.
    let ((old_end, mut near), (mut far, new_end)) =
        (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
    let relay = tokio::spawn(async move {
        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
    });
    let (handed_over, taken) =
        tokio::join!(old.handle.hand_off(old_end), new.handle.take_over(new_end));
    handed_over.unwrap();
    taken.unwrap();
    let (_, flight) = visit(&new, &first, "/once").await;
    relay.abort();
    let returned = old.handle.wait_until_taken_back();
    tokio::time::timeout(TEST_TIMEOUT, returned).await.expect("the old process has the register");
    drop(replay(old.address, &flight).await);
    assert_eq!(visit(&old, &second, "/full").await.0, "200");
    let third = old.session("http/1.1").await;
    assert_eq!(visit(&old, &third, "/early").await.0, "200");
    let (old, new) = (old.stop().await, new.stop().await);
    assert_eq!(early_and_resumed(&old, "/full"), (false, false));
    assert_eq!(early_and_resumed(&old, "/early"), (true, true));
    assert_eq!(executions(&old, "/once") + executions(&new, "/once"), 1);
    assert_eq!(upstream.recorded("/once").len(), 1);
}

/// The serialized keys, as a process that takes over receives them. It dies before it takes them, so the
/// server has them again.
async fn stolen_keys(server: &RunningServer) -> MemorySnapshot {
    let (stream, mut thief) = UnixStream::pair().unwrap();
    let handle = server.handle.clone();
    let handing = tokio::spawn(async move { handle.hand_off(stream).await });
    // The digest of the store's settings, then register and keys, each after its length.
    thief.read_exact(&mut [0; 32]).await.unwrap();
    let register = thief.read_u64().await.unwrap();
    assert_ne!(register & 1 << 63, 0, "keys follow");
    thief.read_exact(&mut vec![0; (register & !(1 << 63)) as usize]).await.unwrap();
    let mut keys = vec![0; thief.read_u64().await.unwrap() as usize];
    thief.read_exact(&mut keys).await.unwrap();
    drop(thief);
    handing.await.unwrap().unwrap_err();
    MemorySnapshot::of_bytes(&keys)
}

#[tokio::test(flavor = "multi_thread")]
async fn serialized_keys_decrypt_a_recorded_flight_until_its_ticket_is_used() {
    let upstream = start_upstream();
    let server = start(&upstream).await;
    let session = server.session("http/1.1").await;
    let client = Client::prepare("http/1.1", Some(&session), &get("/stolen"));
    let flight = RecordedFlight::over_tcp(&client.flight, *b"GET /stolen HTTP");
    let (found, _) = stolen_keys(&server).await.try_on(&flight, None);
    assert!(matches!(found[..], [StolenSecret::Seed(_)]), "{found:?}");
    let response = client.run(server.address).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    assert_eq!(stolen_keys(&server).await.try_on(&flight, None).0, []);
    assert_eq!(early_and_resumed(&server.stop().await, "/stolen"), (true, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn over_quic_a_ticket_that_is_used_twice_costs_a_full_handshake() {
    let upstream = start_upstream();
    let server = start(&upstream).await;
    let remembered = remembered(server.address).await;
    let mut client = Quic::connect(server.address, remembered.clone()).await;
    let stream = client.send_head(request(Method::GET, "/first"), true).await;
    assert!(reply(stream).await.unwrap().status.is_success());
    assert!(client.accepted().await);
    client.close().await;
    let mut client = Quic::refused(server.address, remembered, "/second").await;
    assert!(client.get("/second").await.status.is_success());
    client.close().await;
    let log = server.stop().await;
    // Whether the request is read before the handshake is complete depends on timing.
    let first = line(&log, "/first");
    assert_eq!((&first["resumed"], &first["early_data"]), (&true.into(), &"accepted".into()));
    assert_eq!(early_and_resumed(&log, "/second"), (false, false));
    assert_eq!((upstream.recorded("first").len(), upstream.recorded("second").len()), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn over_quic_an_original_overtaken_by_a_copy_gets_425() {
    let upstream = start_upstream();
    // The copy never completes its handshake, and stopping waits for it.
    let server = RunningServer::proxy(&upstream, |config| {
        punctured(config);
        config.limits.header_timeout = Duration::from_secs(4);
    })
    .await;
    let remembered = remembered(server.address).await;
    let relay = UdpRelay::to(server.address).await;
    relay.drop_client_datagrams(true);
    let original = tokio::spawn(Quic::refused(relay.address, remembered, "/once"));
    let copy = UdpRelay::to(server.address).await;
    let overtaking = async {
        let mut sent = 0;
        while upstream.recorded("once").is_empty() {
            for datagram in relay.client_datagrams().split_off(sent) {
                copy.inject(&datagram).await;
                sent += 1;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, overtaking).await.expect("the copy runs");
    relay.drop_client_datagrams(false);
    let mut client = original.await.unwrap();
    assert_eq!(client.get("/once").await.status, StatusCode::TOO_EARLY);
    client.close().await;
    assert_metrics(&server, "early_data_refused_total transport=quic,reason=replayed 1").await;
    let log = server.stop().await;
    assert_eq!((upstream.recorded("once").len(), executions(&log, "once")), (1, 1));
}
