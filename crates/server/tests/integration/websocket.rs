//! WebSockets through the server, with an independent implementation as client and upstream.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use firstflight_config::{Action, Content, Route, ServerConfig};
use futures_util::{SinkExt, StreamExt};
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::ext::Protocol;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::server::{
    ErrorResponse, Request as UpgradeRequest, Response,
};
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::support::{Client, RunningServer, TEST_TIMEOUT, connect_tls, line};

/// An echo server that records its requests.
#[derive(Clone, Default)]
struct Echo {
    recorded: Arc<Mutex<Vec<HashMap<String, String>>>>,
}

impl Echo {
    async fn start() -> (Self, String) {
        let echo = Self::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serving = echo.clone();
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                tokio::spawn(serving.clone().serve(tcp));
            }
        });
        (echo, url)
    }

    // The library defines the error type.
    #[allow(clippy::result_large_err)]
    async fn serve(self, tcp: TcpStream) {
        let recorded = self.recorded;
        let remember = |requested: &UpgradeRequest, response: Response| {
            if requested.uri().path() == "/forbidden" {
                let mut refusal = ErrorResponse::new(None);
                *refusal.status_mut() = StatusCode::FORBIDDEN;
                return Err(refusal);
            }
            let field = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
                (name.to_string(), value.to_str().unwrap().to_owned())
            };
            recorded.lock().unwrap().push(requested.headers().iter().map(field).collect());
            Ok(response)
        };
        let Ok(mut socket) = tokio_tungstenite::accept_hdr_async(tcp, remember).await else {
            return;
        };
        while let Some(Ok(message)) = socket.next().await {
            if (message.is_text() || message.is_binary()) && socket.send(message).await.is_err() {
                return;
            }
        }
    }
}

async fn proxy(url: &str, change: impl FnOnce(&mut ServerConfig)) -> RunningServer {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    RunningServer::start(dir, Content::upstream(url).unwrap(), change).await
}

type Io = Box<dyn Stream>;

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// RFC 6455, with the WebSocket library's client.
async fn over_http1(address: SocketAddr, path: &str) -> Result<WebSocketStream<Io>, Error> {
    let io: Io = Box::new(connect_tls(address, "http/1.1").await);
    let url = format!("ws://localhost{path}");
    tokio_tungstenite::client_async(url, io).await.map(|(socket, _)| socket)
}

/// RFC 8441, over hyper's HTTP/2 client.
async fn over_http2(address: SocketAddr, path: &str) -> Result<WebSocketStream<Io>, StatusCode> {
    let io = TokioIo::new(connect_tls(address, "h2").await);
    let (mut sender, mut connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    let allowed = Arc::<AtomicBool>::default();
    let setting = allowed.clone();
    tokio::spawn(async move {
        while timeout(Duration::from_millis(1), &mut connection).await.is_err() {
            setting.store(connection.is_extended_connect_protocol_enabled(), Ordering::Relaxed);
        }
    });
    let mut request = Request::connect(format!("https://localhost{path}"))
        .header("sec-websocket-version", "13")
        .body(Empty::<Bytes>::new())
        .unwrap();
    request.extensions_mut().insert(Protocol::from_static("websocket"));
    // The server's SETTINGS must have arrived before this request is allowed.
    timeout(TEST_TIMEOUT, async {
        while !allowed.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .expect("the server allows it");
    let response = sender.send_request(request).await.unwrap();
    if response.status() != StatusCode::OK {
        return Err(response.status());
    }
    let io: Io = Box::new(TokioIo::new(hyper::upgrade::on(response).await.unwrap()));
    Ok(WebSocketStream::from_raw_socket(io, Role::Client, None).await)
}

async fn connect_both(address: SocketAddr, path: &str) -> [WebSocketStream<Io>; 2] {
    [over_http1(address, path).await.unwrap(), over_http2(address, path).await.unwrap()]
}

async fn send(socket: &mut WebSocketStream<Io>, message: Message) {
    timeout(TEST_TIMEOUT, socket.send(message)).await.unwrap().unwrap();
}

async fn receive(socket: &mut WebSocketStream<Io>) -> Option<Result<Message, Error>> {
    timeout(TEST_TIMEOUT, socket.next()).await.expect("a message or the end")
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc6455_rfc8441_messages_and_the_close_are_echoed() {
    let (echo, url) = Echo::start().await;
    let server = proxy(&url, |_| {}).await;
    for (index, mut socket) in connect_both(server.address, "/echo").await.into_iter().enumerate() {
        for text in ["one", "two"] {
            send(&mut socket, Message::text(text)).await;
            assert_eq!(receive(&mut socket).await.unwrap().unwrap(), Message::text(text));
        }
        // More than all buffers on the path hold.
        let large = Message::binary(vec![7; 4 << 20]);
        let (mut sink, mut stream) = socket.split();
        let sending = tokio::spawn(async move {
            sink.send(large).await.unwrap();
            sink
        });
        let received = timeout(TEST_TIMEOUT, stream.next()).await.unwrap().unwrap().unwrap();
        assert_eq!(received.len(), 4 << 20);
        let mut socket = stream.reunite(sending.await.unwrap()).unwrap();
        timeout(TEST_TIMEOUT, socket.close(None)).await.unwrap().unwrap();
        assert!(matches!(receive(&mut socket).await, Some(Ok(Message::Close(_)))));
        assert!(receive(&mut socket).await.is_none(), "the connection ends, {index}");
    }
    let recorded = echo.recorded.lock().unwrap().clone();
    for fields in &recorded {
        assert_eq!(fields["host"], "localhost");
        assert_eq!((&*fields["x-forwarded-for"], &*fields["upgrade"]), ("127.0.0.1", "websocket"));
        assert!(!fields.contains_key("early-data"));
    }
    let log = server.stop().await;
    let facts = |line: &serde_json::Value| {
        (
            line["status"].as_u64(),
            line["complete"].as_bool(),
            line["bytes"].as_u64().unwrap() > 4 << 20,
        )
    };
    let facts: Vec<_> = log.iter().map(facts).collect();
    assert_eq!(facts, [(Some(101), Some(true), true), (Some(200), Some(true), true)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstreams_refusal_is_forwarded() {
    let (_, url) = Echo::start().await;
    let server = proxy(&url, |_| {}).await;
    let refusal = over_http1(server.address, "/forbidden").await.err().unwrap();
    assert!(matches!(&refusal, Error::Http(response) if response.status() == 403), "{refusal:?}");
    assert_eq!(over_http2(server.address, "/forbidden").await.err(), Some(StatusCode::FORBIDDEN));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_not_a_websocket_opens_no_tunnel() {
    let upstream = crate::support::start_upstream();
    let server = RunningServer::proxy(&upstream, |_| {}).await;
    // A normal response to a CONNECT would look like a tunnel.
    assert_eq!(over_http2(server.address, "/plain").await.err(), Some(StatusCode::BAD_GATEWAY));
    let request =
        "GET /plain HTTP/1.1\r\nHost: h\r\nConnection: upgrade, close\r\nUpgrade: h2c\r\n\r\n";
    assert!(crate::support::fetch(server.address, request).await.starts_with("HTTP/1.1 200"));
    let headers = &upstream.recorded("/plain")[1].headers;
    assert!(!headers.contains_key("upgrade"), "{headers:?}");
    // A request that no upstream receives opens no tunnel either.
    let server = RunningServer::files(|config| {
        let Content::Sites(sites) = &mut config.content else { panic!("files are a site") };
        sites.sites[0].routes.push(Route::new("/ok", Action::Status(StatusCode::OK)));
    })
    .await;
    assert_eq!(over_http2(server.address, "/ok").await.err(), Some(StatusCode::NOT_IMPLEMENTED));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_early_websocket_request_waits_for_the_handshake() {
    let (echo, url) = Echo::start().await;
    let server = proxy(&url, |_| {}).await;
    let session = server.session("http/1.1").await;
    let request =
        b"GET /early HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
                Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    let mut client = Client::prepare("http/1.1", Some(&session), request);
    // A client that never completes its handshake gets no tunnel.
    let copy = crate::support::replay(server.address, &client.flight).await;
    drop(copy);
    assert!(echo.recorded.lock().unwrap().iter().all(|fields| fields["host"] != "h"));
    let session = server.session("http/1.1").await;
    client = Client::prepare("http/1.1", Some(&session), request);
    let mut tcp = TcpStream::connect(server.address).await.unwrap();
    tcp.write_all(&client.flight).await.unwrap();
    let response = client.read_until(&mut tcp, |bytes| bytes.ends_with(b"\r\n\r\n")).await;
    assert!(response.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&response));
    // A text message of one byte, masked with zeros.
    client.write(&[0x81, 0x81, 0, 0, 0, 0, b'x']);
    client.send(&mut tcp).await;
    let received = client.read_until(&mut tcp, |bytes| bytes.len() >= 3).await;
    assert_eq!(received, [0x81, 1, b'x']);
    drop(tcp);
    let log = server.stop().await;
    let ran: Vec<_> = log.iter().filter(|line| line["executed"] == true).collect();
    let tunnel = ran.iter().find(|line| line["target"] == "/early").unwrap();
    assert_eq!((&tunnel["early"], &tunnel["held"]), (&true.into(), &"policy".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_and_a_stop_end_a_tunnel() {
    let (_, url) = Echo::start().await;
    let silent = proxy(&url, |config| {
        let Content::Sites(sites) = &mut config.content else { unreachable!() };
        let pool = sites.upstreams.values_mut().next().unwrap();
        pool.tunnel_timeout = Duration::from_millis(200);
    })
    .await;
    for mut socket in connect_both(silent.address, "/silent").await {
        assert!(!matches!(receive(&mut socket).await, Some(Ok(_))));
    }
    let log = silent.stop().await;
    assert!(log.iter().all(|line| line["complete"] == false), "{log:#?}");

    let drain = Duration::from_millis(500);
    let mut stopped = proxy(&url, |config| config.limits.drain_timeout = drain).await;
    let mut sockets = connect_both(stopped.address, "/stopped").await;
    stopped.start_stop();
    for socket in &mut sockets {
        // The tunnel continues while other requests finish.
        send(socket, Message::text("still")).await;
        assert_eq!(receive(socket).await.unwrap().unwrap(), Message::text("still"));
    }
    for socket in &mut sockets {
        assert!(!matches!(receive(socket).await, Some(Ok(_))));
    }
    let log = stopped.stop().await;
    assert_eq!(log.len(), 2);
    assert_eq!(line(&log[..1], "/stopped")["complete"], false);
}
