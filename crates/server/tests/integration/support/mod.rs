//! Shared by the tests: a running server, a recording upstream, honest and malicious clients.

pub(crate) mod cluster;
pub(crate) mod flights;
pub(crate) mod quic;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use firstflight_config::{
    AccessLogFormat, AccessLogSettings, CertificateSource, Content, KeySource, ServerConfig,
};
use firstflight_server::{Server, ServerError, ServerHandle};
use firstflight_testkit::{ReceivedRequest, Upstream, UpstreamResponse};
use firstflight_tls::{
    ConnectOptions, Connector, ConnectorConfig, Progress, Session, TlsConnection, TlsStream, Trust,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// Long enough never to matter on a loaded machine; a test that reaches it has failed.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A server's time limit that honest clients keep although the machine stalls for seconds.
pub(crate) const LENIENT_TIMEOUT: Duration = Duration::from_secs(4);

/// Waits until a condition, which is named in the panic, is true.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let waiting = async {
        while !condition() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(TEST_TIMEOUT, waiting).await.unwrap_or_else(|_| panic!("not in time: {what}"));
}

/// A running server with a JSON access log.
pub(crate) struct RunningServer {
    pub(crate) address: SocketAddr,
    pub(crate) dir: Arc<tempfile::TempDir>,
    pub(crate) handle: ServerHandle,
    /// The configuration that it was started with.
    pub(crate) config: ServerConfig,
    stop: Option<oneshot::Sender<()>>,
    running: Option<JoinHandle<()>>,
    log: PathBuf,
}

impl RunningServer {
    pub(crate) async fn files(change: impl FnOnce(&mut ServerConfig)) -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let root = dir.path().join("root");
        std::fs::create_dir(&root).unwrap();
        std::fs::write(root.join("index.html"), "hello\n").unwrap();
        std::fs::write(root.join("big"), vec![b'x'; 1 << 20]).unwrap();
        Self::start(dir, Content::files(root), change).await
    }

    pub(crate) async fn proxy(upstream: &Upstream, change: impl FnOnce(&mut ServerConfig)) -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        Self::start(dir, Content::upstream(&upstream.url()).unwrap(), change).await
    }

    pub(crate) async fn start(
        dir: Arc<tempfile::TempDir>,
        content: Content,
        change: impl FnOnce(&mut ServerConfig),
    ) -> Self {
        let log = dir.path().join("access.log");
        let mut config = ServerConfig::new("127.0.0.1:0".parse().unwrap(), content);
        config.certificate = CertificateSource::SelfSigned { names: Vec::new(), save: None };
        config.access_log =
            Some(AccessLogSettings { file: Some(log.clone()), format: AccessLogFormat::Json });
        change(&mut config);
        let server = Server::bind(config.clone()).await.unwrap();
        let (address, handle) = (server.local_addrs()[0], server.handle());
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(server.run(async {
            let _ = stopped.await;
        }));
        let (stop, running) = (Some(stop), Some(running));
        Self { address, dir, handle, config, stop, running, log }
    }

    /// Reloads the original configuration with a change.
    pub(crate) async fn reload(
        &self,
        change: impl FnOnce(&mut ServerConfig),
    ) -> Result<(), ServerError> {
        let mut config = self.config.clone();
        change(&mut config);
        self.handle.reload(config).await
    }

    /// Whether the access log contains `text` by now.
    pub(crate) fn has_logged(&self, text: &str) -> bool {
        std::fs::read_to_string(&self.log).unwrap().contains(text)
    }

    /// Starts to stop the server, without waiting.
    pub(crate) fn start_stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }

    /// Stops the server and returns the log's lines.
    pub(crate) async fn stop(mut self) -> Vec<serde_json::Value> {
        if self.stop.is_some() {
            self.start_stop();
        }
        let stopped = timeout(2 * TEST_TIMEOUT, self.running.take().unwrap()).await;
        stopped.expect("the server stops").unwrap();
        lines(&self.log)
    }

    /// A session from a full handshake that allows early data. Tickets allow none until the node has
    /// reached its store.
    pub(crate) async fn session(&self, alpn: &str) -> Session {
        self.session_of("localhost", alpn).await
    }

    /// Like [`session`](Self::session), with this server name (SNI).
    pub(crate) async fn session_of(&self, host: &str, alpn: &str) -> Session {
        let end = Instant::now() + TEST_TIMEOUT;
        loop {
            let sessions = self.sessions_of(host, alpn).await;
            if let Some(session) = sessions.into_iter().find(Session::early_data_capable) {
                return session;
            }
            assert!(Instant::now() < end, "no ticket allows early data");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The sessions from a full handshake.
    pub(crate) async fn sessions_of(&self, host: &str, alpn: &str) -> Vec<Session> {
        let mut client = Client::for_host(host, alpn, None, b"");
        let mut tcp = TcpStream::connect(self.address).await.unwrap();
        let request: &[u8] = match alpn {
            "http/1.1" => b"GET /session HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
            "ping-pong" => b"PING",
            _ => PREFACE,
        };
        client.handshake(&mut tcp).await;
        client.write(request);
        client.until_session(&mut tcp).await
    }
}

pub(crate) fn lines(log: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(log).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The number of executed requests whose target contains `word`, by the access log.
pub(crate) fn executions(lines: &[serde_json::Value], word: &str) -> usize {
    lines.iter().filter(|line| target_contains(line, word) && line["executed"] == true).count()
}

/// The only log line whose target contains `word`.
pub(crate) fn line<'a>(lines: &'a [serde_json::Value], word: &str) -> &'a serde_json::Value {
    let mut found = lines.iter().filter(|line| target_contains(line, word));
    let line = found.next().unwrap_or_else(|| panic!("no line for {word}"));
    assert!(found.next().is_none(), "two lines for {word}");
    line
}

fn target_contains(line: &serde_json::Value, word: &str) -> bool {
    line["target"].as_str().unwrap().contains(word)
}

/// A client that the test drives step by step, with its first flight as bytes.
pub(crate) struct Client {
    pub(crate) machine: TlsConnection,
    /// ClientHello, and the request as early data if there is a session.
    pub(crate) flight: Vec<u8>,
    /// The length of the ClientHello, after which the early data starts.
    pub(crate) hello_length: usize,
}

impl Client {
    pub(crate) fn prepare(alpn: &str, session: Option<&Session>, request: &[u8]) -> Self {
        Self::for_host("localhost", alpn, session, request)
    }

    /// A client that sends this server name (SNI); none for an address. Without a session that allows
    /// early data the request is not sent.
    pub(crate) fn for_host(
        host: &str,
        alpn: &str,
        session: Option<&Session>,
        request: &[u8],
    ) -> Self {
        let connector = Connector::new(ConnectorConfig {
            alpn: match alpn {
                "ping-pong" => Vec::new(),
                name => vec![name.as_bytes().to_vec()],
            },
            ..ConnectorConfig::new(Trust::Anyone)
        })
        .unwrap();
        let early_data = session.is_some_and(Session::early_data_capable);
        let offer = ConnectOptions { host: host.to_owned(), session: session.cloned(), early_data };
        let mut machine = connector.connection(&offer).unwrap();
        let progress = machine.handshake().unwrap();
        let hello_length = machine.outgoing().len();
        if early_data {
            assert_eq!(progress, Progress::Done(()), "the session allows early data");
            let mut unsent = request;
            while !unsent.is_empty() {
                match machine.write(unsent).unwrap() {
                    Progress::Done(count) => unsent = &unsent[count..],
                    other => panic!("early data is too long: {other:?}"),
                }
            }
        }
        let flight = machine.outgoing().to_vec();
        machine.sent(flight.len());
        Self { machine, flight, hello_length }
    }

    /// Sends the flight and completes the connection; returns all that was received.
    pub(crate) async fn run(mut self, address: SocketAddr) -> String {
        let mut tcp = TcpStream::connect(address).await.unwrap();
        tcp.write_all(&self.flight).await.unwrap();
        self.finish(&mut tcp).await
    }

    /// Reads to the end of the connection, completing the handshake on the way.
    pub(crate) async fn finish(&mut self, tcp: &mut TcpStream) -> String {
        String::from_utf8_lossy(&self.read_until(tcp, |_| false).await).into_owned()
    }

    /// Reads until `enough` or the end.
    pub(crate) async fn read_until(
        &mut self,
        tcp: &mut TcpStream,
        enough: impl Fn(&[u8]) -> bool,
    ) -> Vec<u8> {
        let mut response = Vec::new();
        let mut buffer = [0; 4096];
        while !enough(&response) {
            match self.machine.read(&mut buffer) {
                Ok(Progress::Done(count)) => response.extend_from_slice(&buffer[..count]),
                Ok(Progress::NeedsInput) => self.exchange(tcp).await,
                Ok(Progress::Closed) | Err(_) => break,
            }
        }
        self.send(tcp).await;
        response
    }

    /// Completes the handshake.
    pub(crate) async fn handshake(&mut self, tcp: &mut TcpStream) {
        tcp.write_all(&self.flight).await.unwrap();
        while !self.machine.is_complete() {
            match self.machine.handshake().unwrap() {
                Progress::Done(()) => {}
                Progress::NeedsInput => self.exchange(tcp).await,
                Progress::Closed => panic!("closed in the handshake"),
            }
        }
        self.send(tcp).await;
    }

    pub(crate) fn write(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            match self.machine.write(data).unwrap() {
                Progress::Done(count) => data = &data[count..],
                other => panic!("{other:?}"),
            }
        }
    }

    pub(crate) async fn send(&mut self, tcp: &mut TcpStream) {
        let outgoing = self.machine.outgoing().to_vec();
        self.machine.sent(outgoing.len());
        // The server may have closed already.
        let _ = tcp.write_all(&outgoing).await;
    }

    async fn until_session(&mut self, tcp: &mut TcpStream) -> Vec<Session> {
        let mut buffer = [0; 4096];
        loop {
            let sessions = self.machine.take_sessions();
            if !sessions.is_empty() {
                return sessions;
            }
            match self.machine.read(&mut buffer) {
                Ok(Progress::Done(_)) => {}
                Ok(Progress::NeedsInput) => self.exchange(tcp).await,
                other => panic!("no session: {other:?}"),
            }
        }
    }

    pub(crate) async fn exchange(&mut self, tcp: &mut TcpStream) {
        self.send(tcp).await;
        let mut buffer = [0; 16 * 1024];
        let read = tokio::time::timeout(TEST_TIMEOUT, tcp.read(&mut buffer)).await;
        match read.expect("the server responds") {
            Ok(count) if count > 0 => self.machine.feed(&buffer[..count]),
            _ => self.machine.feed_eof(),
        }
    }
}

/// Sends a request after a full handshake. Returns all bytes up to the connection's end.
pub(crate) async fn fetch(address: SocketAddr, request: &str) -> String {
    let mut client = Client::prepare("http/1.1", None, b"");
    let mut tcp = TcpStream::connect(address).await.unwrap();
    client.handshake(&mut tcp).await;
    client.write(request.as_bytes());
    client.finish(&mut tcp).await
}

/// Sends a flight again byte for byte, and waits until the server starts to respond, so that it has
/// certainly processed the flight.
pub(crate) async fn replay(address: SocketAddr, flight: &[u8]) -> TcpStream {
    let mut tcp = TcpStream::connect(address).await.unwrap();
    tcp.write_all(flight).await.unwrap();
    let mut byte = [0; 1];
    let read = tokio::time::timeout(TEST_TIMEOUT, tcp.read(&mut byte)).await;
    let _ = read.expect("the server responds to a replayed ClientHello");
    tcp
}

/// A connection with TLS.
pub(crate) async fn connect_tls(address: SocketAddr, alpn: &str) -> TlsStream<TcpStream> {
    let config = ConnectorConfig {
        alpn: vec![alpn.as_bytes().to_vec()],
        ..ConnectorConfig::new(Trust::Anyone)
    };
    let offer = ConnectOptions { host: "localhost".to_owned(), ..ConnectOptions::default() };
    let tcp = TcpStream::connect(address).await.unwrap();
    TlsStream::connect(&Connector::new(config).unwrap(), tcp, &offer).await.unwrap()
}

pub(crate) fn get(target: &str) -> Vec<u8> {
    format!("GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").into_bytes()
}

/// An upstream that records its requests. Targets with `refuse-early` get 425 while they are marked
/// early; targets with `slow` take half a second.
pub(crate) fn start_upstream() -> Upstream {
    Upstream::responding(|ReceivedRequest { target, headers, .. }| {
        let is_refused = target.contains("refuse-early") && headers.contains_key("early-data");
        UpstreamResponse {
            status: if is_refused { 425 } else { 200 },
            delay: Duration::from_millis(if target.contains("slow") { 500 } else { 0 }),
            ..UpstreamResponse::default()
        }
    })
}

/// Raw HTTP/2, so that a test decides which bytes are early: the preface and empty SETTINGS.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// HEADERS with END_STREAM for a request without a body.
pub(crate) fn http2_request(stream: u8, method: &str, path: &str) -> Vec<u8> {
    http2_request_with(stream, method, path, &[])
}

/// Like [`http2_request`], with further fields.
pub(crate) fn http2_request_with(
    stream: u8,
    method: &str,
    path: &str,
    fields: &[(&str, &str)],
) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    // Literals without indexing (RFC 7541 section 6.2.2), first of names in the static table.
    let mut block = vec![0x87];
    for (index, value) in [(2, method), (4, path), (1, "h")] {
        block.push(index);
        block.extend(text(value));
    }
    for (name, value) in fields {
        block.push(0);
        block.extend([text(name), text(value)].concat());
    }
    let mut frame = vec![0, 0, u8::try_from(block.len()).unwrap(), 1, 5, 0, 0, 0, stream];
    frame.extend(block);
    frame
}

/// Configures ticket keys of the process. With the default, punctured keys, a copy of a flight
/// fails before it reaches the strike register.
pub(crate) fn process_keys(config: &mut ServerConfig) {
    config.tickets.keys = KeySource::Process;
}

/// The settings of nodes that use `store`. A claim may take a second, so that a slow machine fails
/// no test.
pub(crate) fn store_config(
    store: &firstflight_testkit::StoreProcess,
) -> firstflight_store::StoreConfig {
    let url = firstflight_store::StoreUrl::parse(&store.url(), 6379).unwrap();
    let topology = firstflight_store::Topology::Single(url.address);
    let mut config = firstflight_store::StoreConfig::new(topology);
    config.budget = Duration::from_secs(1);
    config
}
