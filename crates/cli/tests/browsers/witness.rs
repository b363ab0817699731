//! A server that does what an experiment wants and writes down what clients do.
//!
//! HTTP/1.1, read by hand, a thread for each connection. Each ticket bears the name of the
//! connection that issued it, in clear, so that packets show which one comes back.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use firstflight_emulator::Namespace;
use firstflight_tls::{
    Acceptor, AcceptorConfig, CipherPolicy, Handshake, Identity, KeyLogLines, TlsStream,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::named_tickets::{self, NamedTickets};

/// What its TLS is like.
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

/// How it treats clients; may change at any time.
#[derive(Clone, Debug)]
pub(crate) struct Manner {
    /// Early data is accepted, by TLS.
    pub(crate) accepts_early: bool,
    /// Tickets are known; otherwise a full handshake follows.
    pub(crate) knows_tickets: bool,
    /// Early requests get 425.
    pub(crate) too_early: bool,
    /// All requests get 425.
    pub(crate) always_too_early: bool,
    /// A connection ends after so many answers.
    pub(crate) responses: usize,
    /// What is served; by their path, of any other one word.
    pub(crate) pages: BTreeMap<&'static str, (&'static str, String)>,
}

impl Default for Manner {
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

/// A request, as it came.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) fields: Vec<(String, String)>,
    /// Bytes of its body.
    pub(crate) body: usize,
    /// Its head was whole in early data.
    pub(crate) early: bool,
    /// And so was its body.
    pub(crate) body_early: bool,
    /// What it was answered.
    pub(crate) status: u16,
}

impl Request {
    /// The field's value, if it is there.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

/// What was heard on one connection.
#[derive(Clone, Debug)]
pub(crate) struct Heard {
    /// What its tickets are named by.
    pub(crate) number: usize,
    pub(crate) client: SocketAddr,
    /// `None`: it never came so far.
    pub(crate) handshake: Option<Handshake>,
    pub(crate) requests: Vec<Request>,
    /// Why it ended before its time.
    pub(crate) error: Option<String>,
}

pub(crate) struct Witness {
    shared: Arc<Shared>,
    identity: Identity,
}

struct Shared {
    acceptor: Mutex<Acceptor>,
    manner: Mutex<Manner>,
    heard: Mutex<Vec<Heard>>,
    tickets: Arc<NamedTickets>,
    key_log: Arc<KeyLogLines>,
    /// How often all connections were ended.
    hung_up: watch::Sender<usize>,
    open: AtomicUsize,
    begun: AtomicUsize,
}

impl Witness {
    /// Listens in `place`.
    ///
    /// `before`: how many its first connection's number comes after.
    pub(crate) fn start(
        place: &Namespace,
        address: SocketAddr,
        identity: Identity,
        tls: &Tls,
        before: usize,
    ) -> Self {
        let tickets = Arc::new(NamedTickets::default());
        let key_log = Arc::new(KeyLogLines::default());
        let shared = Arc::new(Shared {
            acceptor: Mutex::new(acceptor(&identity, tls, &tickets, &key_log)),
            manner: Mutex::default(),
            heard: Mutex::default(),
            tickets,
            key_log,
            hung_up: watch::Sender::new(0),
            open: AtomicUsize::new(0),
            begun: AtomicUsize::new(before),
        });
        let listener = place.run(|| std::net::TcpListener::bind(address)).unwrap().unwrap();
        let all = shared.clone();
        // It ends with the process: a listener that nobody reaches any more harms nobody.
        place
            .spawn("witness", move || {
                while let Ok((socket, client)) = listener.accept() {
                    let shared = all.clone();
                    std::thread::spawn(move || shared.attend(socket, client));
                }
            })
            .unwrap();
        Self { shared, identity }
    }

    /// From now on its TLS is like this; tickets stay good.
    pub(crate) fn becomes(&self, tls: &Tls) {
        let acceptor = acceptor(&self.identity, tls, &self.shared.tickets, &self.shared.key_log);
        *lock(&self.shared.acceptor) = acceptor;
    }

    /// Changes how it treats clients.
    pub(crate) fn manner(&self, change: impl FnOnce(&mut Manner)) {
        let mut manner = lock(&self.shared.manner);
        change(&mut manner);
        self.shared.tickets.are_known(manner.knows_tickets);
    }

    /// Ends all connections in good order and waits until they have ended.
    pub(crate) fn hang_up(&self) {
        self.shared.hung_up.send_modify(|times| *times += 1);
        let ended = super::within(|| self.shared.open.load(Ordering::SeqCst) == 0);
        assert!(ended, "a connection does not end");
    }

    /// What was heard since it was last asked.
    pub(crate) fn take(&self) -> Vec<Heard> {
        std::mem::take(&mut *lock(&self.shared.heard))
    }

    /// What has been heard so far.
    pub(crate) fn heard(&self) -> Vec<Heard> {
        lock(&self.shared.heard).clone()
    }

    /// Secrets of its connections since it was last asked.
    pub(crate) fn secrets(&self) -> String {
        self.shared.key_log.take()
    }
}

impl Shared {
    fn attend(self: Arc<Self>, socket: std::net::TcpStream, client: SocketAddr) {
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        self.open.fetch_add(1, Ordering::SeqCst);
        named_tickets::on_connection(number);
        let at = {
            let mut heard = lock(&self.heard);
            heard.push(Heard { number, client, handshake: None, requests: vec![], error: None });
            number
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let outcome = runtime.block_on(self.serve(socket, at));
        if let Err(error) = outcome {
            self.note(at, |heard| heard.error = Some(error.to_string()));
        }
        self.open.fetch_sub(1, Ordering::SeqCst);
    }

    /// Adds to what was heard; of a connection that was taken already, nothing.
    fn note(&self, number: usize, add: impl FnOnce(&mut Heard)) {
        if let Some(heard) = lock(&self.heard).iter_mut().find(|heard| heard.number == number) {
            add(heard);
        }
    }

    async fn serve(&self, socket: std::net::TcpStream, number: usize) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        let mut hung_up = self.hung_up.subscribe();
        let acceptor = lock(&self.acceptor).clone();
        let accepts_early = lock(&self.manner).accepts_early;
        let socket = TcpStream::from_std(socket)?;
        let accepting = TlsStream::accept(&acceptor, socket, accepts_early);
        let mut stream = tokio::select! {
            accepted = accepting => accepted.map_err(io::Error::other)?,
            // Nothing was said on it: a connection for later, that ends unused.
            _ = hung_up.changed() => return Ok(()),
        };
        let facts = stream.facts();
        self.note(number, |heard| heard.handshake = Some(facts));
        let mut buffer = Vec::new();
        let responses = lock(&self.manner).responses;
        for _ in 0..responses {
            let request = tokio::select! {
                request = read(&mut stream, &mut buffer) => request?,
                _ = hung_up.changed() => None,
            };
            let Some(mut request) = request else { break };
            let (status, response) = self.response(&request);
            request.status = status;
            self.note(number, |heard| heard.requests.push(request));
            stream.write_all(&response).await?;
            stream.flush().await?;
        }
        let facts = stream.facts();
        self.note(number, |heard| heard.handshake = Some(facts));
        // The other side may be gone.
        let _ = tokio::time::timeout(TEST_TIMEOUT, stream.shutdown()).await;
        let _ = tokio::time::timeout(FAREWELL, until_closed(stream.socket())).await;
        Ok(())
    }

    fn response(&self, request: &Request) -> (u16, Vec<u8>) {
        let manner = lock(&self.manner);
        let path = request.target.split('?').next().unwrap_or_default();
        let (kind, body) = match manner.pages.get(path) {
            Some((kind, body)) => (*kind, body.as_str()),
            None => ("text/plain", "here"),
        };
        let cache = match path {
            "/kept" => "max-age=600",
            "/clear" => "no-store\r\nClear-Site-Data: \"*\"",
            _ => "no-store",
        };
        let (status, more) = match manner.always_too_early || manner.too_early && request.early {
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
    let end = loop {
        if let Some(at) = buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    };
    let early = stream.reading_early();
    let head: Vec<u8> = buffer.drain(..end).collect();
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
        early,
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

/// Waits until the other side has closed. Firefox does so when it hears that we did; Chromium looks
/// only when it wants to use the connection again.
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
/// So long a client's own end of a connection is waited for.
const FAREWELL: Duration = Duration::from_millis(300);
