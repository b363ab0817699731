//! A connection as its packets and its server show it.

use std::fmt;

use firstflight_packets::{EarlyData, FlowFacts, Kind, NamedGroup, TlsFacts};

use crate::server::{NAME_LENGTH, NAME_PREFIX, RecordedConnection, Request};

/// The outcome of early data, by the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EarlyDataOutcome {
    /// None was sent.
    None,
    Accepted,
    Refused,
    /// The connection ended too early to tell.
    Unknown,
}

/// A connection as its packets and its server show it.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) facts: FlowFacts,
    /// The names of the recording server's tickets that the client offered.
    pub(crate) offered: Vec<String>,
    /// What the recording server recorded; `None` for other servers.
    pub(crate) recorded: Option<RecordedConnection>,
}

impl Connection {
    pub(crate) fn new(facts: FlowFacts) -> Self {
        let offered = facts.first_flight.stream().map(ticket_names).unwrap_or_default();
        Self { facts, offered, recorded: None }
    }

    pub(crate) fn tls(&self) -> Option<&TlsFacts> {
        self.facts.tls.as_ref()
    }

    pub(crate) fn early_data(&self) -> EarlyDataOutcome {
        match self.tls().map(|tls| tls.early.verdict) {
            Some(EarlyData::Accepted) => EarlyDataOutcome::Accepted,
            Some(EarlyData::Refused) => EarlyDataOutcome::Refused,
            Some(EarlyData::NotOffered) | None => EarlyDataOutcome::None,
            Some(EarlyData::Unknown(_)) => EarlyDataOutcome::Unknown,
        }
    }

    /// Whether the ClientHello announces early data, even if none follows.
    pub(crate) fn announced_early_data(&self) -> bool {
        self.tls().is_some_and(|tls| tls.early.extension)
    }

    pub(crate) fn resumed(&self) -> bool {
        self.tls().is_some_and(|tls| tls.kind == Some(Kind::Resumed))
    }

    pub(crate) fn group(&self) -> Option<NamedGroup> {
        self.tls()?.group
    }

    pub(crate) fn requests(&self) -> &[Request] {
        self.recorded.as_ref().map_or(&[], |recorded| &recorded.requests)
    }

    /// Whether it carried a request for a path.
    pub(crate) fn requested(&self, path: &str) -> bool {
        self.requests().iter().any(|request| request.target == path)
    }

    /// The number of the connection, which is part of its tickets' names.
    pub(crate) fn number(&self) -> Option<usize> {
        Some(self.recorded.as_ref()?.number)
    }
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number() {
            Some(number) => write!(f, "connection {number}: ")?,
            None => write!(f, "connection from port {}: ", self.facts.client.port())?,
        }
        let Some(tls) = self.tls() else { return write!(f, "no TLS") };
        write!(f, "{} ", tls.server_name.as_deref().unwrap_or("-"))?;
        match self.facts.label() {
            Ok(label) => write!(f, "{label}")?,
            Err(why) => write!(f, "{why}")?,
        }
        if tls.early.extension {
            write!(f, " ({} early records)", tls.early.records)?;
        }
        if let Some(group) = tls.group {
            write!(f, ", {group}")?;
        }
        if let Some(alpn) = &tls.alpn {
            write!(f, ", {alpn}")?;
        }
        if tls.hello_retry_requests > 0 {
            write!(f, ", HelloRetryRequest")?;
        }
        for ticket in &self.offered {
            write!(f, ", ticket {ticket}")?;
        }
        for request in self.requests() {
            let when = match (request.early_data, request.body_early) {
                (true, true) => " early with its body",
                (true, false) => " early",
                _ => "",
            };
            write!(f, "; {} {}{when}: {}", request.method, request.target, request.status)?;
        }
        if let Some(error) = self.recorded.as_ref().and_then(|recorded| recorded.error.as_ref()) {
            write!(f, "; {error}")?;
        }
        Ok(())
    }
}

/// The names of the tickets in a first flight.
fn ticket_names(flight: &[u8]) -> Vec<String> {
    let named = flight.windows(NAME_LENGTH).filter(|bytes| bytes.starts_with(NAME_PREFIX));
    named.map(|bytes| String::from_utf8_lossy(&bytes[NAME_PREFIX.len()..]).into_owned()).collect()
}

/// Adds the recordings of servers to the connections of the packets.
pub(crate) fn with_recordings(
    mut connections: Vec<Connection>,
    recorded: Vec<RecordedConnection>,
) -> Vec<Connection> {
    for recorded in recorded {
        let client = recorded.client;
        let fits = connections
            .iter_mut()
            .find(|connection| connection.facts.client == client && connection.recorded.is_none());
        fits.unwrap_or_else(|| panic!("no packets from {client}")).recorded = Some(recorded);
    }
    connections
}
