//! A connection as its packets and its server saw it.

use std::fmt;

use firstflight_packets::{EarlyData, FlowFacts, Kind, NamedGroup, TlsFacts};

use crate::named_tickets::{NAME, TICKET};
use crate::witness::{Heard, Request};

/// What became of early data, from the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Early {
    /// None was sent.
    None,
    Accepted,
    Refused,
    /// The connection ended too early to tell.
    Unknown,
}

/// A connection as its packets and its server saw it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) facts: FlowFacts,
    /// Names of the witness's tickets that the client offered.
    pub(crate) offered: Vec<String>,
    /// What the witness heard; of another server's connections nothing.
    pub(crate) heard: Option<Heard>,
}

impl Seen {
    pub(crate) fn new(facts: FlowFacts) -> Self {
        let offered = facts.first_flight.stream().map(tickets).unwrap_or_default();
        Self { facts, offered, heard: None }
    }

    pub(crate) fn tls(&self) -> Option<&TlsFacts> {
        self.facts.tls.as_ref()
    }

    pub(crate) fn early(&self) -> Early {
        match self.tls().map(|tls| tls.early.verdict) {
            Some(EarlyData::Accepted) => Early::Accepted,
            Some(EarlyData::Refused) => Early::Refused,
            Some(EarlyData::NotOffered) | None => Early::None,
            Some(EarlyData::Unknown(_)) => Early::Unknown,
        }
    }

    /// The ClientHello says that early data follows, whether or not it does.
    pub(crate) fn announced_early(&self) -> bool {
        self.tls().is_some_and(|tls| tls.early.extension)
    }

    pub(crate) fn resumed(&self) -> bool {
        self.tls().is_some_and(|tls| tls.kind == Some(Kind::Resumed))
    }

    pub(crate) fn group(&self) -> Option<NamedGroup> {
        self.tls()?.group
    }

    pub(crate) fn requests(&self) -> &[Request] {
        self.heard.as_ref().map_or(&[], |heard| &heard.requests)
    }

    /// Whether a request for this came on it.
    pub(crate) fn asked(&self, path: &str) -> bool {
        self.requests().iter().any(|request| request.target == path)
    }

    /// The name of the connection in those of its tickets.
    pub(crate) fn number(&self) -> Option<usize> {
        Some(self.heard.as_ref()?.number)
    }
}

impl fmt::Display for Seen {
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
            let when = match (request.early, request.body_early) {
                (true, true) => " early with its body",
                (true, false) => " early",
                _ => "",
            };
            write!(f, "; {} {}{when}: {}", request.method, request.target, request.status)?;
        }
        if let Some(error) = self.heard.as_ref().and_then(|heard| heard.error.as_ref()) {
            write!(f, "; {error}")?;
        }
        Ok(())
    }
}

/// The names of tickets in a client's first bytes.
fn tickets(flight: &[u8]) -> Vec<String> {
    let named = flight.windows(NAME).filter(|bytes| bytes.starts_with(TICKET));
    named.map(|bytes| String::from_utf8_lossy(&bytes[TICKET.len()..]).into_owned()).collect()
}

/// The packets' connections with what witnesses heard on them.
pub(crate) fn joined(mut seen: Vec<Seen>, heard: Vec<Heard>) -> Vec<Seen> {
    for heard in heard {
        let client = heard.client;
        let fits = seen.iter_mut().find(|seen| seen.facts.client == client && seen.heard.is_none());
        fits.unwrap_or_else(|| panic!("no packets from {client}")).heard = Some(heard);
    }
    seen
}
