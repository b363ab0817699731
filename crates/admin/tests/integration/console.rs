//! What the console shows, and its updates.

use std::time::Instant;

use crate::client::{Stream, TestAdmin};
use crate::scene::{self, Scene};
use firstflight_admin::{Certificate, Failure, Moment, Reload, json_schema};
use firstflight_telemetry::metrics::{
    HandshakeKind, Protocol, PuncturedReading, RefusedReason, StoreReading, TlsVersion, Transport,
};
use firstflight_testkit::{TEST_TIMEOUT, assert_committed};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

#[tokio::test]
async fn the_three_questions_are_answered_at_the_top() {
    let scene = Scene::quiet();
    let admin = TestAdmin::without_token(scene.clone()).await;
    let quiet = admin.get("/", &[]).await.body;
    assert!(
        quiet.contains("Not offered") && quiet.contains("No flight was received twice"),
        "{quiet}"
    );
    connect_early(&scene, 40);
    scene.metrics().early_data.offered.add(Transport::Tcp, 2);
    scene.metrics().early_data.refused.add((Transport::Tcp, RefusedReason::Zone), 2);
    let used = admin.get("/", &[]).await.body;
    assert!(used.contains("accepted for 95 %") && used.contains("Another zone"), "{used}");
    scene.metrics().early_data.offered.count(Transport::Quic);
    scene.metrics().early_data.refused.count((Transport::Quic, RefusedReason::Replayed));
    scene.replayed(&["203.0.113.0/24"], "quic", 1, true);
    let attacked = admin.get("/", &[]).await.body;
    assert!(attacked.contains("Tried, and stopped") && attacked.contains("203.0.113.0/24"));
    assert!(attacked.contains("accepted for 95 %"), "{attacked}");
}

#[tokio::test]
async fn an_early_connection_that_closes_with_its_response_counts() {
    let scene = Scene::quiet();
    let admin = TestAdmin::without_token(scene.clone()).await;
    let metrics = scene.metrics();
    metrics.early_data.offered.count(Transport::Quic);
    metrics.early_data.accepted.count(Transport::Quic);
    metrics.handshakes.first_response.observe((HandshakeKind::Early, Transport::Quic), 0.002);
    let page = admin.get("/", &[]).await.body;
    assert!(page.contains("100 % of 1 new connections"), "{page}");
    assert!(page.contains("0-RTT <span class=\"faint\">QUIC"), "{page}");
}

#[tokio::test]
async fn requests_are_counted_by_what_happened_to_them() {
    let scene = Scene::quiet();
    let admin = TestAdmin::without_token(scene.clone()).await;
    scene.metrics().requests.misdirected.add(Protocol::Http2, 1234);
    let page = admin.get("/", &[]).await.body;
    let row = "<th scope=\"row\">response 421</th><td class=\"n\">1,234</td>";
    assert!(page.contains(row), "{page}");
    let status = admin.get("/status.json", &[]).await.body;
    assert!(status.contains("\"misdirected\":1234"), "{status}");
}

#[tokio::test]
async fn punctured_tickets_are_counted() {
    let scene = Scene::quiet();
    let admin = TestAdmin::without_token(scene.clone()).await;
    assert!(admin.get("/status.json", &[]).await.body.contains("\"punctured\":null"));
    assert!(!admin.get("/", &[]).await.body.contains("Punctured tickets"));
    scene.state(|state| state.keys.source = "punctured".to_owned());
    scene.readings(|readings| {
        readings.tickets.punctured =
            Some(PuncturedReading { outstanding: 1234, used: 567, lost: [89, 0], bytes: 20_000 });
    });
    let status = admin.get("/status.json", &[]).await.body;
    let punctured = "\"punctured\":{\"outstanding\":1234,\"used\":567,\"expired\":89,\
                     \"given_up\":0,\"key_bytes\":20000}";
    assert!(status.contains(punctured), "{status}");
    let page = admin.get("/", &[]).await.body;
    for text in [
        "<dd>1,234 outstanding, 567 used, 89 expired unused</dd>",
        "<dd>20 KiB</dd>",
        "Keys of this process alone, for TLS 1.2 and address tokens",
    ] {
        assert!(page.contains(text), "{text}\n{page}");
    }
    scene.readings(|readings| readings.tickets.punctured.as_mut().unwrap().lost[1] = 5);
    let page = admin.get("/", &[]).await.body;
    assert!(page.contains("expired unused, 5 given up at the limit of memory</dd>"), "{page}");
}

#[tokio::test]
async fn each_problem_has_a_notice() {
    let scene = Scene::quiet();
    let admin = TestAdmin::without_token(scene.clone()).await;
    assert!(!admin.get("/", &[]).await.body.contains("id=\"notices\""));
    let now = Moment::now();
    scene.state(|state| {
        state.server.ready = false;
        state.server.not_ready_because = Some("stopping".to_owned());
        let error = Some("line 3: <script>alert(1)</script>".to_owned());
        state.server.last_reload = Some(Reload { at: now, error });
        state.keys.warnings.push("no next key".to_owned());
    });
    scene.readings(|readings| {
        readings.register.records = readings.register.capacity;
        readings.store = Some(StoreReading {
            unavailable: Some(RefusedReason::StoreDown),
            ..StoreReading::default()
        });
        readings.filter = scene::filled(1 << 20);
    });
    scene.state(|state| state.certificates = certificates(now));
    let page = admin.get("/", &[]).await.body;
    for line in [
        "Not ready for new connections: stopping.",
        "line 3: &lt;script&gt;alert(1)&lt;/script&gt;",
        "no next key",
        "The strike register is nearly full (1,048,576 of 1,048,576)",
        "there is no connection to the store",
        "The certificate of www.example.test expires in 3 days.",
        "new.example.test has no certificate yet; clients get one that they do not trust. 2 orders \
         failed, the last just now: refused: &lt;b&gt;",
        "in 3 days</time><span class=\"faint\"> files</span>",
    ] {
        assert!(page.contains(line), "{line}\n{page}");
    }
    assert!(!page.contains("The certificate of short.example.test"), "{page}");
    assert!(!page.contains("<script>alert") && !page.contains("refused: <b>"));
}

/// One from files, one from an authority with the same lifetime, and one that was never issued.
fn certificates(now: Moment) -> Vec<Certificate> {
    let certificate = |site: &str, source: &str| Certificate {
        site: site.to_owned(),
        source: source.to_owned(),
        expires_at: Some(Moment(now.0 + 3 * 86_400 + 60)),
        ..Certificate::default()
    };
    let failure = Failure { at: now, reason: "refused: <b>".to_owned(), in_a_row: 2 };
    vec![
        certificate("www.example.test", "files"),
        certificate("short.example.test", "acme"),
        Certificate {
            missing: true,
            expires_at: None,
            last_error: Some(failure),
            ..certificate("new.example.test", "acme")
        },
    ]
}

#[tokio::test]
async fn events_follow_the_metrics_every_second() {
    let scene = Scene::quiet();
    let admin = TestAdmin::without_token(scene.clone()).await;
    let mut states = follow(&admin, "/events").await;
    let mut pages = follow(&admin, "/events/page").await;
    assert!(read_until(&mut *states, "\"offered\":0").await.contains("text/event-stream"));
    read_until(&mut *pages, "Not offered").await;
    connect_early(&scene, 7);
    read_until(&mut *states, "\"offered\":7").await;
    read_until(&mut *pages, "accepted for 100 %").await;
}

#[tokio::test]
async fn followers_do_not_block_other_requests() {
    let admin = TestAdmin::without_token(Scene::quiet()).await;
    let mut followers = Vec::new();
    for _ in 0..32 {
        let mut follower = follow(&admin, "/events").await;
        read_until(&mut *follower, "\"schema\":2").await;
        followers.push(follower);
    }
    assert_eq!(admin.get("/events", &[]).await.status, 503);
    assert_eq!(admin.get("/metrics", &[]).await.status, 200);
    followers.clear();
    // Their permits are returned when the server notices that they have closed.
    let returned = async {
        let mut follower = follow(&admin, "/events/page").await;
        while !read_some(&mut *follower).await.contains("200 OK") {
            follower = follow(&admin, "/events/page").await;
        }
    };
    timeout(TEST_TIMEOUT, returned).await.expect("their permits are returned");
}

#[tokio::test]
async fn metrics_have_both_text_formats() {
    let scene = Scene::quiet();
    let admin = TestAdmin::without_token(scene.clone()).await;
    connect_early(&scene, 3);
    let line = "firstflight_early_data_accepted_total{transport=\"tcp\"} 3\n";
    let plain = admin.get("/metrics", &[]).await;
    assert!(plain.body.contains(line) && plain.field("content-type").starts_with("text/plain"));
    let open_metrics = admin.get("/metrics", &["Accept: application/openmetrics-text"]).await;
    assert!(open_metrics.body.contains(line) && open_metrics.body.ends_with("# EOF\n"));
    assert!(open_metrics.field("content-type").starts_with("application/openmetrics-text"));
}

#[test]
fn the_schema_in_the_docs_is_up_to_date() {
    assert_committed("docs/reference/status.schema.json", &json_schema());
}

/// Counts connections with accepted early data.
fn connect_early(scene: &Scene, count: u64) {
    let metrics = scene.metrics();
    metrics.early_data.offered.add(Transport::Tcp, count);
    metrics.early_data.accepted.add(Transport::Tcp, count);
    for _ in 0..count {
        let kind = HandshakeKind::Early;
        metrics.handshakes.seconds.observe((TlsVersion::Tls13, kind, Transport::Tcp), 0.03);
        metrics.handshakes.first_response.observe((kind, Transport::Tcp), 0.002);
    }
}

async fn follow(admin: &TestAdmin, path: &str) -> Box<dyn Stream> {
    let mut stream = admin.connect().await;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// Reads until `text` was received. Returns everything that was read.
async fn read_until(stream: &mut dyn Stream, text: &str) -> String {
    let mut read = String::new();
    let end = Instant::now() + TEST_TIMEOUT;
    while !read.contains(text) {
        // An event arrives every second.
        assert!(Instant::now() < end, "not in time: {text} in {read}");
        let more = read_some(stream).await;
        assert!(!more.is_empty(), "the stream ended without {text}: {read}");
        read.push_str(&more);
    }
    read
}

async fn read_some(stream: &mut dyn Stream) -> String {
    let mut buffer = vec![0; 64 * 1024];
    let read = timeout(TEST_TIMEOUT, stream.read(&mut buffer)).await;
    let count = read.expect("data arrives in time").unwrap_or(0);
    String::from_utf8_lossy(&buffer[..count]).into_owned()
}
