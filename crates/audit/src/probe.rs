//! What checks do with a server: connections, tickets, flights, requests, the witness.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use firstflight_first_flight::{
    Alert, Driver, Ended, Entropy, Event, FirstFlight, FlightPlan, Hello, Ticket,
};

use crate::http::{self, Response};
use crate::http3;
use crate::target::Node;
use crate::{AuditError, Settings, Target};

/// Why a check cannot go on. It is inconclusive then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stop(pub(crate) String);

/// What a full handshake and a request have shown.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// Tickets of the handshake.
    pub(crate) tickets: Vec<Ticket>,
    pub(crate) suite: &'static str,
    pub(crate) alpn: Option<String>,
    pub(crate) response: Response,
}

/// A server under test.
pub(crate) struct Probe<'a> {
    target: &'a dyn Target,
    /// Other addresses of the server.
    pub(crate) others: &'a [Node<'a>],
    pub(crate) settings: &'a Settings,
    pub(crate) facts: Facts,
    responds_early: OnceCell<bool>,
}

impl<'a> Probe<'a> {
    /// Makes a full handshake and a request.
    pub(crate) fn survey(
        target: &'a dyn Target,
        others: &'a [Node<'a>],
        settings: &'a Settings,
    ) -> Result<Self, AuditError> {
        let link = target.connect().map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => AuditError::Slow,
            _ => AuditError::Down(error.to_string()),
        })?;
        let flight = FlightPlan::full(hello(settings, &settings.host));
        let flight = flight.build(target.now(), &Entropy::system());
        let mut exchange = Exchange::new(Driver::start(&flight, link), settings.http3);
        let reception = exchange.reception(settings.limit);
        match &reception.ended {
            None => {}
            Some(Failure::Alert(alert)) if alert.name() == "protocol_version" => {
                return Err(AuditError::OldVersion);
            }
            Some(Failure::Ended(Ended::Protocol(error))) => {
                use firstflight_first_flight::ProtocolError::{NotTls, Version};
                return Err(match error {
                    Version if settings.http3 => AuditError::QuicVersion,
                    NotTls => AuditError::NoTls,
                    Version => AuditError::OldVersion,
                    other => AuditError::Handshake(other.to_string()),
                });
            }
            Some(Failure::Ended(Ended::TimedOut)) if settings.http3 => {
                return Err(AuditError::NoQuic);
            }
            Some(Failure::Ended(Ended::TimedOut)) => return Err(AuditError::Slow),
            Some(Failure::Ended(refused @ Ended::Refused)) => {
                return Err(AuditError::Down(refused.to_string()));
            }
            Some(failure) => return Err(AuditError::Handshake(failure.to_string())),
        }
        exchange.finish(&request(settings, "GET", &nonce(), &[]));
        let Some((response, _)) = exchange.response(settings.limit) else {
            return Err(AuditError::NoResponse);
        };
        if let (300..400, Some(location)) = (response.status, &response.location) {
            return Err(AuditError::Redirects(location.clone()));
        }
        if settings.witness && response.field("executions").is_none() {
            return Err(AuditError::NoWitness);
        }
        // Tickets may follow the response.
        let _ = exchange.driver.wait_for(SETTLE_TIME, |_| false);
        let tickets = exchange.tickets();
        let suite = match reception.suite {
            Some(suite) => match suite.id() {
                0x1301 => "TLS_AES_128_GCM_SHA256",
                0x1302 => "TLS_AES_256_GCM_SHA384",
                _ => "TLS_CHACHA20_POLY1305_SHA256",
            },
            None => "no suite",
        };
        let facts = Facts { tickets, suite, alpn: reception.alpn, response };
        Ok(Self { target, others, settings, facts, responds_early: OnceCell::new() })
    }

    /// Whether tickets allow early data.
    pub(crate) fn offers_early_data(&self) -> bool {
        self.facts.tickets.iter().any(|ticket| ticket.max_early_data.is_some_and(|max| max > 0))
    }

    /// Whether a GET in fresh early data gets its response before the client's Finished, three times
    /// of three. If so, a copy without a response is treated differently, and waits.
    pub(crate) fn responds_early(&self) -> bool {
        let fresh = || -> Result<bool, Stop> {
            let mut exchange = self.send(&self.build(self.early("GET", &nonce())?))?;
            let reception = exchange.reception(self.settings.limit);
            let response = exchange.response(self.settings.early_limit);
            exchange.complete();
            exchange.close();
            Ok(reception.early_data && response.is_some_and(|(it, before)| before && it.executed()))
        };
        *self.responds_early.get_or_init(|| (0..3).all(|_| fresh() == Ok(true)))
    }

    pub(crate) fn now(&self) -> Duration {
        self.target.now()
    }

    pub(crate) fn wait(&self, time: Duration) {
        self.target.wait(time);
    }

    pub(crate) fn hello(&self) -> Hello {
        hello(self.settings, &self.settings.host)
    }

    /// The same under another name.
    pub(crate) fn hello_to(&self, host: &str) -> Hello {
        hello(self.settings, host)
    }

    /// A ticket from a full handshake, which allows early data if any does.
    pub(crate) fn ticket(&self) -> Result<Ticket, Stop> {
        self.ticket_for(self.hello())
    }

    /// The same from a handshake with this offer.
    pub(crate) fn ticket_for(&self, hello: Hello) -> Result<Ticket, Stop> {
        let flight = self.build(FlightPlan::full(hello));
        let mut exchange = self.send(&flight)?;
        exchange.expect_finished(self.settings.limit)?;
        // Some servers send tickets with the first response only.
        exchange.finish(&self.request("GET", &nonce()));
        let has_ticket = |event: &Event| matches!(event, Event::Ticket(_));
        let _ = exchange.driver.wait_for(self.settings.limit, has_ticket);
        let mut tickets = exchange.tickets();
        exchange.close();
        let best = tickets.iter().position(|ticket| ticket.max_early_data.is_some());
        match tickets.is_empty() {
            true => Err(Stop("a further full handshake brought no ticket".to_owned())),
            false => Ok(tickets.swap_remove(best.unwrap_or(0))),
        }
    }

    pub(crate) fn build(&self, plan: FlightPlan) -> FirstFlight {
        plan.build(self.now(), &Entropy::system())
    }

    /// A resumption with a new ticket and a request in early data.
    pub(crate) fn early(&self, method: &str, nonce: &str) -> Result<FlightPlan, Stop> {
        let ticket = self.ticket()?;
        let request = self.request(method, nonce);
        Ok(FlightPlan::resume(self.hello(), &ticket).early_data(&request))
    }

    /// Sends a flight, or a copy of one.
    pub(crate) fn send(&self, flight: &FirstFlight) -> Result<Exchange, Stop> {
        let link = self.target.connect();
        let link = link.map_err(|error| Stop(format!("cannot connect any more: {error}")))?;
        Ok(Exchange::new(Driver::start(flight, link), self.settings.http3))
    }

    /// The same with TCP Fast Open.
    pub(crate) fn send_with_fast_open(&self, flight: &FirstFlight) -> io::Result<Exchange> {
        let link = self.target.connect_with_fast_open()?;
        Ok(Exchange::new(Driver::start(flight, link), self.settings.http3))
    }

    /// Sends a copy of a flight, as an attacker can.
    pub(crate) fn copy(&self, flight: &FirstFlight) -> Result<Exchange, Stop> {
        let link = self.target.connect();
        let link = link.map_err(|error| Stop(format!("cannot connect any more: {error}")))?;
        Ok(Exchange::new(Driver::start_copy(flight, link), self.settings.http3))
    }

    /// Sends a flight, or a copy of one, to another address of the server.
    pub(crate) fn send_to(
        &self,
        node: &Node<'_>,
        flight: &FirstFlight,
    ) -> Result<Exchange, io::Error> {
        let link = node.target.connect()?;
        Ok(Exchange::new(Driver::start_copy(flight, link), self.settings.http3))
    }

    /// The same from a local address, over QUIC.
    pub(crate) fn copy_from(
        &self,
        local: SocketAddr,
        flight: &FirstFlight,
    ) -> Result<Exchange, io::Error> {
        let link = self.target.connect_from(local)?;
        Ok(Exchange::new(Driver::start_copy(flight, link), self.settings.http3))
    }

    /// How long the response to a copy may take. Over QUIC there is none, if the server takes the copy's
    /// packets for ones of the original's connection.
    pub(crate) fn copy_limit(&self) -> Duration {
        match self.settings.http3 {
            true => self.settings.limit.min(MAX_COPY_WAIT),
            false => self.settings.limit,
        }
    }

    pub(crate) fn request(&self, method: &str, nonce: &str) -> Vec<u8> {
        request(self.settings, method, nonce, &[])
    }

    pub(crate) fn request_with(&self, nonce: &str, fields: &[(&str, &str)]) -> Vec<u8> {
        request(self.settings, "GET", nonce, fields)
    }

    /// How often the witness has executed requests with this nonce: a request after a full handshake
    /// executes it once more, and its response has the count. `None` without a witness.
    pub(crate) fn executions(&self, nonce: &str) -> Result<Option<u64>, Stop> {
        if !self.settings.witness {
            return Ok(None);
        }
        let mut exchange = self.send(&self.build(FlightPlan::full(self.hello())))?;
        exchange.expect_finished(self.settings.limit)?;
        exchange.finish(&self.request("GET", nonce));
        let response = exchange.response(self.settings.limit);
        exchange.close();
        let count = response.and_then(|(response, _)| response.field("executions")?.as_u64());
        match count.and_then(|count| count.checked_sub(1)) {
            Some(count) => Ok(Some(count)),
            None => Err(Stop("the witness did not respond with its count".to_owned())),
        }
    }
}

/// A value that no other request has.
pub(crate) fn nonce() -> String {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the system has random numbers");
    hex::encode(bytes)
}

/// A connection id that no other flight has.
pub(crate) fn connection_id() -> [u8; 8] {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the system has random numbers");
    bytes
}

fn hello(settings: &Settings, host: &str) -> Hello {
    match settings.http3 {
        true => Hello::new(host, &["h3"]).over_quic(&http3::CONTROL_STREAM),
        false => Hello::new(host, &["http/1.1"]),
    }
}

fn request(settings: &Settings, method: &str, nonce: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let separator = if settings.path.contains('?') { '&' } else { '?' };
    let path = format!("{}{separator}firstflight={nonce}", settings.path);
    if settings.http3 {
        let mut all = vec![("user-agent", USER_AGENT)];
        all.extend_from_slice(fields);
        return http3::request(method, &settings.authority, &path, &all);
    }
    let mut text = format!(
        "{method} {path} HTTP/1.1\r\nHost: {}\r\nUser-Agent: {USER_AGENT}\r\n",
        settings.authority
    );
    for (name, value) in fields {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if !matches!(method, "GET" | "HEAD") {
        text.push_str("Content-Length: 0\r\n");
    }
    text.push_str("\r\n");
    text.into_bytes()
}

/// Why a handshake was not completed by the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    Alert(Alert),
    Ended(Ended),
}

impl Failure {
    /// Whether the server ended the handshake, and said so.
    pub(crate) fn is_of_server(&self) -> bool {
        use firstflight_first_flight::ProtocolError::Closed;
        matches!(self, Self::Alert(_) | Self::Ended(Ended::Protocol(Closed { .. })))
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Alert(alert) => write!(f, "the server sent the alert {}", alert.name()),
            Self::Ended(ended) => ended.fmt(f),
        }
    }
}

/// How a server received a flight.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reception {
    pub(crate) retried: bool,
    pub(crate) resumed: bool,
    pub(crate) early_data: bool,
    pub(crate) alpn: Option<String>,
    pub(crate) suite: Option<firstflight_first_flight::Suite>,
    /// The server's certificates, as it sent them.
    pub(crate) certificate: Vec<u8>,
    pub(crate) ended: Option<Failure>,
}

impl std::fmt::Display for Reception {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.ended, self.early_data, self.resumed, self.retried) {
            (Some(failure), ..) => failure.fmt(f),
            (None, true, ..) => f.write_str("early data accepted"),
            (None, _, true, true) => f.write_str("HelloRetryRequest, early data refused"),
            (None, _, true, false) => f.write_str("resumed, early data refused"),
            (None, _, false, _) => f.write_str("full handshake, ticket not accepted"),
        }
    }
}

/// A connection with requests and responses.
pub(crate) struct Exchange {
    pub(crate) driver: Driver,
    data: Vec<u8>,
    /// Whether the data, as far as it was taken, started before our Finished.
    before_finished: Option<bool>,
    /// Over HTTP/3: streams of responses.
    streams: Option<Streams>,
}

/// The streams of responses over HTTP/3.
#[derive(Default)]
struct Streams {
    open: BTreeMap<u64, ResponseStream>,
    /// The stream of the next response.
    next: u64,
}

/// What has arrived on a stream.
#[derive(Default)]
struct ResponseStream {
    data: Vec<u8>,
    before_finished: Option<bool>,
    ended: bool,
}

impl Exchange {
    fn new(driver: Driver, http3: bool) -> Self {
        let streams = http3.then(Streams::default);
        Self { driver, data: Vec::new(), before_finished: None, streams }
    }

    /// Waits until the server's Finished, or the failure of the handshake.
    pub(crate) fn reception(&mut self, limit: Duration) -> Reception {
        let mut found = Reception::default();
        let outcome = self.driver.wait_for(limit, |event| match event {
            Event::HelloRetryRequest => {
                found.retried = true;
                false
            }
            Event::ServerHello { resumed, suite } => {
                found.resumed = *resumed;
                found.suite = Some(*suite);
                false
            }
            Event::EncryptedExtensions { early_data, alpn } => {
                found.early_data = *early_data;
                found.alpn.clone_from(alpn);
                false
            }
            Event::Certificate(content) => {
                found.certificate.clone_from(content);
                false
            }
            Event::Finished | Event::Alert(_) => true,
            _ => false,
        });
        found.ended = match outcome {
            Ok(Event::Alert(alert)) => Some(Failure::Alert(alert)),
            Ok(_) => None,
            Err(ended) => Some(Failure::Ended(ended)),
        };
        found
    }

    /// The same for a handshake that has to succeed.
    pub(crate) fn expect_finished(&mut self, limit: Duration) -> Result<Reception, Stop> {
        let found = self.reception(limit);
        match &found.ended {
            None => Ok(found),
            Some(failure) => Err(Stop(format!("a handshake without faults failed: {failure}"))),
        }
    }

    /// Completes the handshake.
    pub(crate) fn complete(&mut self) {
        self.driver.connection().finish();
        self.driver.flush();
    }

    /// Completes the handshake, and sends a request.
    pub(crate) fn finish(&mut self, request: &[u8]) {
        self.driver.connection().finish();
        self.driver.connection().send(request);
        self.driver.flush();
    }

    /// The next response, and whether it started before our Finished. `None` if it is not whole in
    /// this time, or something else comes: the limit is for all its parts together.
    pub(crate) fn response(&mut self, limit: Duration) -> Option<(Response, bool)> {
        if let Some(streams) = &mut self.streams {
            return streams.response(&mut self.driver, limit);
        }
        let end = self.driver.now() + limit;
        loop {
            match http::parse(&self.data) {
                Ok(Some((response, length))) => {
                    self.data.drain(..length);
                    let before = self.before_finished.unwrap_or(false);
                    if self.data.is_empty() {
                        self.before_finished = None;
                    }
                    // 100 (Continue), 103 (Early Hints)
                    if response.status >= 200 {
                        return Some((response, before));
                    }
                    continue;
                }
                Ok(None) => {}
                Err(http::NotHttp) => return None,
            }
            let wanted =
                |event: &Event| matches!(event, Event::ApplicationData { .. } | Event::Alert(_));
            match self.driver.wait_for(left(&self.driver, end), wanted) {
                Ok(Event::ApplicationData { data, before_finished, .. }) => {
                    self.before_finished.get_or_insert(before_finished);
                    self.data.extend_from_slice(&data);
                }
                _ => return None,
            }
        }
    }

    /// All tickets so far.
    pub(crate) fn tickets(&self) -> Vec<Ticket> {
        let events = self.driver.events().iter();
        events
            .filter_map(|timed| match &timed.event {
                Event::Ticket(ticket) => Some(ticket.clone()),
                _ => None,
            })
            .collect()
    }

    /// Says that it ends, if the handshake is complete.
    pub(crate) fn close(&mut self) {
        self.driver.connection().close();
        self.driver.flush();
    }
}

impl Streams {
    /// The response on the next stream of ours (RFC 9114 section 4.1).
    fn response(&mut self, driver: &mut Driver, limit: Duration) -> Option<(Response, bool)> {
        let end = driver.now() + limit;
        loop {
            if self.open.get(&self.next).is_some_and(|stream| stream.ended) {
                let stream = self.open.remove(&self.next)?;
                self.next += 4;
                let before_finished = stream.before_finished.unwrap_or(false);
                return Some((http3::parse(&stream.data).ok()?, before_finished));
            }
            let wanted = |event: &Event| {
                matches!(
                    event,
                    Event::ApplicationData { .. } | Event::StreamReset { .. } | Event::Alert(_)
                )
            };
            match driver.wait_for(left(driver, end), wanted) {
                Ok(Event::ApplicationData { stream, data, end, before_finished }) => {
                    // Other streams are the server's own.
                    if stream % 4 == 0 {
                        let stream = self.open.entry(stream).or_default();
                        stream.data.extend_from_slice(&data);
                        stream.before_finished.get_or_insert(before_finished);
                        stream.ended = end;
                    }
                }
                Ok(Event::StreamReset { stream, .. }) if stream != self.next => {}
                Ok(Event::StreamReset { .. }) => {
                    self.next += 4;
                    return None;
                }
                _ => return None,
            }
        }
    }
}

/// How long it is until this time.
fn left(driver: &Driver, end: Duration) -> Duration {
    end.saturating_sub(driver.now())
}

const USER_AGENT: &str = "firstflight-audit";

/// How long the response to a copy over QUIC may take.
const MAX_COPY_WAIT: Duration = Duration::from_secs(3);

/// How long tickets may follow the first response.
const SETTLE_TIME: Duration = Duration::from_millis(200);
