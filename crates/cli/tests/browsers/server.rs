//! An HTTP/1.1 server that records what clients send, with a thread for each connection.
//!
//! Each ticket carries the name of the connection that issued it in clear, so that packets show
//! which ticket a client offers.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use firstflight_emulator::Namespace;
use firstflight_tls::{
    Acceptor, AcceptorConfig, CipherPolicy, Handshake, Identity, KeyLogLines, OpenedTicket,
    TicketSealer, TlsStream,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// The TLS settings of the server.
#[derive(Clone, Debug)]
pub(crate) struct Tls {
    pub(crate) early_data: bool,
    pub(crate) tickets: usize,
    pub(crate) lifetime: Duration,
    pub(crate) groups: Option<&'static str>,
    pub(crate) alpn: Vec<&'static str>,
}

impl Default for Tls {
    fn default() -> Self {
        Self {
            early_data: true,
            tickets: 2,
            lifetime: Duration::from_secs(3600),
            groups: None,
            alpn: vec!["http/1.1"],
        }
    }
}

/// How the server treats clients. It may change at any time.
#[derive(Clone, Debug)]
pub(crate) struct ServerBehaviour {
    /// Whether TLS accepts early data.
    pub(crate) accepts_early: bool,
    /// Whether tickets are accepted. If not, the handshake is full.
    pub(crate) knows_tickets: bool,
    /// Whether early requests get 425.
    pub(crate) too_early: bool,
    /// Whether all requests get 425.
    pub(crate) always_too_early: bool,
    /// After how many responses a connection is closed.
    pub(crate) responses: usize,
    /// Content types and bodies by path. Other paths get a default body.
    pub(crate) pages: BTreeMap<&'static str, (&'static str, String)>,
}

impl Default for ServerBehaviour {
    fn default() -> Self {
        Self {
            accepts_early: true,
            knows_tickets: true,
            too_early: false,
            always_too_early: false,
            responses: usize::MAX,
            pages: BTreeMap::new(),
        }
    }
}

/// A recorded request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) fields: Vec<(String, String)>,
    /// The length of its body.
    pub(crate) body: usize,
    /// Whether its complete head was early data.
    pub(crate) early_data: bool,
    /// Whether its complete body was early data.
    pub(crate) body_early: bool,
    /// The status of the response.
    pub(crate) status: u16,
}

impl Request {
    /// The value of a header field.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let field = self.fields.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        field.map(|(_, value)| value.as_str())
    }
}

/// A connection as the server recorded it.
#[derive(Clone, Debug)]
pub(crate) struct RecordedConnection {
    /// The number that names its tickets.
    pub(crate) number: usize,
    pub(crate) client: SocketAddr,
    /// `None` until the handshake is complete.
    pub(crate) handshake: Option<Handshake>,
    pub(crate) requests: Vec<Request>,
    /// Why the connection failed.
    pub(crate) error: Option<String>,
}

/// The server. It runs until the process ends.
pub(crate) struct RecordingServer {
    shared: Arc<Shared>,
    identity: Identity,
}

struct Shared {
    acceptor: Mutex<Acceptor>,
    behaviour: Mutex<ServerBehaviour>,
    recorded: Mutex<Vec<RecordedConnection>>,
    tickets: Arc<NamedTickets>,
    key_log: Arc<KeyLogLines>,
    /// How often all connections were closed.
    closing: watch::Sender<usize>,
    open: AtomicUsize,
    accepted: AtomicUsize,
}

impl RecordingServer {
    /// Listens in a namespace.
    ///
    /// `first_number`: the number before that of the first connection.
    pub(crate) fn start(
        namespace: &Namespace,
        address: SocketAddr,
        identity: Identity,
        tls: &Tls,
        first_number: usize,
    ) -> Self {
        let tickets = Arc::new(NamedTickets::default());
        let key_log = Arc::new(KeyLogLines::default());
        let shared = Arc::new(Shared {
            acceptor: Mutex::new(acceptor(&identity, tls, &tickets, &key_log)),
            behaviour: Mutex::default(),
            recorded: Mutex::default(),
            tickets,
            key_log,
            closing: watch::Sender::new(0),
            open: AtomicUsize::new(0),
            accepted: AtomicUsize::new(first_number),
        });
        let listener = namespace.run(|| std::net::TcpListener::bind(address)).unwrap().unwrap();
        let all = shared.clone();
        // The thread ends with the process. Nothing reaches the listener after the test.
        namespace
            .spawn("witness", move || {
                while let Ok((socket, client)) = listener.accept() {
                    let shared = all.clone();
                    std::thread::spawn(move || shared.handle(socket, client));
                }
            })
            .unwrap();
        Self { shared, identity }
    }

    /// Changes its TLS settings. Tickets remain valid.
    pub(crate) fn set_tls(&self, tls: &Tls) {
        let acceptor = acceptor(&self.identity, tls, &self.shared.tickets, &self.shared.key_log);
        *lock(&self.shared.acceptor) = acceptor;
    }

    /// Changes how it treats clients.
    pub(crate) fn behaviour(&self, change: impl FnOnce(&mut ServerBehaviour)) {
        let mut behaviour = lock(&self.shared.behaviour);
        change(&mut behaviour);
        self.shared.tickets.set_known(behaviour.knows_tickets);
    }

    /// Closes all connections gracefully and waits until they have ended.
    pub(crate) fn close_connections(&self) {
        self.shared.closing.send_modify(|times| *times += 1);
        let ended = super::poll(|| self.shared.open.load(Ordering::SeqCst) == 0);
        assert!(ended, "a connection does not end");
    }

    /// Takes the connections since the last call.
    pub(crate) fn take(&self) -> Vec<RecordedConnection> {
        std::mem::take(&mut *lock(&self.shared.recorded))
    }

    /// The connections so far.
    pub(crate) fn recorded(&self) -> Vec<RecordedConnection> {
        lock(&self.shared.recorded).clone()
    }

    /// Takes the TLS secrets since the last call.
    pub(crate) fn secrets(&self) -> String {
        self.shared.key_log.take()
    }
}

impl Shared {
    fn handle(self: Arc<Self>, socket: std::net::TcpStream, client: SocketAddr) {
        let number = self.accepted.fetch_add(1, Ordering::SeqCst) + 1;
        self.open.fetch_add(1, Ordering::SeqCst);
        set_connection(number);
        let at = {
            let mut recorded = lock(&self.recorded);
            recorded.push(RecordedConnection {
                number,
                client,
                handshake: None,
                requests: vec![],
                error: None,
            });
            number
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let outcome = runtime.block_on(self.serve(socket, at));
        if let Err(error) = outcome {
            self.note(at, |recorded| recorded.error = Some(error.to_string()));
        }
        self.open.fetch_sub(1, Ordering::SeqCst);
    }

    /// Updates the record of a connection, unless it was taken already.
    fn note(&self, number: usize, add: impl FnOnce(&mut RecordedConnection)) {
        if let Some(recorded) =
            lock(&self.recorded).iter_mut().find(|recorded| recorded.number == number)
        {
            add(recorded);
        }
    }

    async fn serve(&self, socket: std::net::TcpStream, number: usize) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        let mut closing = self.closing.subscribe();
        let acceptor = lock(&self.acceptor).clone();
        let accepts_early = lock(&self.behaviour).accepts_early;
        let socket = TcpStream::from_std(socket)?;
        let accepting = TlsStream::accept(&acceptor, socket, accepts_early);
        let mut stream = tokio::select! {
            accepted = accepting => accepted.map_err(io::Error::other)?,
            // A speculative connection that was not used.
            _ = closing.changed() => return Ok(()),
        };
        let facts = stream.facts();
        self.note(number, |recorded| recorded.handshake = Some(facts));
        let mut buffer = Vec::new();
        let responses = lock(&self.behaviour).responses;
        for _ in 0..responses {
            let request = tokio::select! {
                request = read(&mut stream, &mut buffer) => request?,
                _ = closing.changed() => None,
            };
            let Some(mut request) = request else { break };
            let (status, response) = self.response(&request);
            request.status = status;
            self.note(number, |recorded| recorded.requests.push(request));
            stream.write_all(&response).await?;
            stream.flush().await?;
        }
        let facts = stream.facts();
        self.note(number, |recorded| recorded.handshake = Some(facts));
        // The client may have closed the connection.
        let _ = tokio::time::timeout(TEST_TIMEOUT, stream.shutdown()).await;
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, until_closed(stream.socket())).await;
        Ok(())
    }

    fn response(&self, request: &Request) -> (u16, Vec<u8>) {
        let behaviour = lock(&self.behaviour);
        let path = request.target.split('?').next().unwrap_or_default();
        let (kind, body) = match behaviour.pages.get(path) {
            Some((kind, body)) => (*kind, body.as_str()),
            None => ("text/plain", "here"),
        };
        let cache = match path {
            "/kept" => "max-age=600",
            "/clear" => "no-store\r\nClear-Site-Data: \"*\"",
            _ => "no-store",
        };
        let (status, more) =
            match behaviour.always_too_early || behaviour.too_early && request.early_data {
                true => ("425 Too Early", ""),
                false => ("200 OK", "Access-Control-Allow-Origin: *\r\n"),
            };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nCache-Control: \
             {cache}\r\n{more}\r\n",
            body.len()
        );
        let status = status[..3].parse().unwrap();
        let body = if request.method == "HEAD" { "" } else { body };
        (status, (head + body).into_bytes())
    }
}

/// The next request; `None` at the end of the stream.
async fn read(
    stream: &mut TlsStream<TcpStream>,
    buffer: &mut Vec<u8>,
) -> io::Result<Option<Request>> {
    let head_length = loop {
        if let Some(at) = buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    };
    let early_data = stream.reading_early();
    let head: Vec<u8> = buffer.drain(..head_length).collect();
    let head = String::from_utf8_lossy(&head).into_owned();
    let mut lines = head.lines();
    let mut first = lines.next().unwrap_or_default().split(' ').map(str::to_owned);
    let fields: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect();
    let mut request = Request {
        method: first.next().unwrap_or_default(),
        target: first.next().unwrap_or_default(),
        fields,
        body: 0,
        early_data,
        body_early: false,
        status: 0,
    };
    let length = request.field("content-length").map_or(0, |length| length.parse().unwrap_or(0));
    while buffer.len() < length {
        if stream.read_buf(buffer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    buffer.drain(..length);
    request.body = length;
    request.body_early = length > 0 && stream.reading_early();
    Ok(Some(request))
}

/// Waits until the client has closed the connection. Firefox closes it when the server does;
/// Chromium notices only when it tries to reuse the connection.
async fn until_closed(socket: &TcpStream) {
    let mut rest = [0; 4096];
    while socket.readable().await.is_ok() {
        match socket.try_read(&mut rest) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

fn acceptor(
    identity: &Identity,
    tls: &Tls,
    tickets: &Arc<NamedTickets>,
    key_log: &Arc<KeyLogLines>,
) -> Acceptor {
    let mut config = AcceptorConfig::new(identity.clone());
    config.early_data = tls.early_data;
    config.tickets = tls.tickets;
    config.ticket_lifetime = tls.lifetime;
    config.ciphers =
        CipherPolicy { groups: tls.groups.map(str::to_owned), ..CipherPolicy::default() };
    config.alpn = tls.alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    config.sealer = Some(tickets.clone());
    config.key_log = Some(key_log.clone());
    Acceptor::new(config).unwrap()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const TEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait for the client to close a connection.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(300);

thread_local! {
    /// The number of the connection that this thread serves, and the tickets that it has issued.
    static CONNECTION: Cell<usize> = const { Cell::new(0) };
    static ISSUED: Cell<usize> = const { Cell::new(0) };
}

/// Unencrypted tickets, for tests only.
#[derive(Default)]
pub(crate) struct NamedTickets {
    unknown: AtomicBool,
}

impl NamedTickets {
    /// Sets whether tickets are accepted.
    pub(crate) fn set_known(&self, known: bool) {
        self.unknown.store(!known, Ordering::SeqCst);
    }
}

/// Sets the connection for tickets that this thread issues from now on.
pub(crate) fn set_connection(number: usize) {
    CONNECTION.set(number);
    ISSUED.set(0);
}

/// The prefix of a ticket's name.
pub(crate) const NAME_PREFIX: &[u8] = b"ticket ";
/// The length of a ticket's name: the prefix and a number such as `0017.2`.
pub(crate) const NAME_LENGTH: usize = NAME_PREFIX.len() + 6;

impl TicketSealer for NamedTickets {
    fn max_overhead(&self) -> usize {
        NAME_LENGTH
    }

    fn seal(&self, session: &[u8]) -> Option<Vec<u8>> {
        ISSUED.set(ISSUED.get() + 1);
        let mut ticket = NAME_PREFIX.to_vec();
        ticket.extend(format!("{:04}.{}", CONNECTION.get(), ISSUED.get()).into_bytes());
        ticket.extend(session);
        Some(ticket)
    }

    fn open(&self, ticket: &[u8]) -> OpenedTicket {
        match ticket.get(NAME_LENGTH..) {
            Some(session) if !self.unknown.load(Ordering::SeqCst) => {
                OpenedTicket::Session(session.to_vec())
            }
            _ => OpenedTicket::Ignored,
        }
    }
}
