//! quinn's client with rustls, both from crates.io.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

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

use super::setup::{EARLY, FULL, RESUMED, RETRY, Setup};
use crate::support::program::{PAGE, TEST_TIMEOUT};

/// A client that keeps sessions, the server's transport parameters and address tokens.
pub(crate) struct Client {
    runtime: Runtime,
    config: quinn::ClientConfig,
}

/// A connection of the client.
pub(crate) struct Link<'a> {
    client: &'a Client,
    endpoint: Endpoint,
    connection: Connection,
    http: Http,
    port: u16,
    /// Whether its early data was accepted; `None` if none was offered.
    pub(crate) early: Option<bool>,
}

type Http = h3::client::SendRequest<h3_quinn::OpenStreams, Bytes>;

/// A response.
#[derive(Debug)]
pub(crate) struct TestResponse {
    pub(crate) status: u16,
    pub(crate) body: String,
}

/// A request: method, target, body.
#[derive(Clone, Debug)]
pub(crate) struct TestRequest(pub(crate) Method, pub(crate) String, pub(crate) Bytes);

/// A request without a body.
pub(crate) fn get(target: &str) -> TestRequest {
    TestRequest(Method::GET, target.to_owned(), Bytes::new())
}

impl Client {
    /// Creates a client that trusts this certificate.
    pub(crate) fn new(cert: &Path) -> Self {
        Self::with(cert, |_| true)
    }

    /// Like [`Self::new`], without address tokens.
    pub(crate) fn without_tokens(cert: &Path) -> Self {
        let mut client = Self::new(cert);
        client.config.token_store(Arc::new(NoTokens));
        client
    }

    /// Like [`Self::new`], with these cipher suites only.
    pub(crate) fn with(cert: &Path, suites: impl Fn(CipherSuite) -> bool) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(cert).unwrap()).unwrap();
        let mut provider = ring::default_provider();
        // Initial packets always use AES-128-GCM (RFC 9001 section 5.2).
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
        // One thread: data written before the first wait is sent with the ClientHello.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { runtime, config: quinn::ClientConfig::new(Arc::new(tls)) }
    }

    /// Connects and waits for the handshake.
    pub(crate) fn connect(&self, port: u16) -> Link<'_> {
        self.wait(async {
            let (endpoint, connecting) = self.start(port);
            let connection = connecting.await.unwrap();
            let http = start_http(&connection).await.0;
            Link { client: self, endpoint, connection, http, port, early: None }
        })
    }

    /// Connects and sends requests as early data, and again after the handshake if it was refused.
    ///
    /// # Panics
    /// If there is no session with early data.
    pub(crate) fn connect_early(
        &self,
        port: u16,
        requests: &[TestRequest],
    ) -> (Link<'_>, Vec<TestResponse>) {
        self.wait(async {
            let (endpoint, connecting) = self.start(port);
            let Ok((connection, accepted)) = connecting.into_0rtt() else {
                panic!("no session with early data");
            };
            let (mut http, driver) = start_http(&connection).await;
            let mut responses = request_all(&mut http, port, requests).await;
            let early_accepted = accepted.await;
            if !early_accepted {
                // The streams of early data are gone. Their HTTP/3 driver must not close the
                // connection, which continues.
                driver.abort();
                let _ = driver.await;
                http = start_http(&connection).await.0;
                for (response, request) in responses.iter_mut().zip(requests) {
                    // A request whose stream was opened late was not early data.
                    if response.is_err() {
                        *response =
                            request_all(&mut http, port, slice::from_ref(request)).await.remove(0);
                    }
                }
            }
            let link = Link {
                client: self,
                endpoint,
                connection,
                http,
                port,
                early: Some(early_accepted),
            };
            (link, responses.into_iter().map(Result::unwrap).collect())
        })
    }

    fn start(&self, port: u16) -> (Endpoint, quinn::Connecting) {
        let endpoint = endpoint(None);
        let server: SocketAddr = (Ipv4Addr::LOCALHOST, port).into();
        let connecting = endpoint.connect_with(self.config.clone(), server, "localhost").unwrap();
        (endpoint, connecting)
    }

    fn wait<T>(&self, what: impl Future<Output = T>) -> T {
        self.runtime
            .block_on(async { timeout(TEST_TIMEOUT, what).await.expect("finished in time") })
    }
}

/// An endpoint on a port of the loopback interface.
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
    /// Sends a request and returns its response.
    pub(crate) fn request(&mut self, request: TestRequest) -> TestResponse {
        let responses = request_all(&mut self.http, self.port, slice::from_ref(&request));
        self.client.wait(responses).remove(0).unwrap()
    }

    /// Updates the keys (RFC 9001 section 6).
    pub(crate) fn update_keys(&self) {
        self.connection.force_key_update();
    }

    /// Moves to another port without notice, like a NAT (RFC 9000 section 9), and returns it.
    pub(crate) fn move_on(&self) -> u16 {
        let _entered = self.client.runtime.enter();
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = socket.local_addr().unwrap().port();
        self.endpoint.rebind(socket).unwrap();
        port
    }

    /// The port from which it sends.
    pub(crate) fn from(&self) -> u16 {
        self.endpoint.local_addr().unwrap().port()
    }

    /// The number of validated paths, counted by PATH_RESPONSE frames.
    pub(crate) fn path_responses(&self) -> u64 {
        self.connection.stats().frame_tx.path_response
    }

    /// Waits until the server has the client's Finished and sends a ticket, and closes the
    /// connection.
    pub(crate) fn close_with_ticket(self) {
        self.client.wait(async {
            while self.connection.stats().frame_rx.handshake_done == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        self.close();
    }

    /// Closes the connection and waits until the close has been sent.
    pub(crate) fn close(self) {
        self.connection.close(0x100_u16.into(), b"");
        self.client.wait(self.endpoint.wait_idle());
    }
}

async fn start_http(connection: &Connection) -> (Http, JoinHandle<()>) {
    let connection = h3_quinn::Connection::new(connection.clone());
    let (mut driver, http) = h3::client::new(connection).await.unwrap();
    let driver = tokio::spawn(async move {
        driver.wait_idle().await;
    });
    (http, driver)
}

/// Sends all requests at once.
async fn request_all(
    http: &mut Http,
    port: u16,
    requests: &[TestRequest],
) -> Vec<Result<TestResponse, String>> {
    let tasks =
        requests.iter().map(|request| tokio::spawn(response(http.clone(), port, request.clone())));
    let tasks: Vec<_> = tasks.collect();
    let mut responses = Vec::new();
    for task in tasks {
        responses.push(task.await.unwrap());
    }
    responses
}

async fn response(mut http: Http, port: u16, request: TestRequest) -> Result<TestResponse, String> {
    let TestRequest(method, target, body) = request;
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
    Ok(TestResponse { status, body: String::from_utf8_lossy(&body).into_owned() })
}

#[test]
fn rustls_full_resumed_and_early() {
    let setup = Setup::new(&[]);
    let client = Client::new(&setup.cert);
    for _ in 0..2 {
        let mut link = client.connect(setup.port());
        let response = link.request(get("/index.html"));
        assert_eq!((response.status, &*response.body), (200, PAGE));
        link.close();
    }
    setup.delay_finished(2);
    let (link, responses) = client.connect_early(setup.port(), &[get("/index.html")]);
    assert_eq!((link.early, responses[0].status, &*responses[0].body), (Some(true), 200, PAGE));
    link.close();
    assert_eq!(setup.logged(3), [FULL, RESUMED, EARLY]);
}

#[test]
fn rustls_refused_by_a_server_without_its_keys() {
    let mut setup = Setup::new(&[]);
    let client = Client::new(&setup.cert);
    let mut link = client.connect(setup.port());
    link.request(get("/index.html"));
    // A server that stops waits until its responses are acknowledged.
    link.close();
    setup.restart("", &[]);
    let (link, responses) = client.connect_early(setup.port(), &[get("/index.html")]);
    assert_eq!((link.early, responses[0].status), (Some(false), 200));
    link.close();
    assert_eq!(setup.logged(2), [FULL, FULL]);
}

#[test]
fn rfc9001_6_rustls_updates_keys() {
    let setup = Setup::new(&[]);
    let client = Client::new(&setup.cert);
    let mut link = client.connect(setup.port());
    for _ in 0..3 {
        assert_eq!(link.request(get("/index.html")).status, 200);
        link.update_keys();
    }
    assert_eq!(link.request(get("/index.html")).status, 200);
    link.close();
    assert_eq!(setup.logged(4), [FULL; 4]);
}

#[test]
fn rfc9000_9_rustls_changes_its_address() {
    let setup = Setup::new(&[]);
    let client = Client::new(&setup.cert);
    let mut link = client.connect(setup.port());
    let before = link.from();
    assert_eq!(link.request(get("/index.html")).status, 200);
    assert_ne!(link.move_on(), before);
    assert_eq!(link.request(get("/index.html")).status, 200);
    assert!(link.path_responses() > 0, "the server validates the path");
    link.close();
    assert_eq!(setup.logged(2), [FULL; 2]);
}

#[test]
fn rustls_with_chacha20() {
    let setup = Setup::new(&[]);
    let chacha = CipherSuite::TLS13_CHACHA20_POLY1305_SHA256;
    let client = Client::with(&setup.cert, |suite| suite == chacha);
    client.connect(setup.port()).request(get("/index.html"));
    let (link, responses) = client.connect_early(setup.port(), &[get("/index.html")]);
    assert_eq!((link.early, responses[0].status), (Some(true), 200));
    link.close();
    assert!(setup.server.lines(2).iter().all(|l| l["cipher"] == "TLS_CHACHA20_POLY1305_SHA256"));
}

#[test]
fn rfc9000_8_1_rustls_validates_its_address_by_retry_or_token() {
    let setup = Setup::configured(RETRY, &[]);
    let client = Client::new(&setup.cert);
    let mut link = client.connect(setup.port());
    assert_eq!(link.request(get("/index.html")).status, 200);
    link.close();
    assert_eq!(setup.relay.retries(), 1);
    setup.delay_finished(1);
    let (link, responses) = client.connect_early(setup.port(), &[get("/index.html")]);
    assert_eq!((link.early, responses[0].status), (Some(true), 200));
    link.close();
    assert_eq!((setup.relay.retries(), setup.logged(2)), (1, vec![FULL.into(), EARLY.into()]));
}

/// A client that has lost its tokens, but not its session.
#[test]
fn rustls_sends_early_data_again_after_a_retry() {
    let setup = Setup::configured(RETRY, &[]);
    let client = Client::without_tokens(&setup.cert);
    client.connect(setup.port()).request(get("/index.html"));
    setup.delay_finished(1);
    let (link, responses) = client.connect_early(setup.port(), &[get("/index.html")]);
    assert_eq!((link.early, responses[0].status), (Some(true), 200));
    link.close();
    assert_eq!((setup.relay.retries(), setup.logged(2)), (2, vec![FULL.into(), EARLY.into()]));
}
