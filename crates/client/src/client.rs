use std::time::{Duration, Instant};

use firstflight_tls::{
    CipherPolicy, Connector, ConnectorConfig, EarlyData, KeyLog, Offer, Session, TlsError,
    TlsStream, Trust, Version,
};
use http::header::LOCATION;
use tokio::net::TcpStream;

use crate::connect::connect_tcp;
use crate::early::{mended_without_early_data, too_early};
use crate::transport::tls_error;
use crate::{
    ClientError, EarlyPolicy, Event, Exchange, Head, Jar, Listener, Marks, Origin, Report, Request,
    Resolver, Scheme, Stream, Target, TcpFacts, Ticket, TrustId, Wanted, Wire,
};

/// Which versions of HTTP a client offers by ALPN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HttpVersions {
    /// HTTP/2, or HTTP/1.1 where the server prefers it.
    #[default]
    Two,
    /// HTTP/1.1 alone.
    One,
}

impl HttpVersions {
    /// The protocols as ALPN names them, in order of preference.
    pub fn alpn(self) -> Vec<Vec<u8>> {
        match self {
            Self::Two => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            Self::One => vec![b"http/1.1".to_vec()],
        }
    }
}

/// What a client is willing to do.
pub struct ClientConfig {
    /// Whom to believe.
    pub trust: Trust,
    /// Oldest and newest version of TLS.
    pub versions: (Version, Version),
    /// Ciphers and groups.
    pub ciphers: CipherPolicy,
    /// Versions of HTTP.
    pub http: HttpVersions,
    /// Whether to put the first write into the SYN where the kernel has a cookie (RFC 7413).
    pub fast_open: bool,
    /// Which requests may be early data; needs a jar with a session.
    pub early_data: EarlyPolicy,
    /// Where names lead.
    pub resolver: Resolver,
    /// Limit for name, TCP and TLS together.
    pub connect_timeout: Option<Duration>,
    /// Limit for everything.
    pub max_time: Option<Duration>,
    /// Redirections to follow; `None`: none, and they are answers like any other.
    pub redirects: Option<u32>,
    /// Whether a status of 400 and above is an error.
    pub fail: bool,
    /// Where sessions come from and go to.
    pub jar: Option<Jar>,
    /// Where TLS secrets go.
    pub key_log: Option<std::sync::Arc<dyn KeyLog>>,
}

impl ClientConfig {
    /// The machine's authorities, TLS 1.2 and 1.3, HTTP/2 or 1.1, no early data, no jar, no limits.
    pub fn new() -> Self {
        Self {
            trust: Trust::System,
            versions: (Version::Tls12, Version::Tls13),
            ciphers: CipherPolicy::default(),
            http: HttpVersions::default(),
            fast_open: false,
            early_data: EarlyPolicy::default(),
            resolver: Resolver::default(),
            connect_timeout: None,
            max_time: None,
            redirects: None,
            fail: false,
            jar: None,
            key_log: None,
        }
    }
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// Makes transfers, each on a connection of its own.
pub struct Client {
    config: ClientConfig,
    connector: Connector,
    trust: TrustId,
}

impl Client {
    /// Checks the configuration.
    ///
    /// # Errors
    /// [`ClientError::Tls`] with the setting that is not taken, [`ClientError::Jar`].
    pub fn new(config: ClientConfig) -> Result<Self, ClientError> {
        let connector = Connector::new(ConnectorConfig {
            min_version: config.versions.0,
            max_version: config.versions.1,
            ciphers: config.ciphers.clone(),
            alpn: config.http.alpn(),
            trust: config.trust.clone(),
            ed25519: false,
            key_log: config.key_log.clone(),
        })?;
        let trust = TrustId::of(&config.trust)?;
        Ok(Self { config, connector, trust })
    }

    /// Makes a request and hands its answer to `listener` as it comes in. What went wrong is in
    /// the report, together with all that was reached before.
    pub async fn fetch(&self, request: Request, listener: &mut dyn Listener) -> Report {
        let mut transfer = Transfer {
            client: self,
            report: Report::new(&request),
            listener,
            ticket: None,
            wire: None,
            sessions: Vec::new(),
        };
        let result = match self.config.max_time {
            None => transfer.run(request).await,
            Some(after) => match tokio::time::timeout(after, transfer.run(request)).await {
                Ok(result) => result,
                Err(_) => Err(ClientError::Timeout { phase: "the transfer", after }),
            },
        };
        let settled = transfer.settle();
        let mut report = transfer.report;
        report.error = result.and(settled).err();
        report.marks.end.get_or_insert_with(Instant::now);
        report
    }
}

/// One transfer in progress, with what has to be put in order however it ends.
struct Transfer<'a> {
    client: &'a Client,
    report: Report,
    listener: &'a mut dyn Listener,
    ticket: Option<Taken>,
    wire: Option<Wire<TcpStream>>,
    sessions: Vec<Session>,
}

struct Taken {
    ticket: Ticket,
    /// Whether it may have been seen on the wire.
    sent: bool,
}

/// How one connection ended.
enum Outcome {
    Answered,
    Redirect(Target, u16),
    Again(&'static str),
}

/// How much of a 425's body is read to keep its connection.
const MAX_DISCARDED: usize = 64 * 1024;

/// How long to wait for a ticket that did not come with the answer: two round trips, within these.
const TICKET_PATIENCE: (Duration, Duration) =
    (Duration::from_millis(20), Duration::from_millis(250));

impl Transfer<'_> {
    async fn run(&mut self, mut request: Request) -> Result<(), ClientError> {
        let mut early = true;
        let mut start = None;
        loop {
            let early_now = early && self.client.config.early_data.allows(&request.method);
            self.take_ticket(&request.target, early_now)?;
            // The jar's time is not the network's: the clock starts here.
            let start = *start.get_or_insert_with(Instant::now);
            self.report.marks = Marks::new(start);
            let outcome = match self.attempt(&request, early_now).await {
                Err(ClientError::Tls(error))
                    if self.report.retries == 0 && mended_without_early_data(&error) =>
                {
                    Outcome::Again("the server no longer takes what the session promised")
                }
                other => other?,
            };
            match outcome {
                Outcome::Answered => return Ok(()),
                Outcome::Again(why) => {
                    self.note_connection();
                    self.settle()?;
                    self.report.retries += 1;
                    self.listener.event(&Event::Retrying(why));
                    early = false;
                }
                Outcome::Redirect(target, status) => {
                    self.settle()?;
                    self.report.num_redirects += 1;
                    self.report.redirect_time = start.elapsed().as_secs_f64();
                    self.listener.event(&Event::Redirected(&target.to_string()));
                    request = request.redirected(status, target);
                    self.report.url_effective = request.target.to_string();
                    self.report.scheme = request.target.scheme().name();
                    self.report.method = request.method.to_string();
                    early = true;
                }
            }
        }
    }

    /// One connection: made, used, closed.
    async fn attempt(&mut self, request: &Request, early: bool) -> Result<Outcome, ClientError> {
        let limit = self.client.config.connect_timeout;
        let deadline = limit.map(|limit| tokio::time::Instant::now() + limit);
        let late =
            || ClientError::Timeout { phase: "connecting", after: limit.unwrap_or_default() };
        let establish = self.establish(request, early);
        let stream = match deadline {
            None => establish.await?,
            Some(deadline) => tokio::time::timeout_at(deadline, establish)
                .await
                .unwrap_or_else(|_| Err(late()))?,
        };
        let http2 = match &stream {
            Stream::Tls(tls) => tls.facts().alpn.as_deref() == Some(b"h2"),
            Stream::Plain(_) => false,
        };
        let wire = Wire::new(stream);
        self.wire = Some(wire.clone());
        let mut exchange = Exchange::open(wire.clone(), http2).await?;
        let result = self.exchange(&mut exchange, request, http2, deadline, &late).await;
        self.note_connection();
        match &result {
            Err(_) => return self.explain(result),
            Ok(_) => self.report.marks.end = Some(Instant::now()),
        }
        let mut sessions = exchange.close(self.ticket_patience(&wire)).await;
        self.sessions.append(&mut sessions);
        self.listener.event(&Event::Closed);
        result
    }

    /// Name, TCP, TLS. With early data nothing of the latter has been sent when this returns.
    async fn establish(
        &mut self,
        request: &Request,
        early: bool,
    ) -> Result<Stream<TcpStream>, ClientError> {
        let config = &self.client.config;
        let target = &request.target;
        let addresses = config.resolver.resolve(target.host(), target.port()).await?;
        self.report.marks.resolved = Some(Instant::now());
        self.listener.event(&Event::Resolved { host: target.host(), addresses: &addresses });
        let tcp = connect_tcp(&addresses, config.fast_open).await?;
        self.report.marks.dialled = Some(tcp.dialled);
        self.report.marks.connected = Some(tcp.connected);
        self.report.peer = Some(tcp.peer);
        self.report.local = tcp.stream.local_addr().ok();
        self.report.num_connects += 1;
        self.listener.event(&Event::Connected {
            host: target.host(),
            peer: tcp.peer,
            local: self.report.local,
            fast_open: config.fast_open,
        });
        if target.scheme() == Scheme::Http {
            return Ok(Stream::Plain(tcp.stream));
        }
        let session = self.ticket.as_mut().map(|taken| {
            taken.sent = true;
            taken.ticket.session.clone()
        });
        if let Some(session) = &session {
            let early_data = early && session.early_data_capable();
            self.listener.event(&Event::Resuming { early_data });
        }
        let offer = Offer { host: target.host().to_owned(), session, early_data: early };
        match TlsStream::connect(&self.client.connector, tcp.stream, &offer).await {
            Ok(stream) => {
                if stream.is_complete() {
                    self.report.marks.secured = Some(Instant::now());
                    self.listener.event(&Event::Secured(&stream.facts()));
                }
                Ok(Stream::Tls(Box::new(stream)))
            }
            Err(error) => self.explain(Err(error.into())),
        }
    }

    /// The request, and once more if it was too early; the answer to the listener.
    async fn exchange(
        &mut self,
        exchange: &mut Exchange<TcpStream>,
        request: &Request,
        http2: bool,
        deadline: Option<tokio::time::Instant>,
        late: &dyn Fn() -> ClientError,
    ) -> Result<Outcome, ClientError> {
        let wire = exchange.wire();
        let mut second = false;
        loop {
            self.note_request(request, http2)?;
            let was_complete = wire.is_complete();
            let handshake_late = async {
                match deadline.filter(|_| !was_complete) {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
                if wire.is_complete() {
                    std::future::pending::<()>().await;
                }
            };
            let answer = tokio::select! {
                biased;
                answer = exchange.send(request) => answer,
                () = handshake_late => return Err(late()),
            };
            let (head, mut body) = match answer {
                // The server was closing after its 425. A request that may be repeated goes once
                // more (RFC 9110 section 9.2.2).
                Err(_) if second && !wire.answered() && request.method.is_idempotent() => {
                    return Ok(Outcome::Again("the connection of the 425 was closed"));
                }
                answer => answer?,
            };
            if let (false, Some(facts)) = (was_complete, wire.facts()) {
                self.listener.event(&Event::Secured(&facts));
            }
            let was_early = !was_complete
                && wire.facts().is_some_and(|facts| facts.early_data == EarlyData::Accepted);
            if self.report.retries == 0 && too_early(head.status, was_early) {
                self.listener.event(&Event::ResponseHead(&head.raw));
                if !discard(exchange, &mut body).await || !exchange.is_reusable().await {
                    return Ok(Outcome::Again("425: too early; on a fresh connection"));
                }
                self.report.retries += 1;
                let why = "425: too early; on the same connection after the handshake";
                self.listener.event(&Event::Retrying(why));
                second = true;
                continue;
            }
            return self.deliver(exchange, head, &mut body, request).await;
        }
    }

    async fn deliver(
        &mut self,
        exchange: &mut Exchange<TcpStream>,
        head: Head,
        body: &mut hyper::body::Incoming,
        request: &Request,
    ) -> Result<Outcome, ClientError> {
        self.report.size_header += head.raw.len() as u64;
        self.listener.event(&Event::ResponseHead(&head.raw));
        let status = head.status.as_u16();
        let next = redirection(&head, &request.target);
        self.report.redirect_url = next.as_ref().map(ToString::to_string);
        self.report.head = Some(head.clone());
        if self.client.config.fail && status >= 400 {
            return Err(ClientError::Status(status));
        }
        self.listener.head(&head).map_err(ClientError::Write)?;
        if let (Some(most), Some(next)) = (self.client.config.redirects, next) {
            if self.report.num_redirects >= most {
                return Err(ClientError::TooManyRedirects(most));
            }
            self.report.redirect_url = None;
            discard(exchange, body).await;
            return Ok(Outcome::Redirect(next, status));
        }
        while let Some(bytes) = exchange.read_body(body).await? {
            self.report.size_download += bytes.len() as u64;
            self.listener.body(&bytes).map_err(ClientError::Write)?;
        }
        Ok(Outcome::Answered)
    }

    fn note_request(&mut self, request: &Request, http2: bool) -> Result<(), ClientError> {
        let text = request.head_text(http2)?;
        self.report.size_request += text.len() as u64;
        self.report.size_upload += request.body.len() as u64;
        self.listener.event(&Event::RequestHead(&text));
        Ok(())
    }

    /// Takes over into the report what the connection knows of itself.
    fn note_connection(&mut self) {
        let Some(wire) = &self.wire else { return };
        let passed = wire.passed();
        let marks = &mut self.report.marks;
        marks.sent = passed.sent.or(marks.sent);
        marks.secured = marks.secured.or(passed.secured);
        marks.first_byte = passed.first_byte.or(marks.first_byte);
        self.report.facts = wire.facts();
        self.report.early_bytes = wire.early_bytes();
        self.report.tcp = wire.with_socket(TcpFacts::of);
    }

    /// With TCP Fast Open a refused connection is met by the first write; it is still that.
    fn explain<T>(&self, result: Result<T, ClientError>) -> Result<T, ClientError> {
        use std::io::ErrorKind as Kind;
        result.map_err(|error| match (error, self.report.peer) {
            (ClientError::Tls(TlsError::Io(source)), Some(address)) => match source.kind() {
                Kind::ConnectionRefused | Kind::HostUnreachable | Kind::NetworkUnreachable => {
                    ClientError::Connect { address, source }
                }
                // An error of TLS may have been carried through the stream.
                _ => match tls_error(source) {
                    Ok(error) => ClientError::Tls(error),
                    Err(source) => ClientError::Tls(TlsError::Io(source)),
                },
            },
            (error, _) => error,
        })
    }

    fn ticket_patience(&self, wire: &Wire<TcpStream>) -> Duration {
        let tls13 = wire.facts().is_some_and(|facts| facts.version == Some(Version::Tls13));
        match (&self.client.config.jar, &self.report.tcp) {
            (Some(_), Some(tcp)) if tls13 && self.sessions.is_empty() => {
                (2 * tcp.rtt).clamp(TICKET_PATIENCE.0, TICKET_PATIENCE.1)
            }
            _ => Duration::ZERO,
        }
    }

    fn take_ticket(&mut self, target: &Target, early_data: bool) -> Result<(), ClientError> {
        let config = &self.client.config;
        self.wire = None;
        let (Some(jar), Scheme::Https) = (&config.jar, target.scheme()) else { return Ok(()) };
        let wanted = Wanted {
            origin: &origin(target),
            trust: &self.client.trust,
            alpn: &config.http.alpn(),
            versions: config.versions,
            early_data,
        };
        let mut warnings = Vec::new();
        let ticket = jar.take(&wanted, &mut warnings)?;
        self.ticket = ticket.map(|ticket| Taken { ticket, sent: false });
        self.warn(&warnings);
        Ok(())
    }

    /// Puts new sessions into the jar, and an unused one back.
    fn settle(&mut self) -> Result<(), ClientError> {
        let mut sessions = std::mem::take(&mut self.sessions);
        let wire = self.wire.take();
        if let Some(wire) = &wire {
            sessions.extend(wire.take_sessions());
        }
        self.report.sessions += sessions.len();
        let taken = self.ticket.take();
        let Some(jar) = &self.client.config.jar else { return Ok(()) };
        let mut tickets: Vec<Ticket> = Vec::new();
        if let (Some(wire), Ok(target)) = (&wire, Target::parse(&self.report.url_effective)) {
            let alpn = wire.facts().and_then(|facts| facts.alpn);
            tickets.extend(sessions.into_iter().map(|session| Ticket {
                origin: origin(&target),
                trust: self.client.trust.clone(),
                alpn: alpn.clone(),
                session,
            }));
        }
        let kept = tickets.len();
        // A session of TLS 1.2 may serve again (RFC 5246 section F.1.4); one of 1.3 only if unseen.
        if let Some(Taken { ticket, sent }) = taken
            && (!sent || (tickets.is_empty() && !ticket.session.single_use()))
        {
            tickets.push(ticket);
        }
        let mut warnings = Vec::new();
        jar.put(&tickets, &mut warnings)?;
        self.warn(&warnings);
        if kept > 0 {
            self.listener.event(&Event::SessionsKept(kept));
        }
        Ok(())
    }

    fn warn(&mut self, warnings: &[String]) {
        for warning in warnings {
            self.listener.event(&Event::Warning(warning));
        }
    }
}

fn origin(target: &Target) -> Origin {
    Origin {
        scheme: target.scheme().name().to_owned(),
        host: target.host().to_ascii_lowercase(),
        port: target.port(),
    }
}

/// Where a 3xx answer points to (RFC 9110 section 15.4).
fn redirection(head: &Head, from: &Target) -> Option<Target> {
    if !matches!(head.status.as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    from.join(head.headers.get(LOCATION)?.to_str().ok()?).ok()
}

/// Reads a body to its end; whether that was reached within bounds.
async fn discard(exchange: &mut Exchange<TcpStream>, body: &mut hyper::body::Incoming) -> bool {
    let mut count = 0;
    loop {
        match exchange.read_body(body).await {
            Ok(None) => return true,
            Ok(Some(bytes)) if count + bytes.len() <= MAX_DISCARDED => count += bytes.len(),
            _ => return false,
        }
    }
}
