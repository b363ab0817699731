//! Pools against servers on real sockets.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use firstflight_upstream::{
    Attempt, Body, HealthCheck, Observer, Pool, PoolConfig, Protocol, SendError, SendOptions,
    ServerAddress, ServerHealth, proxy_protocol,
};
use http::uri::PathAndQuery;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

use crate::peer::{Peer, ok};

/// Only a failing test waits this long.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) fn pool(peers: &[&Peer], change: impl FnOnce(&mut PoolConfig)) -> Pool {
    let mut config = PoolConfig::new(peers.iter().map(|peer| peer.address.clone()).collect());
    change(&mut config);
    let pool = Pool::new("test", config).unwrap();
    pool.start();
    pool
}

pub(crate) fn request(method: &str, body: &'static str) -> Request<Body> {
    let body = match body {
        "" => Empty::new().map_err(|never| match never {}).boxed_unsync(),
        text => Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync(),
    };
    Request::builder().method(method).uri("/path?q").header("host", "a.test").body(body).unwrap()
}

pub(crate) async fn send(
    pool: &Pool,
    method: &str,
    body: &'static str,
) -> Result<String, SendError> {
    send_for(pool, method, body, 1).await
}

async fn send_for(
    pool: &Pool,
    method: &str,
    body: &'static str,
    client: u16,
) -> Result<String, SendError> {
    let client = ([192, 0, 2, 1], client).into();
    let local = ([192, 0, 2, 9], 443).into();
    let options = SendOptions { client, local, once: false, observer: &() };
    let response = pool.send(request(method, body), &options).await?;
    let status = response.status();
    let body = response.into_body().collect().await;
    let body = body.map_or_else(|error| format!("broken: {error}"), text);
    Ok(if status == StatusCode::OK { body } else { status.to_string() })
}

pub(crate) fn text(body: http_body_util::Collected<Bytes>) -> String {
    String::from_utf8(body.to_bytes().to_vec()).unwrap()
}

/// Waits until no request is in flight: a client has its response a moment before the pool has
/// processed the end.
pub(crate) async fn settled(pool: &Pool) {
    while pool.status().servers.iter().any(|server| server.in_flight > 0) {
        sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn connections_are_reused() {
    let peer = Peer::http1(|head| ok(&head[0])).await;
    let pool = pool(&[&peer], |_| ());
    for _ in 0..5 {
        assert_eq!(send(&pool, "GET", "").await.unwrap(), "GET /path?q HTTP/1.1");
        settled(&pool).await;
    }
    assert_eq!(send(&pool, "POST", "text").await.unwrap(), "POST /path?q HTTP/1.1");
    let status = pool.status().servers.remove(0);
    assert_eq!((status.connections, status.totals.responses), (1, [0, 6, 0, 0, 0]));
}

#[tokio::test]
async fn rfc9112_9_3_1_a_safe_request_is_retried_after_a_stale_connection() {
    // Responds once, and closes the connection on the next request.
    let peer = Peer::raw(|mut stream| async move {
        crate::peer::head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
        crate::peer::head(&mut stream).await;
    })
    .await;
    let pool = pool(&[&peer], |_| ());
    for _ in 0..5 {
        assert_eq!(send(&pool, "GET", "").await.unwrap(), "ok");
    }
    // The server has received the POST, and may have executed it.
    assert!(matches!(send(&pool, "POST", "text").await, Err(SendError::Broken(_))));
    let status = pool.status();
    let server = &status.servers[0];
    assert_eq!((server.totals.stale, status.retries, server.state), (5, 4, ServerHealth::Up));
}

#[tokio::test]
async fn any_unsent_request_is_retried_on_another_server() {
    let (dead, peer) = (Peer::dead().await, Peer::http1(|_| ok("alive")).await);
    let pool = pool(&[&dead, &peer], |_| ());
    for _ in 0..20 {
        assert_eq!(send(&pool, "POST", "text").await.unwrap(), "alive");
    }
    let status = pool.status();
    assert_eq!(status.servers[0].state, ServerHealth::Ejected);
    assert_eq!((status.servers[0].totals.connect_failed, status.retries), (3, 3));
}

#[tokio::test]
async fn the_only_server_is_tried_even_when_it_is_ejected() {
    let dead = Peer::dead().await;
    let pool = pool(&[&dead], |_| ());
    for _ in 0..5 {
        assert!(matches!(send(&pool, "GET", "").await, Err(SendError::Connect(_))));
    }
    let status = pool.status().servers.remove(0);
    assert_eq!((status.state, status.totals.connect_failed), (ServerHealth::Ejected, 5));
}

#[tokio::test]
async fn a_safe_request_is_retried_elsewhere_after_an_invalid_response() {
    let invalid = Peer::raw(|mut stream| async move {
        crate::peer::head(&mut stream).await;
        stream.write_all(b"SSH-2.0-what\r\n\r\n").await.unwrap();
    })
    .await;
    let peer = Peer::http1(|_| ok("valid")).await;
    let pool = pool(&[&invalid, &peer], |_| ());
    for _ in 0..4 {
        assert_eq!(send(&pool, "GET", "").await.unwrap(), "valid");
    }
    assert!(pool.status().servers[0].totals.broken > 0);
}

#[tokio::test]
async fn rfc9112_7_a_response_with_a_coding_other_than_chunked_is_an_error() {
    for (coding, readable) in [
        ("chunked", true),
        ("Chunked", true),
        ("gzip, chunked", false),
        ("gzip\r\nTransfer-Encoding: chunked", false),
        ("chunked\r\nTransfer-Encoding: chunked", false),
        ("gzip", false),
    ] {
        let peer = Peer::raw(move |mut stream| async move {
            crate::peer::head(&mut stream).await;
            let head = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: {coding}\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            let _ = stream.write_all(b"2\r\nok\r\n0\r\n\r\n").await;
        })
        .await;
        let pool = pool(&[&peer], |_| ());
        let response = send(&pool, "GET", "").await;
        match readable {
            true => assert_eq!(response.unwrap(), "ok", "{coding}"),
            false => assert!(
                matches!(response, Err(SendError::TransferCoding)),
                "{coding}: {response:?}"
            ),
        }
        if !readable {
            assert_eq!(pool.status().servers[0].cached_connections, 0, "{coding}");
        }
    }
}

#[tokio::test]
async fn a_request_that_timed_out_is_not_retried() {
    let silent = || {
        Peer::raw(|mut stream| async move {
            crate::peer::head(&mut stream).await;
            std::future::pending::<()>().await;
        })
    };
    let peers = [silent().await, silent().await];
    let pool = pool(&[&peers[0], &peers[1]], |config| {
        config.response_timeout = Some(Duration::from_millis(100));
    });
    assert!(matches!(send(&pool, "GET", "").await, Err(SendError::Timeout(_))));
    assert_eq!(pool.status().retries, 0);
}

/// The SYN is dropped twice, as by a full queue, and sent again after one second, and after two or
/// three.
#[tokio::test]
async fn the_response_timeout_starts_when_the_connection_is_open() {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut queued = Vec::new();
    while let Ok(stream) = timeout(Duration::from_millis(200), TcpStream::connect(address)).await {
        queued.push(stream.unwrap());
    }
    let peer = Peer { address: format!("http://{address}").parse().unwrap() };
    let pool = pool(&[&peer], |config| {
        config.connect_timeout = Duration::from_secs(20);
        config.response_timeout = Some(Duration::from_millis(1500));
    });
    tokio::spawn(async move {
        sleep(Duration::from_millis(1600)).await;
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                if crate::peer::head(&mut stream).await.is_some() {
                    stream.write_all(&ok("late")).await.unwrap();
                }
            });
        }
    });
    assert_eq!(send(&pool, "GET", "").await.unwrap(), "late");
}

#[tokio::test]
async fn a_stalled_response_body_is_aborted() {
    let peer = Peer::raw(|mut stream| async move {
        crate::peer::head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf").await.unwrap();
        std::future::pending::<()>().await;
    })
    .await;
    let pool = pool(&[&peer], |config| config.body_timeout = Duration::from_millis(100));
    let response = send(&pool, "GET", "").await.unwrap();
    assert!(response.contains("sent nothing of its response"), "{response}");
    let status = pool.status().servers.remove(0);
    assert_eq!(
        (status.totals.bodies_stalled, status.in_flight, status.cached_connections),
        (1, 0, 0)
    );
}

#[tokio::test]
async fn requests_above_the_limit_wait_or_are_rejected() {
    let peer = Peer::http1(|head| {
        std::thread::sleep(Duration::from_millis(50));
        ok(&head[0])
    })
    .await;
    let hanging = Peer::raw(|stream| async move {
        let _open = stream;
        std::future::pending::<()>().await;
    })
    .await;
    let one_at_a_time = |config: &mut PoolConfig| {
        config.requests = 1;
        config.queue_timeout = Duration::from_secs(10);
    };
    let queueing = pool(&[&peer], one_at_a_time);
    let both = tokio::join!(send(&queueing, "GET", ""), send(&queueing, "GET", ""));
    assert!(both.0.is_ok() && both.1.is_ok());
    let rejecting = pool(&[&hanging], |config| {
        one_at_a_time(config);
        config.queue_timeout = Duration::from_millis(50);
        config.response_timeout = Some(Duration::from_millis(500));
    });
    let (first, second) = tokio::join!(send(&rejecting, "GET", ""), send(&rejecting, "GET", ""));
    assert!(matches!(first, Err(SendError::Timeout(_))), "{first:?}");
    assert!(matches!(second, Err(SendError::Busy(_))), "{second:?}");
    assert_eq!(rejecting.status().rejected, 1);
}

#[tokio::test]
async fn health_checks_take_a_server_down_and_bring_it_up() {
    let healthy = Arc::new(Mutex::new(true));
    let responds_ok = healthy.clone();
    let peer = Peer::http1(move |head| match (head[0].as_str(), *responds_ok.lock().unwrap()) {
        ("GET /health HTTP/1.1", false) => crate::peer::response("503 Service Unavailable", ""),
        _ => ok("served"),
    })
    .await;
    let pool = pool(&[&peer], |config| {
        let check = HealthCheck::new("/health".parse().unwrap());
        config.health_check = Some(HealthCheck { interval: Duration::from_millis(10), ..check });
    });
    for state in [ServerHealth::Up, ServerHealth::Down, ServerHealth::Up] {
        *healthy.lock().unwrap() = state == ServerHealth::Up;
        while pool.status().servers[0].state != state {
            sleep(Duration::from_millis(5)).await;
        }
        let response = send(&pool, "GET", "").await;
        match state {
            ServerHealth::Up => assert_eq!(response.unwrap(), "served"),
            _ => assert!(matches!(response, Err(SendError::NoServer)), "{response:?}"),
        }
    }
}

#[tokio::test]
async fn rfc9113_8_3_1_a_target_without_a_path_gets_one() {
    let peer = Peer::http2_with(|request| async move {
        let target = request.uri().path_and_query().unwrap().as_str().to_owned();
        Response::new(Full::new(target.into()))
    })
    .await;
    let pool = pool(&[&peer], |config| config.protocol = Protocol::Http2);
    let mut request = request("GET", "");
    *request.uri_mut() = PathAndQuery::from_static("?q").into();
    let local = ([192, 0, 2, 9], 443).into();
    let options = SendOptions { client: local, local, once: false, observer: &() };
    let response = pool.send(request, &options).await.unwrap();
    assert_eq!(text(response.into_body().collect().await.unwrap()), "/?q");
}

#[tokio::test]
async fn rfc9113_3_3_many_requests_on_one_connection() {
    let peer = Peer::http2().await;
    let pool = pool(&[&peer], |config| config.protocol = Protocol::Http2);
    let all = (0..50).map(|_| {
        let pool = pool.clone();
        tokio::spawn(async move { send(&pool, "POST", "text").await.unwrap() })
    });
    for response in all.collect::<Vec<_>>() {
        assert_eq!(response.await.unwrap(), "POST http://a.test/path?q text");
    }
    settled(&pool).await;
    assert_eq!(pool.status().servers[0].connections, 1);
    let mut upgrade = request("GET", "");
    upgrade.headers_mut().insert("upgrade", "websocket".parse().unwrap());
    let local = ([192, 0, 2, 9], 443).into();
    let options = SendOptions { client: local, local, once: false, observer: &() };
    assert!(matches!(pool.send(upgrade, &options).await, Err(SendError::NoUpgrade)));
}

#[tokio::test]
async fn rfc9113_10_5_1_a_long_response_head_is_accepted() {
    let long = "x".repeat(100 << 10);
    let head = format!("HTTP/1.1 204 No Content\r\na: {long}\r\nb: {long}\r\n\r\n");
    let http1 = Peer::http1(move |_| head.clone().into_bytes()).await;
    let http2 = Peer::http2_with(move |_| {
        let response = Response::builder().header("a", &long).header("b", &long);
        let response = response.body(Full::default()).unwrap();
        async { response }
    })
    .await;
    let local = ([192, 0, 2, 9], 443).into();
    let options = SendOptions { client: local, local, once: false, observer: &() };
    for (peer, protocol) in [(http1, Protocol::Http1), (http2, Protocol::Http2)] {
        let pool = pool(&[&peer], |config| config.protocol = protocol);
        let response = pool.send(request("GET", ""), &options).await.unwrap();
        assert_eq!(response.headers()["b"].len(), 100 << 10, "{protocol:?}");
    }
}

/// Many cookies, for example.
#[tokio::test]
async fn a_response_with_many_fields_is_accepted() {
    let fields = "Set-Cookie: a=1\r\n".repeat(200);
    let head = format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: 2\r\n\r\nok");
    let peer = Peer::http1(move |_| head.clone().into_bytes()).await;
    let pool = pool(&[&peer], |_| ());
    assert_eq!(send(&pool, "GET", "").await.unwrap(), "ok");
}

#[tokio::test]
async fn with_a_proxy_header_each_client_has_its_own_connection() {
    for (version, first) in [
        (proxy_protocol::Version::V1, "PROXY TCP4 192.0.2.1 192.0.2.9 1 443\r\n"),
        (proxy_protocol::Version::V2, "\r\n\r\n\0\r\nQUIT\n"),
    ] {
        let headers = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let recorded = headers.clone();
        let length = if version == proxy_protocol::Version::V1 { first.len() } else { 28 };
        let peer = Peer::raw(move |mut stream| {
            let recorded = recorded.clone();
            async move {
                let mut header = vec![0; length];
                stream.read_exact(&mut header).await.unwrap();
                recorded.lock().unwrap().push(header);
                loop {
                    let Some(head) = crate::peer::head(&mut stream).await else { return };
                    stream.write_all(&ok(&head[0])).await.unwrap();
                }
            }
        })
        .await;
        let pool = pool(&[&peer], |config| config.proxy_protocol = Some(version));
        for client in [1, 1, 2, 1, 2] {
            let response = send_for(&pool, "GET", "", client).await.unwrap();
            assert_eq!(response, "GET /path?q HTTP/1.1");
            settled(&pool).await;
        }
        let headers = headers.lock().unwrap();
        assert_eq!(headers.len(), 2);
        assert!(headers[0].starts_with(first.as_bytes()), "{headers:?}");
        assert_ne!(headers[0], headers[1]);
    }
}

#[tokio::test]
async fn idle_connections_of_http2_have_a_limit() {
    let peer = Peer::raw(|mut stream| async move {
        while stream.read_u8().await.unwrap() != b'\n' {}
        let service =
            service_fn(async |_| Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())));
        let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), service);
        drop(serving.await);
    })
    .await;
    let config = PoolConfig {
        protocol: Protocol::Http2,
        proxy_protocol: Some(proxy_protocol::Version::V1),
        idle_connections: 2,
        ..PoolConfig::new(vec![peer.address.clone()])
    };
    // Not started, so nothing is closed meanwhile.
    let pool = Pool::new("test", config).unwrap();
    for client in [1, 2, 3, 1, 4] {
        send_for(&pool, "GET", "", client).await.unwrap();
        settled(&pool).await;
    }
    // Two, and the last client's connection, which was not idle when it was added.
    let server = pool.status().servers.remove(0);
    assert_eq!(server.cached_connections, 3, "{server:?}");
    send_for(&pool, "GET", "", 1).await.unwrap();
    assert_eq!(
        pool.status().servers[0].connections,
        4,
        "the connection that was used again is kept"
    );
}

#[tokio::test]
async fn servers_on_unix_sockets() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.sock");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        while let Some(head) = crate::peer::head(&mut stream).await {
            stream.write_all(&ok(&head[0])).await.unwrap();
        }
    });
    let pool = Pool::new("unix", PoolConfig::new(vec![ServerAddress::Unix(path)])).unwrap();
    assert_eq!(send(&pool, "GET", "").await.unwrap(), "GET /path?q HTTP/1.1");
}

#[tokio::test]
async fn observers_receive_each_attempt() {
    struct Recorder(Mutex<Vec<String>>);
    impl Observer for Recorder {
        fn attempt(&self, attempt: &Attempt<'_>) {
            let result = attempt.result.map_or_else(str::to_owned, |status| status.to_string());
            let how = if attempt.connected.is_some() { "new" } else { "reused" };
            self.0.lock().unwrap().push(format!("{} {how} {result}", attempt.pool));
        }
    }
    let (dead, peer) = (Peer::dead().await, Peer::http1(|_| ok("")).await);
    let pool = pool(&[&dead, &peer], |_| ());
    let recorder = Recorder(Mutex::default());
    let local = ([192, 0, 2, 9], 443).into();
    let options = SendOptions { client: local, local, once: false, observer: &recorder };
    for _ in 0..2 {
        pool.send(request("GET", ""), &options).await.unwrap().collect().await.unwrap();
        settled(&pool).await;
    }
    let attempts = recorder.0.lock().unwrap().clone();
    // Which of the two gets the first request depends on the turn.
    assert_eq!(attempts[..2], ["test reused connect", "test new 200 OK"]);
    assert_eq!(attempts.last().unwrap(), "test reused 200 OK");
}
