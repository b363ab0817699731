use std::net::SocketAddr;
use std::time::{Duration, Instant};

use firstflight_tls::{ConnectOptions, EarlyData, TlsError, TlsStream, Version};
use tokio::net::TcpStream;

use super::{ConnectLimit, Outcome, TcpOutcome, Transfer};
use super::{TcpBody, discard};
use crate::client::is_retryable_425;
use crate::connect::connect_tcp;
use crate::stream::tls_error;
use crate::{
    ClientError, Event, Exchange, Request, Scheme, SharedStream, Stream, TcpConnected, TcpInfo,
};

/// The minimum time to wait for a ticket that did not come with the response, for which the client
/// otherwise waits two round trips. A busy server's tickets may be late; without them the next
/// connection costs a round trip more.
const MIN_TICKET_TIMEOUT: Duration = Duration::from_millis(100);

/// The maximum time to wait for a ticket that did not come with the response.
const MAX_TICKET_TIMEOUT: Duration = Duration::from_millis(250);

/// The same, if early data was accepted.
const EARLY_TICKET_TIMEOUT: Duration = Duration::from_secs(1);

/// Facts of a TCP connection.
pub(super) struct TcpDetails {
    peer: SocketAddr,
    local: Option<SocketAddr>,
    dialled: Instant,
    connected: Instant,
    fast_open: bool,
}

impl TcpDetails {
    pub(super) fn of(tcp: &TcpConnected, fast_open: bool) -> Self {
        Self {
            peer: tcp.peer,
            local: tcp.stream.local_addr().ok(),
            dialled: tcp.dialled,
            connected: tcp.connected,
            fast_open,
        }
    }
}

impl Transfer<'_> {
    /// Connects TCP and TLS. With early data, nothing of TLS has been sent when this returns.
    pub(super) async fn establish(
        &mut self,
        request: &Request,
        early: bool,
        addresses: &[SocketAddr],
    ) -> Result<Stream<TcpStream>, ClientError> {
        let fast_open = self.client.config.fast_open;
        let tcp = connect_tcp(addresses, fast_open).await?;
        self.record_tcp_connect(&TcpDetails::of(&tcp, fast_open), request);
        if request.target.scheme() == Scheme::Http {
            return Ok(Stream::Plain(tcp.stream));
        }
        let offer = self.offer(request, early);
        self.record_offer(&offer);
        match TlsStream::connect(&self.client.connector, tcp.stream, &offer).await {
            Ok(stream) => {
                self.record_secured(&stream);
                Ok(Stream::Tls(Box::new(stream)))
            }
            Err(error) => self.map_connect_errors(Err(error.into())),
        }
    }

    /// Returns what TLS offers over TCP. From now on the ticket counts as sent.
    pub(super) fn offer(&self, request: &Request, early: bool) -> ConnectOptions {
        self.jar_tickets.tcp_sent.set(true);
        let session = self.jar_tickets.tcp.as_ref().map(|ticket| ticket.session.clone());
        ConnectOptions { host: request.target.host().to_owned(), session, early_data: early }
    }

    pub(super) fn record_tcp_connect(&mut self, tcp: &TcpDetails, request: &Request) {
        self.report.marks.dialled = Some(tcp.dialled);
        self.report.marks.connected = Some(tcp.connected);
        self.report.peer = Some(tcp.peer);
        self.report.local = tcp.local;
        self.report.num_connects += 1;
        self.listener.event(&Event::Connected {
            host: request.target.host(),
            peer: tcp.peer,
            local: self.report.local,
            fast_open: tcp.fast_open,
        });
    }

    pub(super) fn record_offer(&mut self, offer: &ConnectOptions) {
        if let Some(session) = &offer.session {
            let early_data = offer.early_data && session.early_data_capable();
            self.listener.event(&Event::Resuming { early_data });
        }
    }

    pub(super) fn record_secured(&mut self, stream: &TlsStream<TcpStream>) {
        if stream.is_complete() {
            self.report.marks.secured = Some(Instant::now());
            self.listener.event(&Event::Secured(&stream.facts()));
        }
    }

    /// Exchanges request and response over TCP, and ends the connection.
    pub(super) async fn over_tcp(
        &mut self,
        stream: Stream<TcpStream>,
        request: &Request,
        connecting: &ConnectLimit,
        addresses: &[SocketAddr],
    ) -> Result<TcpOutcome, ClientError> {
        let http2 = match &stream {
            Stream::Tls(tls) => tls.facts().alpn.as_deref() == Some(b"h2"),
            Stream::Plain(_) => false,
        };
        let stream = SharedStream::new(stream);
        self.stream = Some(stream.clone());
        let mut exchange = Exchange::open(stream.clone(), http2).await?;
        let result = self.exchange(&mut exchange, request, connecting, addresses).await;
        self.record_tcp();
        match &result {
            Err(_) | Ok(TcpOutcome::Unanswered(_)) => return self.map_connect_errors(result),
            Ok(TcpOutcome::Ended(outcome)) => {
                self.report.marks.end = Some(Instant::now());
                self.is_delivered = matches!(outcome, Outcome::Done);
            }
        }
        let mut sessions = exchange.close(self.ticket_timeout(&stream)).await;
        self.sessions.append(&mut sessions);
        self.listener.event(&Event::Closed);
        result
    }

    /// Sends the request, again if it was too early, and passes the response to the listener.
    async fn exchange(
        &mut self,
        exchange: &mut Exchange<TcpStream>,
        request: &Request,
        connecting: &ConnectLimit,
        addresses: &[SocketAddr],
    ) -> Result<TcpOutcome, ClientError> {
        let stream = exchange.stream();
        let mut is_retry = false;
        loop {
            self.note_request(request, exchange.version())?;
            let was_complete = stream.is_complete();
            let handshake_timeout = async {
                match connecting.deadline.filter(|_| !was_complete) {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
                if stream.is_complete() {
                    std::future::pending::<()>().await;
                }
            };
            let unanswered = async {
                match was_complete {
                    true => std::future::pending().await,
                    false => self.second_connection(&stream, request, addresses).await,
                }
            };
            let response = tokio::select! {
                biased;
                response = exchange.send(request) => response,
                second = unanswered => return Ok(TcpOutcome::Unanswered(second)),
                () = handshake_timeout => return Err(connecting.timeout_error()),
            };
            let (head, mut body) = match response {
                // The server was closing after its 425. An idempotent request is sent once more
                // (RFC 9110 section 9.2.2).
                Err(_)
                    if is_retry && !stream.response_started() && request.method.is_idempotent() =>
                {
                    let why = "the connection of the 425 was closed";
                    return Ok(TcpOutcome::Ended(Outcome::Retry(why)));
                }
                response => response?,
            };
            if let (false, Some(facts)) = (was_complete, stream.facts()) {
                self.listener.event(&Event::Secured(&facts));
            }
            let early_data = match stream.facts() {
                Some(facts) if !was_complete => facts.early_data,
                _ => EarlyData::NotOffered,
            };
            // This also applies to refused early data: a server that cannot record the flight
            // responds 425 to all requests of the connection.
            let was_early = early_data != EarlyData::NotOffered;
            if !self.retried && is_retryable_425(head.status, was_early) {
                self.listener.event(&Event::ResponseHead(&head.raw));
                let drained = discard(TcpBody(exchange, &mut body)).await;
                let was_refused = early_data == EarlyData::Refused;
                if !drained || was_refused || !exchange.is_reusable().await {
                    let why = "425: too early; on a new connection";
                    return Ok(TcpOutcome::Ended(Outcome::Retry(why)));
                }
                self.report.retries += 1;
                self.retried = true;
                let why = "425: too early; on the same connection after the handshake";
                self.listener.event(&Event::Retrying(why));
                is_retry = true;
                continue;
            }
            let delivered = self.deliver(head, TcpBody(exchange, &mut body), request).await;
            return delivered.map(TcpOutcome::Ended);
        }
    }

    /// Copies the statistics of the connection into the report.
    pub(super) fn record_tcp(&mut self) {
        let Some(stream) = &self.stream else { return };
        let counters = stream.counters();
        let marks = &mut self.report.marks;
        marks.sent = counters.sent.or(marks.sent);
        marks.secured = marks.secured.or(counters.secured);
        marks.first_byte = counters.first_byte.or(marks.first_byte);
        self.report.facts = stream.facts();
        self.report.early_bytes = stream.early_bytes();
        self.report.tcp = stream.with_socket(TcpInfo::of);
        self.report.quic = None;
    }

    /// With TCP Fast Open, the first write reports a refused connection; this is still a connection
    /// error.
    pub(super) fn map_connect_errors<T>(
        &self,
        result: Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        use std::io::ErrorKind as Kind;
        result.map_err(|error| match (error, self.report.peer) {
            (ClientError::Tls(TlsError::Io(source)), Some(address)) => match source.kind() {
                Kind::ConnectionRefused | Kind::HostUnreachable | Kind::NetworkUnreachable => {
                    ClientError::Connect { address, source }
                }
                // The stream may have passed on a TLS error.
                _ => match tls_error(source) {
                    Ok(error) => ClientError::Tls(error),
                    Err(source) => ClientError::Tls(TlsError::Io(source)),
                },
            },
            (error, _) => error,
        })
    }

    fn ticket_timeout(&self, stream: &SharedStream<TcpStream>) -> Duration {
        match (&self.client.config.jar, &self.report.tcp, stream.facts()) {
            (Some(_), Some(tcp), Some(facts))
                if facts.version == Some(Version::Tls13) && self.sessions.is_empty() =>
            {
                match facts.early_data {
                    // Tickets follow the client's Finished, after the response.
                    EarlyData::Accepted => EARLY_TICKET_TIMEOUT,
                    _ => (2 * tcp.rtt).clamp(MIN_TICKET_TIMEOUT, MAX_TICKET_TIMEOUT),
                }
            }
            _ => Duration::ZERO,
        }
    }
}
