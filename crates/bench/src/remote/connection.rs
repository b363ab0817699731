//! One connection to a remote server, and the sample that is made from it.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use firstflight_client::Target;
use firstflight_emulator::monotonic_ns;
use firstflight_packets::{FastOpen, Label, LabelKind, LabelTransport};
use firstflight_report::{Fault, Sample};
use firstflight_samples::{
    ClientRecord, ConnectionOffer, Connectors, Exchange, ExchangeLimits, HandshakeKind,
    HttpVersion, IssuerPool, RequestedConnection, STALE_TICKET_AGE_S, Slot, Ticket, TicketPool,
    Times, Transport, Workload, exchange, expected_label, sample_from_flow, tls_version,
};
use firstflight_tls::{EarlyData, Version};

/// A client for one address of one server, with its tickets and address tokens.
pub(super) struct RemoteServer {
    connectors: Connectors,
    pub(super) target: Target,
    pub(super) address: SocketAddr,
    timeout: Duration,
    tickets: RefCell<TicketPool<Issuer>>,
    tokens: RefCell<IssuerPool<(), Bytes>>,
}

/// What a ticket is bound to.
type Issuer = (Version, Transport, HttpVersion);

/// What the kernel, TLS and QUIC report about a connection with its response.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub times: Times,
    pub label: Label,
    /// The minimum RTT that the kernel or QUIC measured.
    pub min_rtt: Option<Duration>,
    /// Length of the response body.
    pub bytes: usize,
    /// The `Server` field of the response.
    pub server: String,
    group: Option<&'static str>,
}

impl Outcome {
    /// Describes the connection if it is not what was requested.
    pub(super) fn mismatch(&self, requested: &RequestedConnection) -> Option<String> {
        if self.label != expected_label(requested) {
            return Some(self.label.to_string());
        }
        let group = self.group.filter(|_| requested.version == Version::Tls13)?;
        (group != requested.group.name()).then(|| format!("{}, group {group}", self.label))
    }
}

/// Describes a requested connection, to say why it is left out.
pub(super) fn describe(requested: &RequestedConnection) -> String {
    let tfo = if requested.tfo { " with TCP Fast Open" } else { "" };
    let token = if requested.token { " with an address token" } else { "" };
    let version = match requested.transport {
        Transport::Quic => "QUIC".to_owned(),
        Transport::Tcp => requested.version.name().replace("TLSv", "TLS "),
    };
    let over = match requested.workload {
        Workload::PingPong => "ping-pong".to_owned(),
        Workload::Get => format!("over HTTP/{}", requested.http),
    };
    format!("{version} {}{tfo}{token} {over}, {}", requested.kind, requested.group)
}

impl RemoteServer {
    pub(super) fn new(
        connectors: Connectors,
        target: Target,
        address: SocketAddr,
        timeout: Duration,
    ) -> Self {
        let (tickets, tokens) = (RefCell::default(), RefCell::default());
        Self { connectors, target, address, timeout, tickets, tokens }
    }

    /// Checks that the server supports the requested connection. Tries twice, because the first
    /// connection may have to fetch the TCP Fast Open cookie.
    pub(super) async fn check(&self, requested: &RequestedConnection) -> Result<Outcome, String> {
        let mut why = String::new();
        for _ in 0..2 {
            let outcome = self.connect(requested, self.offer(requested).await?, &mut None).await?;
            match outcome.mismatch(requested) {
                None => return Ok(outcome),
                Some(mismatch) => why = format!("the first connection was {mismatch}"),
            }
        }
        Err(why)
    }

    /// Returns what the client offers. Fetches a ticket or an address token first if there is none.
    pub(super) async fn offer(
        &self,
        requested: &RequestedConnection,
    ) -> Result<ConnectionOffer, String> {
        let mut offer = ConnectionOffer::default();
        if requested.kind == HandshakeKind::Full {
            return Ok(offer);
        }
        let full = RequestedConnection { kind: HandshakeKind::Full, token: false, ..*requested };
        if requested.token {
            let token = || self.tokens.borrow_mut().pop(&());
            offer.token = token();
            if offer.token.is_none() {
                self.connect(&full, ConnectionOffer::default(), &mut None).await?;
                offer.token = token();
            }
            if offer.token.is_none() {
                return Err("the server issued no address token".to_owned());
            }
        }
        let ticket = match self.ticket(requested) {
            Some(ticket) => Some(ticket),
            None => {
                self.connect(&full, ConnectionOffer::default(), &mut None).await?;
                self.ticket(requested)
            }
        };
        let ticket = ticket.ok_or("the server issued no ticket, so nothing can be resumed")?;
        if requested.kind.is_early() && !ticket.session().early_data_capable() {
            return Err("the server's tickets allow no early data".to_owned());
        }
        offer.early_data = requested.kind.is_early();
        offer.ticket = Some(match requested.kind {
            HandshakeKind::Refused => {
                ticket.issued_earlier(STALE_TICKET_AGE_S).map_err(|error| error.to_string())?
            }
            _ => ticket,
        });
        Ok(offer)
    }

    fn ticket(&self, requested: &RequestedConnection) -> Option<Ticket> {
        self.tickets.borrow_mut().take(&issuer(requested), requested.version)
    }

    /// Makes a connection and keeps the tickets and tokens that it receives. Sets `local` as soon as
    /// there is a socket.
    pub(super) async fn connect(
        &self,
        requested: &RequestedConnection,
        offer: ConnectionOffer,
        local: &mut Option<SocketAddr>,
    ) -> Result<Outcome, String> {
        let what = (requested, &self.target);
        let pending = exchange(&self.connectors, offer, self.address, what, &LIMITS, local);
        let completed = match tokio::time::timeout(self.timeout, pending).await {
            Ok(result) => result.map_err(|error| error.to_string())?,
            Err(_) => return Err(format!("the connection took longer than {:?}", self.timeout)),
        };
        let outcome = read_outcome(&completed, requested)?;
        self.tickets.borrow_mut().add(issuer(requested), completed.tickets);
        self.tokens.borrow_mut().add((), completed.tokens);
        Ok(outcome)
    }
}

fn issuer(requested: &RequestedConnection) -> Issuer {
    (requested.version, requested.transport, requested.http)
}

/// Collects what TLS, the kernel and QUIC report about a connection.
fn read_outcome(exchange: &Exchange, requested: &RequestedConnection) -> Result<Outcome, String> {
    let facts = exchange.handshake.as_ref().ok_or("the connection has no TLS")?;
    let version = facts.version.ok_or("the handshake has no version")?;
    let kind = match (facts.early_data, facts.resumed) {
        (EarlyData::Accepted, _) => LabelKind::EarlyAccepted,
        (EarlyData::Refused, _) => LabelKind::EarlyRefused,
        (EarlyData::Pending, _) => return Err("the early data is still pending".to_owned()),
        (EarlyData::NotOffered, true) => LabelKind::Resumed,
        (EarlyData::NotOffered, false) => LabelKind::Full,
    };
    // The kernel does not distinguish refused data in a SYN from no data.
    let tfo = if exchange.syn_data { FastOpen::Used } else { FastOpen::Off };
    let transport = match requested.transport {
        Transport::Tcp => LabelTransport::Tcp(tfo),
        Transport::Quic => LabelTransport::Quic,
    };
    Ok(Outcome {
        times: exchange.times,
        label: Label { version: tls_version(version), kind, transport },
        min_rtt: exchange.min_rtt,
        bytes: exchange.response_bytes,
        server: exchange.server.clone(),
        group: facts.group,
    })
}

/// A cell of a remote run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    pub requested: RequestedConnection,
    pub control_of: Option<usize>,
    /// The length of the response's content.
    pub response_bytes: usize,
}

/// A connection with what the client knows about it.
pub(super) struct SampledConnection {
    pub(super) record: ClientRecord,
    outcome: Option<Outcome>,
}

/// Takes one sample of a cell.
pub(super) async fn take_sample(
    server: &RemoteServer,
    slot: Slot,
    requested: &RequestedConnection,
) -> SampledConnection {
    let offer = server.offer(requested).await;
    let (started_ns, mut local) = (monotonic_ns(), None);
    let result = match offer {
        Ok(offer) => server.connect(requested, offer, &mut local).await,
        Err(why) => Err(why),
    };
    let outcome = result.as_ref().map(|outcome| outcome.times).map_err(String::clone);
    let server = server.address;
    let record = ClientRecord { slot, started_ns, local, client_random: None, server, outcome };
    SampledConnection { record, outcome: result.ok() }
}

impl SampledConnection {
    /// Makes the sample from what the kernel and TLS report.
    pub(super) fn kernel_sample(&self, cells: &[Cell], origin_ns: u64) -> Sample {
        let mut sample = sample_from_flow(&self.record, None, origin_ns);
        sample.label = self.outcome.as_ref().map(|outcome| outcome.label.to_string());
        sample.fault = match (&self.record.outcome, &self.outcome) {
            (Err(why), _) => Some(Fault::Failed(why.clone())),
            (Ok(_), outcome) => {
                let mismatch = outcome
                    .as_ref()
                    .and_then(|outcome| outcome.mismatch(&cells[sample.cell].requested));
                mismatch.map(Fault::Mislabelled)
            }
        };
        sample
    }

    pub(super) fn min_rtt(&self) -> Option<Duration> {
        self.outcome.as_ref()?.min_rtt
    }
}

const LIMITS: ExchangeLimits = ExchangeLimits {
    response_bytes: 64 << 20,
    // Some servers send their tickets after the response.
    tcp_ticket_timeout: Duration::from_millis(200),
};
