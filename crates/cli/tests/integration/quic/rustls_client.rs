//! quinn's client on rustls, as anybody would build one from crates.io.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::slice;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use http::{Method, Request};
use quinn::{Connection, Endpoint, EndpointConfig, TokenStore};
use quinn_proto::crypto::rustls::QuicClientConfig;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{CipherSuite, RootCertStore};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::test_server::{EARLY, FULL, RESUMED, RETRY, Stage};
use crate::support::program::{PAGE, TEST_TIMEOUT};

/// A client that keeps sessions, the server's transport parameters and address tokens.
pub(crate) struct Client {
    runtime: Runtime,
    config: quinn::ClientConfig,
}

/// One of its connections.
pub(crate) struct Link<'a> {
    client: &'a Client,
    endpoint: Endpoint,
    connection: Connection,
    http: Http,
    port: u16,
    /// Whether its early data was accepted; `None` where none was offered.
    pub(crate) early: Option<bool>,
}

type Http = h3::client::SendRequest<h3_quinn::OpenStreams, Bytes>;

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

/// A request: method, target, body.
#[derive(Clone, Debug)]
pub(crate) struct Ask(pub(crate) Method, pub(crate) String, pub(crate) Bytes);

/// A request without a body.
pub(crate) fn get(target: &str) -> Ask {
    Ask(Method::GET, target.to_owned(), Bytes::new())
}

impl Client {
    /// That trusts this certificate.
    pub(crate) fn new(cert: &Path) -> Self {
        Self::with(cert, |_| true)
    }

    /// The same, without address tokens.
    pub(crate) fn without_tokens(cert: &Path) -> Self {
        let mut client = Self::new(cert);
        client.config.token_store(Arc::new(NoTokens));
        client
    }

    /// The same, with only such cipher suites.
    pub(crate) fn with(cert: &Path, suites: impl Fn(CipherSuite) -> bool) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(cert).unwrap()).unwrap();
        let mut provider = ring::default_provider();
        // Initial packets are AES-128-GCM's, whatever is negotiated (RFC 9001 section 5.2).
        let initial = provider
            .cipher_suites
            .iter()
            .find(|suite| suite.suite() == CipherSuite::TLS13_AES_128_GCM_SHA256)
            .and_then(|suite| suite.tls13()?.quic_suite())
            .unwrap();
        provider.cipher_suites.retain(|suite| suites(suite.suite()));
        let mut tls = rustls::ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"h3".to_vec()];
        tls.enable_early_data = true;
        let tls = QuicClientConfig::with_initial(Arc::new(tls), initial).unwrap();
        // Of one thread: what is written before the first wait leaves with the ClientHello.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { runtime, config: quinn::ClientConfig::new(Arc::new(tls)) }
    }

    /// A connection that waits for its handshake.
    pub(crate) fn connect(&self, port: u16) -> Link<'_> {
        self.wait(async {
            let (endpoint, connecting) = self.begin(port);
            let connection = connecting.await.unwrap();
            let http = begin_http(&connection).await.0;
            Link { client: self, endpoint, connection, http, port, early: None }
        })
    }

    /// A connection whose requests leave as early data, and again after the handshake if it was
    /// refused.
    ///
    /// # Panics
    /// If there is nothing to resume with early data.
    pub(crate) fn connect_early(&self, port: u16, asks: &[Ask]) -> (Link<'_>, Vec<Answer>) {
        self.wait(async {
            let (endpoint, connecting) = self.begin(port);
            let Ok((connection, accepted)) = connecting.into_0rtt() else {
                panic!("no session with early data");
            };
            let (mut http, driver) = begin_http(&connection).await;
            let mut responses = ask_all(&mut http, port, asks).await;
            let taken = accepted.await;
            if !taken {
                // Its streams are gone. Without its driver it cannot close what goes on.
                driver.abort();
                let _ = driver.await;
                http = begin_http(&connection).await.0;
                for (response, ask) in responses.iter_mut().zip(asks) {
                    // One whose stream was opened late was no early data.
                    if response.is_err() {
                        *response = ask_all(&mut http, port, slice::from_ref(ask)).await.remove(0);
                    }
                }
            }
            let link = Link { client: self, endpoint, connection, http, port, early: Some(taken) };
            (link, responses.into_iter().map(Result::unwrap).collect())
        })
    }

    fn begin(&self, port: u16) -> (Endpoint, quinn::Connecting) {
        let endpoint = endpoint(None);
        let server: SocketAddr = (Ipv4Addr::LOCALHOST, port).into();
        let connecting = endpoint.connect_with(self.config.clone(), server, "localhost").unwrap();
        (endpoint, connecting)
    }

    fn wait<T>(&self, what: impl Future<Output = T>) -> T {
        self.runtime.block_on(async { timeout(TEST_TIMEOUT, what).await.expect("it hangs") })
    }
}

/// On a port of the loopback.
pub(crate) fn endpoint(server: Option<quinn::ServerConfig>) -> Endpoint {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let runtime = Arc::new(quinn::TokioRuntime);
    Endpoint::new(EndpointConfig::default(), server, socket, runtime).unwrap()
}

struct NoTokens;

impl TokenStore for NoTokens {
    fn insert(&self, _: &str, _: Bytes) {}

    fn take(&self, _: &str) -> Option<Bytes> {
        None
    }
}

impl Link<'_> {
    /// One request and its response.
    pub(crate) fn ask(&mut self, ask: Ask) -> Answer {
        let responses = ask_all(&mut self.http, self.port, slice::from_ref(&ask));
        self.client.wait(responses).remove(0).unwrap()
    }

    /// New keys from here on (RFC 9001 section 6).
    pub(crate) fn update_keys(&self) {
        self.connection.force_key_update();
    }

    /// Another port from here on (RFC 9000 section 9), unannounced as behind a NAT; which.
    pub(crate) fn move_on(&self) -> u16 {
        let _entered = self.client.runtime.enter();
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = socket.local_addr().unwrap().port();
        self.endpoint.rebind(socket).unwrap();
        port
    }

    /// The port that it sends from.
    pub(crate) fn from(&self) -> u16 {
        self.endpoint.local_addr().unwrap().port()
    }

    /// Paths that were validated, by the frames that did it.
    pub(crate) fn path_responses(&self) -> u64 {
        self.connection.stats().frame_tx.path_response
    }

    /// Says good-bye and waits until it has left.
    pub(crate) fn close(self) {
        self.connection.close(0x100_u16.into(), b"");
        self.client.wait(self.endpoint.wait_idle());
    }
}

async fn begin_http(connection: &Connection) -> (Http, JoinHandle<()>) {
    let connection = h3_quinn::Connection::new(connection.clone());
    let (mut driver, http) = h3::client::new(connection).await.unwrap();
    let driver = tokio::spawn(async move {
        driver.wait_idle().await;
    });
    (http, driver)
}

/// All at once.
async fn ask_all(http: &mut Http, port: u16, asks: &[Ask]) -> Vec<Result<Answer, String>> {
    let asked = asks.iter().map(|ask| tokio::spawn(response(http.clone(), port, ask.clone())));
    let asked: Vec<_> = asked.collect();
    let mut responses = Vec::new();
    for one in asked {
        responses.push(one.await.unwrap());
    }
    responses
}

async fn response(mut http: Http, port: u16, ask: Ask) -> Result<Answer, String> {
    let Ask(method, target, body) = ask;
    let request =
        Request::builder().method(method).uri(format!("https://localhost:{port}{target}"));
    let request = request.header("content-length", body.len()).body(()).unwrap();
    let stop = |error: h3::error::StreamError| error.to_string();
    let mut stream = http.send_request(request).await.map_err(stop)?;
    if !body.is_empty() {
        stream.send_data(body).await.map_err(stop)?;
    }
    stream.finish().await.map_err(stop)?;
    let head = stream.recv_response().await.map_err(stop)?;
    let mut body = Vec::new();
    while let Some(mut data) = stream.recv_data().await.map_err(stop)? {
        body.extend_from_slice(&data.copy_to_bytes(data.remaining()));
    }
    let status = head.status().as_u16();
    Ok(Answer { status, body: String::from_utf8_lossy(&body).into_owned() })
}

#[test]
fn rustls_full_resumed_and_early() {
    let stage = Stage::new(&[]);
    let client = Client::new(&stage.cert);
    for _ in 0..2 {
        let mut link = client.connect(stage.port());
        let response = link.ask(get("/index.html"));
        assert_eq!((response.status, &*response.body), (200, PAGE));
        link.close();
    }
    stage.answer_first(2);
    let (link, responses) = client.connect_early(stage.port(), &[get("/index.html")]);
    assert_eq!((link.early, responses[0].status, &*responses[0].body), (Some(true), 200, PAGE));
    link.close();
    assert_eq!(stage.seen(3), [FULL, RESUMED, EARLY]);
}

#[test]
fn rustls_refused_by_a_server_without_its_keys() {
    let mut stage = Stage::new(&[]);
    let client = Client::new(&stage.cert);
    client.connect(stage.port()).ask(get("/index.html"));
    stage.restart("", &[]);
    let (link, responses) = client.connect_early(stage.port(), &[get("/index.html")]);
    assert_eq!((link.early, responses[0].status), (Some(false), 200));
    link.close();
    assert_eq!(stage.seen(2), [FULL, FULL]);
}

#[test]
fn rfc9001_6_rustls_updates_keys() {
    let stage = Stage::new(&[]);
    let client = Client::new(&stage.cert);
    let mut link = client.connect(stage.port());
    for _ in 0..3 {
        assert_eq!(link.ask(get("/index.html")).status, 200);
        link.update_keys();
    }
    assert_eq!(link.ask(get("/index.html")).status, 200);
    link.close();
    assert_eq!(stage.seen(4), [FULL; 4]);
}

#[test]
fn rfc9000_9_rustls_changes_its_address() {
    let stage = Stage::new(&[]);
    let client = Client::new(&stage.cert);
    let mut link = client.connect(stage.port());
    let before = link.from();
    assert_eq!(link.ask(get("/index.html")).status, 200);
    assert_ne!(link.move_on(), before);
    assert_eq!(link.ask(get("/index.html")).status, 200);
    assert!(link.path_responses() > 0, "the server asks whether it is there");
    link.close();
    assert_eq!(stage.seen(2), [FULL; 2]);
}

#[test]
fn rustls_with_chacha20() {
    let stage = Stage::new(&[]);
    let chacha = CipherSuite::TLS13_CHACHA20_POLY1305_SHA256;
    let client = Client::with(&stage.cert, |suite| suite == chacha);
    client.connect(stage.port()).ask(get("/index.html"));
    let (link, responses) = client.connect_early(stage.port(), &[get("/index.html")]);
    assert_eq!((link.early, responses[0].status), (Some(true), 200));
    link.close();
    assert!(stage.server.lines(2).iter().all(|l| l["cipher"] == "TLS_CHACHA20_POLY1305_SHA256"));
}

#[test]
fn rfc9000_8_1_rustls_shows_its_address_or_a_token() {
    let stage = Stage::configured(RETRY, &[]);
    let client = Client::new(&stage.cert);
    let mut link = client.connect(stage.port());
    assert_eq!(link.ask(get("/index.html")).status, 200);
    link.close();
    assert_eq!(stage.relay.retries(), 1);
    stage.answer_first(1);
    let (link, responses) = client.connect_early(stage.port(), &[get("/index.html")]);
    assert_eq!((link.early, responses[0].status), (Some(true), 200));
    link.close();
    assert_eq!((stage.relay.retries(), stage.seen(2)), (1, vec![FULL.into(), EARLY.into()]));
}

/// A client that has lost its tokens, and not its session.
#[test]
fn rustls_sends_early_data_again_after_a_retry() {
    let stage = Stage::configured(RETRY, &[]);
    let client = Client::without_tokens(&stage.cert);
    client.connect(stage.port()).ask(get("/index.html"));
    stage.answer_first(1);
    let (link, responses) = client.connect_early(stage.port(), &[get("/index.html")]);
    assert_eq!((link.early, responses[0].status), (Some(true), 200));
    link.close();
    assert_eq!((stage.relay.retries(), stage.seen(2)), (2, vec![FULL.into(), EARLY.into()]));
}
