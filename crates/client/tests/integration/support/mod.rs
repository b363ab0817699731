//! A server for tests: TLS with early data, and hand-written HTTP/1.1 or hyper's HTTP/2. Its
//! behaviour can be changed, and it records its requests.

pub(crate) mod quic;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;
use firstflight_client::{
    Client, ClientConfig, EarlyPolicy, HttpVersions, Jar, JarKey, Report, Request, Target,
};
use firstflight_tls::{
    Acceptor, AcceptorConfig, Identity, OpenedTicket, TicketSealer, TlsStream, Trust, Version,
    split_driver,
};
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Prefixes tickets with a key number and does not encrypt: enough to tell keys apart.
pub(crate) struct MarkSealer(pub u8);

impl TicketSealer for MarkSealer {
    fn max_overhead(&self) -> usize {
        1
    }

    fn seal(&self, session: &[u8]) -> Option<Vec<u8>> {
        Some([&[self.0], session].concat())
    }

    fn open(&self, ticket: &[u8]) -> OpenedTicket {
        match ticket.split_first() {
            Some((key, session)) if *key == self.0 => OpenedTicket::Session(session.to_vec()),
            _ => OpenedTicket::Ignored,
        }
    }
}

/// The server's current behaviour.
#[derive(Clone)]
pub(crate) struct ServerBehaviour {
    pub(crate) key: u8,
    /// Whether tickets are issued.
    pub(crate) issues_tickets: bool,
    pub(crate) alpn: &'static str,
    pub(crate) max_version: Version,
    /// Whether early data is declined.
    pub(crate) decline: bool,
    pub(crate) response: fn(usize, bool) -> Reply,
}

/// What to do with a request, given its number from 0 on and whether it was early data.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// Write this; keep the connection or close it with close_notify.
    Send(&'static str, bool),
    /// Write this and drop the socket without close_notify.
    Drop(&'static str),
    /// Write this many informational heads, and then a response.
    After(usize),
    /// Write informational heads without end.
    Endless,
    /// Never respond.
    Hang,
}

pub(crate) const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Case: Kept\r\n\r\nhello";
pub(crate) const EARLY_HINTS: &str = "HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n";
pub(crate) const TOO_EARLY: &str = "HTTP/1.1 425 Too Early\r\nContent-Length: 0\r\n\r\n";

impl Default for ServerBehaviour {
    fn default() -> Self {
        Self {
            key: 1,
            issues_tickets: true,
            alpn: "http/1.1",
            max_version: Version::Tls13,
            decline: false,
            response: |_, _| Reply::Send(OK, true),
        }
    }
}

/// A request as the server saw it.
#[derive(Clone, Debug)]
pub(crate) struct RecordedRequest {
    pub(crate) text: String,
    pub(crate) early: bool,
    /// The number of its connection, from 0 on.
    pub(crate) connection: usize,
}

#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    behaviour: Arc<Mutex<ServerBehaviour>>,
    seen: Arc<Mutex<Vec<RecordedRequest>>>,
}

impl Server {
    pub(crate) async fn start(behaviour: ServerBehaviour) -> Self {
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        socket.listen(64).unwrap();
        socket.set_nonblocking(true).unwrap();
        let listener = TcpListener::from_std(socket.into()).unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            behaviour: Arc::new(Mutex::new(behaviour)),
            seen: Arc::default(),
        };
        let accepting = server.clone();
        tokio::spawn(async move {
            for connection in 0.. {
                let Ok((socket, _)) = listener.accept().await else { return };
                tokio::spawn(accepting.clone().serve(socket, connection));
            }
        });
        server
    }

    pub(crate) fn change_behaviour(&self, change: impl FnOnce(&mut ServerBehaviour)) {
        change(&mut self.behaviour.lock().unwrap());
    }

    /// Returns the requests since the last call.
    pub(crate) fn take_requests(&self) -> Vec<RecordedRequest> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }

    pub(crate) fn url(&self, path: &str) -> Target {
        Target::parse(&format!("https://localhost:{}{path}", self.address.port())).unwrap()
    }

    async fn serve(self, socket: TcpStream, connection: usize) {
        let behaviour = self.behaviour.lock().unwrap().clone();
        let acceptor = acceptor(&behaviour);
        let Ok(tls) = TlsStream::accept(&acceptor, socket, !behaviour.decline).await else {
            return;
        };
        match behaviour.alpn {
            "h2" => self.serve_h2(tls, connection).await,
            _ => self.serve_h1(tls, connection, &behaviour).await,
        }
    }

    async fn serve_h1(
        self,
        mut tls: TlsStream<TcpStream>,
        connection: usize,
        behaviour: &ServerBehaviour,
    ) {
        while let Some((text, early)) = read_request(&mut tls).await {
            let number = self.remember(text, early, connection);
            match (behaviour.response)(number, early) {
                Reply::Send(response, keep) => {
                    if tls.write_all(response.as_bytes()).await.is_err() {
                        return;
                    }
                    let _ = tls.flush().await;
                    if !keep {
                        let _ = tls.shutdown().await;
                        return;
                    }
                }
                Reply::Drop(response) => {
                    let _ = tls.write_all(response.as_bytes()).await;
                    let _ = tls.flush().await;
                    return;
                }
                Reply::After(count) => {
                    let _ = tls.write_all((EARLY_HINTS.repeat(count) + OK).as_bytes()).await;
                    let _ = tls.flush().await;
                }
                Reply::Endless => {
                    let heads = EARLY_HINTS.repeat(100);
                    while tls.write_all(heads.as_bytes()).await.is_ok() {}
                    return;
                }
                Reply::Hang => std::future::pending::<()>().await,
            }
        }
        let _ = tls.shutdown().await;
    }

    async fn serve_h2(self, tls: TlsStream<TcpStream>, connection: usize) {
        let (stream, driver) = split_driver(tls);
        let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
            let text = format!("{} {}", request.method(), request.uri().path());
            self.remember(text, driver.reading_early(), connection);
            async { Ok::<_, Infallible>(http::Response::new(Full::new(Bytes::from("hello")))) }
        });
        let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), service)
            .await;
    }

    fn remember(&self, text: String, early: bool, connection: usize) -> usize {
        let mut seen = self.seen.lock().unwrap();
        seen.push(RecordedRequest { text, early, connection });
        seen.len() - 1
    }
}

async fn read_request(tls: &mut TlsStream<TcpStream>) -> Option<(String, bool)> {
    let mut bytes = Vec::new();
    loop {
        let mut buffer = [0; 4096];
        match tls.read(&mut buffer).await {
            Ok(count) if count > 0 => bytes.extend_from_slice(&buffer[..count]),
            _ => return None,
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: "))
            .map_or(0, |length| length.parse().unwrap());
        if body.len() >= length {
            return Some((text.clone(), tls.reading_early()));
        }
    }
}

pub(crate) fn acceptor(behaviour: &ServerBehaviour) -> Acceptor {
    let (cert, key) = pem();
    let identity = Identity::from_pem(cert.as_bytes(), key.as_bytes()).unwrap();
    let mut config = AcceptorConfig::new(identity);
    config.max_version = behaviour.max_version;
    config.alpn = match behaviour.alpn {
        "" => Vec::new(),
        alpn => vec![alpn.as_bytes().to_vec()],
    };
    config.early_data = true;
    config.tickets = if behaviour.issues_tickets { 2 } else { 0 };
    config.sealer = Some(Arc::new(MarkSealer(behaviour.key)));
    Acceptor::new(config).unwrap()
}

/// Certificate and key, one for all tests.
pub(crate) fn pem() -> &'static (String, String) {
    static PEM: OnceLock<(String, String)> = OnceLock::new();
    PEM.get_or_init(|| {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    })
}

/// A folder with a jar, its key and the server's certificate.
pub(crate) struct ClientDir(tempfile::TempDir);

impl ClientDir {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), &pem().0).unwrap();
        Self(folder)
    }

    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn jar(&self) -> Jar {
        Jar::open(&self.path("jar"), JarKey::File(self.path("key"))).unwrap()
    }

    /// A client that trusts the test server, resolves `localhost` to it, and keeps sessions.
    pub(crate) fn client(&self, change: impl FnOnce(&mut ClientConfig)) -> Client {
        let mut config = ClientConfig::new();
        config.trust = Trust::File(self.path("ca.pem"));
        config.resolver.family = firstflight_client::Family::V4;
        config.http = HttpVersions::Two;
        config.early_data = EarlyPolicy::SafeMethods;
        config.jar = Some(self.jar());
        // Ends a test that hangs; far longer than any wait in these tests.
        config.max_time = Some(std::time::Duration::from_secs(20));
        change(&mut config);
        Client::new(config).unwrap()
    }
}

pub(crate) async fn get(client: &Client, server: &Server) -> (Report, String) {
    send(client, Request::get(server.url("/path?query"))).await
}

pub(crate) async fn send(client: &Client, request: Request) -> (Report, String) {
    let mut body = Vec::new();
    let report = client.fetch(request, &mut body).await;
    (report, String::from_utf8(body).unwrap())
}
