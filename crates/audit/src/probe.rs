//! What checks use: tickets, flights, requests, the witness.

use std::cell::OnceCell;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use firstflight_first_flight::{
    Driver, Ended, Entropy, Event, FirstFlight, FlightPlan, Hello, Ticket,
};

pub(crate) use crate::exchange::{Exchange, Failure, Reception, Stop};
use crate::http::Response;
use crate::http3;
use crate::target::Node;
use crate::{AuditError, Settings, Target, Verdict};

/// The results of a full handshake and a request.
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
        exchange.complete_and_send(&request(settings, "GET", &nonce(), &[]));
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

    /// The response to a request that no server forwards, over TCP.
    pub(crate) fn response_to_invalid(&self) -> Option<Response> {
        if self.settings.http3 {
            return None;
        }
        let mut exchange = self.send(&self.build(FlightPlan::full(self.hello()))).ok()?;
        exchange.expect_finished(self.settings.limit).ok()?;
        exchange.complete_and_send(INVALID_REQUEST);
        let response = exchange.response(self.settings.early_limit);
        exchange.close();
        response.map(|(response, _)| response)
    }

    /// Whether tickets allow early data.
    pub(crate) fn offers_early_data(&self) -> bool {
        self.facts.tickets.iter().any(|ticket| ticket.max_early_data.is_some_and(|max| max > 0))
    }

    /// Whether a GET in fresh early data gets its response before the client's Finished, in three
    /// of three attempts. If so, a copy without a response is treated differently: it waits.
    pub(crate) fn responds_early(&self) -> bool {
        let fresh = || -> Result<bool, Stop> {
            let mut exchange = self.send(&self.build(self.early("GET", &nonce())?))?;
            let reception = exchange.reception(self.settings.limit);
            let response = exchange.response(self.settings.early_limit);
            exchange.complete();
            exchange.close();
            Ok(reception.early_data
                && response.is_some_and(|(response, before)| before && response.executed()))
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

    /// A ClientHello for another server name.
    pub(crate) fn hello_to(&self, host: &str) -> Hello {
        hello(self.settings, host)
    }

    /// A ticket from a full handshake: one that allows early data, if there is any.
    pub(crate) fn ticket(&self) -> Result<Ticket, Stop> {
        self.ticket_for(self.hello())
    }

    /// A ticket from a full handshake with this ClientHello.
    pub(crate) fn ticket_for(&self, hello: Hello) -> Result<Ticket, Stop> {
        let flight = self.build(FlightPlan::full(hello));
        let mut exchange = self.send(&flight)?;
        exchange.expect_finished(self.settings.limit)?;
        // Some servers send tickets with the first response only.
        exchange.complete_and_send(&self.request("GET", &nonce()));
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

    /// The verdict on a flight with a fault: `accepted` if its early data was accepted, otherwise a
    /// pass, provided that a flight without the fault is accepted.
    pub(crate) fn judge_refusal(
        &self,
        reception: &Reception,
        accepted: (Verdict, &'static str),
    ) -> Result<(Verdict, &'static str), Stop> {
        let summary = match (reception.was_ended()?, reception.early_data) {
            (true, _) => "the handshake was ended",
            (false, true) => return Ok(accepted),
            (false, false) => "early data was refused",
        };
        self.expect_accepted()?;
        Ok((Verdict::Pass, summary))
    }

    /// Fails unless the early data of a flight without faults is accepted. Otherwise the refusal of
    /// a flight with a fault shows nothing.
    pub(crate) fn expect_accepted(&self) -> Result<(), Stop> {
        let mut exchange = self.send(&self.build(self.early("GET", &nonce())?))?;
        exchange.expect_early_data(self.settings.limit)?;
        exchange.complete();
        exchange.close();
        Ok(())
    }

    /// Sends a flight, or a copy of one.
    pub(crate) fn send(&self, flight: &FirstFlight) -> Result<Exchange, Stop> {
        let link = self.target.connect();
        let link = link.map_err(|error| Stop(format!("cannot connect any more: {error}")))?;
        Ok(Exchange::new(Driver::start(flight, link), self.settings.http3))
    }

    /// Sends a flight with TCP Fast Open.
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

    /// Sends a copy of a flight from a local address, over QUIC.
    pub(crate) fn copy_from(
        &self,
        local: SocketAddr,
        flight: &FirstFlight,
    ) -> Result<Exchange, io::Error> {
        let link = self.target.connect_from(local)?;
        Ok(Exchange::new(Driver::start_copy(flight, link), self.settings.http3))
    }

    /// How long the response to a copy may take. Over QUIC there is none if the server assigns the
    /// copy's packets to the original's connection.
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
        exchange.complete_and_send(&self.request("GET", nonce));
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

/// Neither target nor version are valid (RFC 9112 section 3).
const INVALID_REQUEST: &[u8] = b"GET / \x01 HTTP/9\r\n\r\n";

const USER_AGENT: &str = "firstflight-audit";

/// How long the response to a copy over QUIC may take.
const MAX_COPY_WAIT: Duration = Duration::from_secs(3);

/// How long tickets may follow the first response.
const SETTLE_TIME: Duration = Duration::from_millis(200);
