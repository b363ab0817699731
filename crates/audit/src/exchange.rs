//! A connection of a check: the handshake, and requests with their responses.

use std::collections::BTreeMap;
use std::time::Duration;

use firstflight_first_flight::{Alert, Driver, Ended, Event, Ticket};

use crate::http::{self, Response};
use crate::http3;

/// Why a check cannot continue. It is then inconclusive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stop(pub(crate) String);

/// Why the server did not complete a handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    Alert(Alert),
    Ended(Ended),
}

impl Failure {
    /// Whether the server ended the handshake with an alert or a QUIC error.
    pub(crate) fn is_explicit(&self) -> bool {
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
    /// Whether it validated the client's address first, over QUIC.
    pub(crate) validated: bool,
    /// Whether it sent a HelloRetryRequest.
    pub(crate) retried: bool,
    pub(crate) resumed: bool,
    pub(crate) early_data: bool,
    pub(crate) alpn: Option<String>,
    pub(crate) suite: Option<firstflight_first_flight::Suite>,
    /// The server's certificates, as it sent them.
    pub(crate) certificate: Vec<u8>,
    pub(crate) ended: Option<Failure>,
}

impl Reception {
    /// Whether the server ended the handshake; over TCP it may close the connection without an
    /// alert. An error if the handshake failed for another reason, such as a missing response.
    pub(crate) fn was_ended(&self) -> Result<bool, Stop> {
        match &self.ended {
            None => Ok(false),
            Some(Failure::Ended(Ended::Closed)) => Ok(true),
            Some(failure) if failure.is_explicit() => Ok(true),
            Some(_) => Err(Stop(format!("the server neither went on nor ended: {self}"))),
        }
    }
}

impl std::fmt::Display for Reception {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.ended, self.early_data, self.resumed, self.retried) {
            (Some(Failure::Ended(Ended::TimedOut)), ..) if self.validated => {
                f.write_str("Retry: the server validates the client's address first")
            }
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
    /// Whether the start of `data` arrived before our Finished.
    before_finished: Option<bool>,
    /// The streams of responses, over HTTP/3.
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
    pub(crate) fn new(driver: Driver, http3: bool) -> Self {
        let streams = http3.then(Streams::default);
        Self { driver, data: Vec::new(), before_finished: None, streams }
    }

    /// Waits for the server's Finished, or until the handshake fails.
    pub(crate) fn reception(&mut self, limit: Duration) -> Reception {
        let mut found = Reception::default();
        let outcome = self.driver.wait_for(limit, |event| match event {
            Event::AddressValidation => {
                found.validated = true;
                false
            }
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

    /// As [`Self::reception`], but a failed handshake is an error.
    pub(crate) fn expect_finished(&mut self, limit: Duration) -> Result<Reception, Stop> {
        let found = self.reception(limit);
        match found.ended {
            None => Ok(found),
            Some(_) => Err(Stop(format!("a handshake without faults failed: {found}"))),
        }
    }

    /// As [`Self::expect_finished`], for a fresh first flight: refused early data is an error too.
    pub(crate) fn expect_early_data(&mut self, limit: Duration) -> Result<Reception, Stop> {
        let found = self.expect_finished(limit)?;
        match found.early_data {
            true => Ok(found),
            false => Err(Stop(format!("the server refused a fresh first flight: {found}"))),
        }
    }

    /// Completes the handshake.
    pub(crate) fn complete(&mut self) {
        self.driver.connection().finish();
        self.driver.flush();
    }

    /// Completes the handshake, and sends a request.
    pub(crate) fn complete_and_send(&mut self, request: &[u8]) {
        self.driver.connection().finish();
        self.driver.connection().send(request);
        self.driver.flush();
    }

    /// Returns the next response, and whether it started before our Finished. Returns `None` if it
    /// is not complete within `limit`, or if anything else arrives.
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
            match self.driver.wait_for(time_until(&self.driver, end), wanted) {
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

    /// Announces the end of the connection, if the handshake is complete.
    pub(crate) fn close(&mut self) {
        self.driver.connection().close();
        self.driver.flush();
    }
}

impl Streams {
    /// The response on our next stream (RFC 9114 section 4.1).
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
            match driver.wait_for(time_until(driver, end), wanted) {
                Ok(Event::ApplicationData { stream, data, end, before_finished }) => {
                    // Ignores streams that the server opened.
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

fn time_until(driver: &Driver, end: Duration) -> Duration {
    end.saturating_sub(driver.now())
}
