//! Hands the strike register from one process to the next while requests arrive. Both are servers
//! in the test's process, with the same ticket keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use firstflight_config::{Content, EarlyRules, KeySource, ServerConfig};
use firstflight_replay::{ClaimOutcome, HandoffQuery, HandoffReply};
use firstflight_server::HandoffError;
use firstflight_store::{Address, StoreConfig, Topology};
use firstflight_testkit::Upstream;
use firstflight_tickets::{KeyFile, Schedule, UnixTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::support::{
    Client, RunningServer, TEST_TIMEOUT, executions, fetch, get, line, replay, start_upstream,
    until,
};
use crate::upgrade::{CrashPoint, take_register};

/// The store's digest comes first, then the register's length with a flag.
const STORE_DIGEST_BYTES: usize = 32;
const HAS_KEYS: u64 = 1 << 63;

/// Starts processes that share ticket keys and accept early POSTs with a key.
struct Generations {
    dir: Arc<tempfile::TempDir>,
    upstream: Upstream,
}

impl Generations {
    async fn new() -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let now = UnixTime::from(std::time::SystemTime::now());
        KeyFile::new(dir.path().join("keys")).write_new(Schedule::default(), now).unwrap();
        Self { dir, upstream: start_upstream() }
    }

    async fn start(&self) -> RunningServer {
        let keys = self.dir.path().join("keys");
        self.start_with(|config| config.tickets.keys = KeySource::File(keys)).await
    }

    async fn start_with(&self, change: impl FnOnce(&mut ServerConfig)) -> RunningServer {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let content = Content::upstream(&self.upstream.url()).unwrap();
        RunningServer::start(dir, content, |config: &mut ServerConfig| {
            change(config);
            let Content::Sites(sites) = &mut config.content else { panic!("sites") };
            sites.sites[0].routes[0].early = EarlyRules {
                idempotency_key: Some(Duration::from_secs(3600)),
                ..EarlyRules::default()
            };
        })
        .await
    }

    /// The first process, which has taken over from another.
    async fn first(&self) -> RunningServer {
        let (before, server) = (self.start().await, self.start().await);
        hand_off(&before, &server).await;
        before.stop().await;
        server
    }
}

async fn hand_off(old: &RunningServer, new: &RunningServer) {
    let (old_end, new_end) = UnixStream::pair().unwrap();
    let (handed_over, taken) =
        tokio::join!(old.handle.hand_off(old_end), new.handle.take_over(new_end));
    handed_over.unwrap();
    taken.unwrap();
}

fn post(target: &str, key: &str) -> Vec<u8> {
    format!(
        "POST {target} HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nConnection: close\r\n\
         Idempotency-Key: {key}\r\n\r\n"
    )
    .into_bytes()
}

fn status(response: &str) -> &str {
    response.get(9..12).unwrap_or(response)
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc8446_8_2_a_successor_knows_flights_and_keys_and_needs_no_recording_window() {
    let generations = Generations::new().await;
    let (old, new) = (generations.first().await, generations.start().await);
    let session = old.session("http/1.1").await;
    let client = Client::prepare("http/1.1", Some(&session), &post("/once", "k"));
    let flight = client.flight.clone();
    assert_eq!(status(&client.run(old.address).await), "200");
    hand_off(&old, &new).await;
    drop(replay(new.address, &flight).await);
    let again = String::from_utf8(post("/once", "k")).unwrap();
    assert_eq!(status(&fetch(new.address, &again).await), "409");
    // The old process forwards the flights that it still receives.
    let session = old.session("http/1.1").await;
    let client = Client::prepare("http/1.1", Some(&session), &get("/late"));
    let flight = client.flight.clone();
    assert_eq!(status(&client.run(old.address).await), "200");
    drop(replay(new.address, &flight).await);
    let session = new.session("http/1.1").await;
    let client = Client::prepare("http/1.1", Some(&session), &get("/early"));
    let flight = client.flight.clone();
    assert_eq!(status(&client.run(new.address).await), "200");
    drop(replay(old.address, &flight).await);
    assert_eq!(status(&fetch(old.address, &again).await), "409");
    let (old, new) = (old.stop().await, new.stop().await);
    for target in ["/once", "/late", "/early"] {
        assert_eq!(generations.upstream.recorded(target).len(), 1, "{target}");
        assert_eq!(executions(&old, target) + executions(&new, target), 1, "{target}");
    }
    let ran_early = |log: &[serde_json::Value], target: &str| {
        log.iter().any(|line| {
            line["target"] == target && line["early"] == true && line["executed"] == true
        })
    };
    assert!(ran_early(&old, "/late") && ran_early(&new, "/early"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_register_that_no_process_takes_stays_where_it_was() {
    let generations = Generations::new().await;
    let old = generations.first().await;
    let session = old.session("http/1.1").await;
    let client = Client::prepare("http/1.1", Some(&session), &get("/once"));
    let flight = client.flight.clone();
    assert_eq!(status(&client.run(old.address).await), "200");
    let waiting = old.session("http/1.1").await;

    let (stream, mut other) = UnixStream::pair().unwrap();
    let handing = tokio::spawn({
        let server = old.handle.clone();
        async move { server.hand_off(stream).await }
    });
    // The successor reads the whole register and dies before it has confirmed that.
    other.read_exact(&mut [0; STORE_DIGEST_BYTES]).await.unwrap();
    let length = other.read_u64().await.unwrap() & !HAS_KEYS;
    let mut register = vec![0; usize::try_from(length).unwrap()];
    other.read_exact(&mut register).await.unwrap();
    // Claims wait meanwhile.
    let client = Client::prepare("http/1.1", Some(&waiting), &get("/meanwhile"));
    let meanwhile = tokio::spawn(client.run(old.address));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(generations.upstream.recorded("/meanwhile").is_empty(), "nobody may claim");
    drop(other);
    let error = handing.await.unwrap().unwrap_err();
    assert!(matches!(error, HandoffError::Disconnected(_)), "{error}");
    assert_eq!(status(&meanwhile.await.unwrap()), "200");
    drop(replay(old.address, &flight).await);
    let session = old.session("http/1.1").await;
    let client = Client::prepare("http/1.1", Some(&session), &get("/after"));
    assert_eq!(status(&client.run(old.address).await), "200");
    let log = old.stop().await;
    assert_eq!(generations.upstream.recorded("/once").len(), 1);
    for target in ["/meanwhile", "/after"] {
        assert_eq!(line(&log, target)["claim"], "won", "{target}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_was_claimed_at_a_successor_that_died_stays_used() {
    let generations = Generations::new().await;
    let old = generations.first().await;
    let (stream, other) = UnixStream::pair().unwrap();
    // Stands for a process that does not serve.
    let taking = take_register(other, CrashPoint::WithRegister);
    let (handed_over, other) = tokio::join!(old.handle.hand_off(stream), taking);
    handed_over.unwrap();
    let mut other = other.unwrap();
    let used = String::from_utf8(post("/used", "k")).unwrap();
    let replying = async {
        other.read_exact(&mut [0; HandoffQuery::LENGTH]).await.unwrap();
        let won = HandoffReply::Name(ClaimOutcome::Won);
        other.write_u8(won.to_byte()).await.unwrap();
    };
    let (response, ()) = tokio::join!(fetch(old.address, &used), replying);
    assert_eq!(status(&response), "200", "{response}");
    drop(other);
    timeout(TEST_TIMEOUT, old.handle.wait_until_taken_back()).await.unwrap();
    assert_eq!(status(&fetch(old.address, &used).await), "409");
    // The successor may have executed a request with this key by itself. The next successor has to
    // take that into account, too.
    let unknown = String::from_utf8(post("/unknown", "l")).unwrap();
    assert_eq!(status(&fetch(old.address, &unknown).await), "503");
    let new = generations.start().await;
    hand_off(&old, &new).await;
    assert_eq!(status(&fetch(new.address, &used).await), "409");
    assert_eq!(status(&fetch(new.address, &unknown).await), "503");
    old.stop().await;
    new.stop().await;
    assert_eq!(generations.upstream.recorded("/used").len(), 1);
    assert!(generations.upstream.recorded("/unknown").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_with_other_tls_settings_takes_the_tickets_over() {
    let generations = Generations::new().await;
    let old = generations.first().await;
    let keys = generations.dir.path().join("keys");
    let change = |config: &mut ServerConfig| {
        config.tickets.keys = KeySource::File(keys);
        config.tls.http2 = false;
    };
    let new = generations.start_with(change).await;
    let session = old.session("http/1.1").await;
    hand_off(&old, &new).await;
    let client = Client::prepare("http/1.1", Some(&session), &get("/early"));
    assert_eq!(status(&client.run(new.address).await), "200");
    let log = new.stop().await;
    assert_eq!(line(&log, "/early")["claim"], "won");
    old.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_register_is_handed_over_once() {
    let generations = Generations::new().await;
    let (old, new) = (generations.first().await, generations.start().await);
    hand_off(&old, &new).await;
    let third = generations.start().await;
    let (old_end, new_end) = UnixStream::pair().unwrap();
    let (handed_over, taken) =
        tokio::join!(old.handle.hand_off(old_end), third.handle.take_over(new_end));
    assert!(matches!(handed_over, Err(HandoffError::NotOwner)), "{handed_over:?}");
    assert!(taken.is_err());
    assert!(old.handle.state_for_successor().is_err(), "nor are sockets and secrets");
    // The owner of the register can hand it over.
    hand_off(&new, &third).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_with_another_store_takes_over_no_register() {
    let generations = Generations::new().await;
    let (old, keys) = (generations.first().await, generations.dir.path().join("keys"));
    let change = |config: &mut ServerConfig| {
        config.tickets.keys = KeySource::File(keys);
        let unreachable = Address::Tcp("127.0.0.1".into(), 1);
        config.store = Some(StoreConfig::new(Topology::Single(unreachable)));
    };
    let new = generations.start_with(change).await;
    let (old_end, new_end) = UnixStream::pair().unwrap();
    let (handed_over, taken) =
        tokio::join!(old.handle.hand_off(old_end), new.handle.take_over(new_end));
    assert!(handed_over.is_err());
    assert!(matches!(taken, Err(HandoffError::OtherStore)), "{taken:?}");
    // The register is where it was.
    let session = old.session("http/1.1").await;
    let client = Client::prepare("http/1.1", Some(&session), &get("/still"));
    assert_eq!(status(&client.run(old.address).await), "200");
    assert_eq!(line(&old.stop().await, "/still")["claim"], "won");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_receives_invalid_bytes_takes_over_no_register() {
    let generations = Generations::new().await;
    let new = generations.start().await;
    for bytes in [&b""[..], b"\0\0\0\0\0\0\0\x03abc", &[0xff; 64], &[0; 64]] {
        let (mut other, stream) = UnixStream::pair().unwrap();
        other.write_all(bytes).await.unwrap();
        drop(other);
        assert!(new.handle.take_over(stream).await.is_err());
    }
    let session = new.session("http/1.1").await;
    let client = Client::prepare("http/1.1", Some(&session), &get("/early"));
    assert_eq!(status(&client.run(new.address).await), "200");
    let log = new.stop().await;
    assert_eq!(line(&log, "/early")["claim"], "won", "its own tickets are of its own epoch");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_runs_twice_while_the_register_is_handed_over() {
    const FLIGHTS: usize = 120;
    let generations = Generations::new().await;
    let (old, new) = (generations.first().await, generations.start().await);
    let session = Arc::new(old.session("http/1.1").await);
    let (to_old, to_new) = (old.address, new.address);
    let sent = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..FLIGHTS {
        let (session, sent) = (session.clone(), sent.clone());
        tasks.spawn(async move {
            // One after the other, over the time that the handoff takes.
            tokio::time::sleep(Duration::from_millis(5 * n as u64)).await;
            let request = post(&format!("/race/{n}."), &n.to_string());
            let client = Client::prepare("http/1.1", Some(&session), &request);
            let flight = client.flight.clone();
            sent.fetch_add(1, Ordering::SeqCst);
            let response = client.run(to_old).await;
            (n, flight, request, status(&response).to_owned())
        });
    }
    until("flights are sent", || sent.load(Ordering::SeqCst) >= FLIGHTS / 4).await;
    hand_off(&old, &new).await;
    let mut checked = 0;
    while let Some(done) = tasks.join_next().await {
        let (n, flight, request, status_of_first) = done.unwrap();
        assert_eq!(status_of_first, "200", "{n}");
        // The attacker at the new process, and the client itself.
        drop(replay(to_new, &flight).await);
        let again = fetch(to_new, &String::from_utf8(request).unwrap()).await;
        assert_eq!(status(&again), "409", "{n}: {again}");
        checked += 1;
    }
    assert_eq!(checked, FLIGHTS);
    let (old, new) = (old.stop().await, new.stop().await);
    for n in 0..FLIGHTS {
        let word = format!("/race/{n}.");
        assert_eq!(generations.upstream.recorded(&word).len(), 1, "{word}");
        assert_eq!(executions(&old, &word) + executions(&new, &word), 1, "{word}");
    }
    let accepted = old.iter().filter(|line| line["early"] == true).count();
    assert!(accepted > FLIGHTS / 2, "most of them ran early: {accepted}");
}
