//! One connection to a server elsewhere, and what kernel and TLS say of it.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use firstflight_client::{HttpResponse, Request, Target, connect_tls, http_get};
use firstflight_packets::{FastOpen, Label, LabelKind, LabelTransport};
use firstflight_samples::{
    Connectors, HandshakeKind, HttpVersion, RequestedConnection, STALE_TICKET_AGE_S, Ticket,
    TicketPool, Times, expected_label, tls_version,
};
use firstflight_tls::{ConnectOptions, EarlyData, Version};

/// Calls one address of one server.
pub(super) struct Caller {
    connectors: Connectors,
    pub(super) target: Target,
    pub(super) address: SocketAddr,
    limit: Duration,
    tickets: RefCell<TicketPool<(Version, HttpVersion)>>,
}

/// What a connection got.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub times: Times,
    pub label: Label,
    /// The kernel's least RTT.
    pub min_rtt: Option<Duration>,
    /// Length of the response's content.
    pub bytes: usize,
    /// What the server calls itself.
    pub server: String,
    group: Option<&'static str>,
}

impl Outcome {
    /// What the connection is instead of what was requested; `None`: it is what was requested.
    pub(super) fn mismatch(&self, asked: &RequestedConnection) -> Option<String> {
        if self.label != expected_label(asked) {
            return Some(self.label.to_string());
        }
        let group = self.group.filter(|_| asked.version == Version::Tls13)?;
        (group != asked.group.name()).then(|| format!("{}, group {group}", self.label))
    }
}

/// A combination in words, to start a sentence on why it is left out.
pub(super) fn in_words(asked: &RequestedConnection) -> String {
    let tfo = if asked.tfo { " with TCP Fast Open" } else { "" };
    let (version, kind) = (asked.version.name().replace("TLSv", "TLS "), asked.kind);
    format!("{version} {kind}{tfo} over HTTP/{}, {}", asked.http, asked.group)
}

impl Caller {
    pub(super) fn new(
        connectors: Connectors,
        target: Target,
        address: SocketAddr,
        limit: Duration,
    ) -> Self {
        Self { connectors, target, address, limit, tickets: RefCell::default() }
    }

    /// Whether the server does this at all: its first connection may still fetch the TCP Fast Open
    /// cookie, so that there is a second.
    pub(super) async fn try_out(&self, asked: &RequestedConnection) -> Result<Outcome, String> {
        let mut why = String::new();
        for _ in 0..2 {
            let got = self.call(asked, &self.offer(asked).await?, &mut None).await?;
            match got.mismatch(asked) {
                None => return Ok(got),
                Some(mismatch) => why = format!("a first connection was {mismatch}"),
            }
        }
        Err(why)
    }

    /// What a connection of this kind brings along; fetches a ticket first if there is none.
    pub(super) async fn offer(
        &self,
        asked: &RequestedConnection,
    ) -> Result<ConnectOptions, String> {
        let mut offer =
            ConnectOptions { host: self.target.host().to_owned(), ..ConnectOptions::default() };
        if asked.kind == HandshakeKind::Full {
            return Ok(offer);
        }
        let ticket = match self.ticket(asked) {
            Some(ticket) => Some(ticket),
            None => {
                let full = RequestedConnection { kind: HandshakeKind::Full, ..*asked };
                self.call(&full, &offer, &mut None).await?;
                self.ticket(asked)
            }
        };
        let ticket = ticket.ok_or("the server gave no ticket, so nothing can be resumed")?;
        if asked.kind.is_early() && !ticket.session().early_data_capable() {
            return Err("the server's tickets allow no early data".to_owned());
        }
        offer.early_data = asked.kind.is_early();
        let ticket = match asked.kind {
            HandshakeKind::Refused => {
                ticket.issued_earlier(STALE_TICKET_AGE_S).map_err(|error| error.to_string())?
            }
            _ => ticket,
        };
        offer.session = Some(ticket.session().clone());
        Ok(offer)
    }

    fn ticket(&self, asked: &RequestedConnection) -> Option<Ticket> {
        self.tickets.borrow_mut().take(&(asked.version, asked.http), asked.version)
    }

    /// Makes a connection and keeps the tickets that it brings; `local` is set as soon as there is
    /// a socket.
    pub(super) async fn call(
        &self,
        asked: &RequestedConnection,
        offer: &ConnectOptions,
        local: &mut Option<SocketAddr>,
    ) -> Result<Outcome, String> {
        match tokio::time::timeout(self.limit, self.talk(asked, offer, local)).await {
            Ok(result) => result,
            Err(_) => Err(format!("it took longer than {:?}", self.limit)),
        }
    }

    async fn talk(
        &self,
        asked: &RequestedConnection,
        offer: &ConnectOptions,
        local: &mut Option<SocketAddr>,
    ) -> Result<Outcome, String> {
        let connector = self.connectors.tcp(asked).map_err(|error| error.to_string())?;
        let connected = connect_tls(&connector, offer, self.address, asked.tfo).await;
        let connected = connected.map_err(|error| error.to_string())?;
        *local = connected.stream.socket().local_addr().ok();
        let request = Request::get(self.target.clone());
        let response = http_get(connected, &request, LARGEST).await;
        let mut response = response.map_err(|error| error.to_string())?;
        let got = read(&response, asked)?;
        let mut sessions = std::mem::take(&mut response.sessions);
        let patience = if sessions.is_empty() { TICKETS } else { Duration::ZERO };
        sessions.extend(response.exchange.close(patience).await);
        let tickets = sessions.into_iter().map(Ticket::Tcp).collect();
        self.tickets.borrow_mut().add((asked.version, asked.http), tickets);
        Ok(got)
    }
}

/// What TLS and the kernel say of a connection with its response.
fn read(response: &HttpResponse, asked: &RequestedConnection) -> Result<Outcome, String> {
    if !response.head.status.is_success() && !response.head.status.is_redirection() {
        return Err(format!("status {}", response.head.status));
    }
    let got = response.head.version;
    if (got == http::Version::HTTP_2) != (asked.http == HttpVersion::Two) {
        return Err(format!("{got:?} where HTTP/{} was asked", asked.http));
    }
    let facts = response.facts.as_ref().ok_or("the connection has no TLS")?;
    let version = facts.version.ok_or("the handshake has no version")?;
    let kind = match (facts.early_data, facts.resumed) {
        (EarlyData::Accepted, _) => LabelKind::EarlyAccepted,
        (EarlyData::Refused, _) => LabelKind::EarlyRefused,
        (EarlyData::Pending, _) => return Err("the early data was left pending".to_owned()),
        (EarlyData::NotOffered, true) => LabelKind::Resumed,
        (EarlyData::NotOffered, false) => LabelKind::Full,
    };
    let tcp = response.tcp;
    // The kernel does not tell data in a SYN that was not taken from none.
    let syn_data = tcp.is_some_and(|tcp| tcp.syn_data);
    let tfo = if syn_data { FastOpen::Used } else { FastOpen::Off };
    let marks = &response.marks;
    let since = |mark: Option<Instant>| mark.map(|mark| mark - marks.start);
    Ok(Outcome {
        times: Times {
            setup: since(marks.secured),
            first_byte: since(marks.first_byte).ok_or("the answer has no first byte")?,
            total: since(marks.end).ok_or("the answer has no end")?,
        },
        label: Label { version: tls_version(version), kind, transport: LabelTransport::Tcp(tfo) },
        min_rtt: tcp.map(|tcp| tcp.min_rtt).filter(|rtt| !rtt.is_zero()),
        bytes: response.body.len(),
        server: header(response, http::header::SERVER.as_str()),
        group: facts.group,
    })
}

fn header(response: &HttpResponse, name: &str) -> String {
    let value = response.head.headers.get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default().to_owned()
}

/// More than anybody measures handshakes with.
const LARGEST: usize = 64 << 20;
/// How long a connection waits for tickets after its response, if none has come.
const TICKETS: Duration = Duration::from_millis(200);
