//! One connection to a remote server, and the sample that is made from it.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use firstflight_client::{HttpResponse, Request, Target, connect_tls, http_get};
use firstflight_emulator::monotonic_ns;
use firstflight_packets::{FastOpen, Label, LabelKind, LabelTransport};
use firstflight_report::{Fault, Sample};
use firstflight_samples::{
    ClientRecord, Connectors, HandshakeKind, HttpVersion, RequestedConnection, STALE_TICKET_AGE_S,
    Slot, Ticket, TicketPool, Times, expected_label, sample_from_flow, tls_version,
};
use firstflight_tls::{ConnectOptions, EarlyData, Version};

/// A client for one address of one server, with its tickets.
pub(super) struct RemoteServer {
    connectors: Connectors,
    pub(super) target: Target,
    pub(super) address: SocketAddr,
    timeout: Duration,
    tickets: RefCell<TicketPool<(Version, HttpVersion)>>,
}

/// What the kernel and TLS report about a connection with its response.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub times: Times,
    pub label: Label,
    /// The kernel's minimum RTT.
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

/// Describes a requested connection, for the reason why it is left out.
pub(super) fn describe(requested: &RequestedConnection) -> String {
    let tfo = if requested.tfo { " with TCP Fast Open" } else { "" };
    let (version, kind) = (requested.version.name().replace("TLSv", "TLS "), requested.kind);
    format!("{version} {kind}{tfo} over HTTP/{}, {}", requested.http, requested.group)
}

impl RemoteServer {
    pub(super) fn new(
        connectors: Connectors,
        target: Target,
        address: SocketAddr,
        timeout: Duration,
    ) -> Self {
        Self { connectors, target, address, timeout, tickets: RefCell::default() }
    }

    /// Checks that the server supports the requested connection. Tries twice, because the first
    /// connection may have to fetch the TCP Fast Open cookie.
    pub(super) async fn check(&self, requested: &RequestedConnection) -> Result<Outcome, String> {
        let mut why = String::new();
        for _ in 0..2 {
            let outcome = self.connect(requested, &self.offer(requested).await?, &mut None).await?;
            match outcome.mismatch(requested) {
                None => return Ok(outcome),
                Some(mismatch) => why = format!("the first connection was {mismatch}"),
            }
        }
        Err(why)
    }

    /// Returns what the client offers. Fetches a ticket first if there is none.
    pub(super) async fn offer(
        &self,
        requested: &RequestedConnection,
    ) -> Result<ConnectOptions, String> {
        let mut offer =
            ConnectOptions { host: self.target.host().to_owned(), ..ConnectOptions::default() };
        if requested.kind == HandshakeKind::Full {
            return Ok(offer);
        }
        let ticket = match self.ticket(requested) {
            Some(ticket) => Some(ticket),
            None => {
                let full = RequestedConnection { kind: HandshakeKind::Full, ..*requested };
                self.connect(&full, &offer, &mut None).await?;
                self.ticket(requested)
            }
        };
        let ticket = ticket.ok_or("the server issued no ticket, so nothing can be resumed")?;
        if requested.kind.is_early() && !ticket.session().early_data_capable() {
            return Err("the server's tickets allow no early data".to_owned());
        }
        offer.early_data = requested.kind.is_early();
        let ticket = match requested.kind {
            HandshakeKind::Refused => {
                ticket.issued_earlier(STALE_TICKET_AGE_S).map_err(|error| error.to_string())?
            }
            _ => ticket,
        };
        offer.session = Some(ticket.session().clone());
        Ok(offer)
    }

    fn ticket(&self, requested: &RequestedConnection) -> Option<Ticket> {
        self.tickets.borrow_mut().take(&(requested.version, requested.http), requested.version)
    }

    /// Makes a connection and keeps the tickets that it receives. Sets `local` as soon as there is a
    /// socket.
    pub(super) async fn connect(
        &self,
        requested: &RequestedConnection,
        offer: &ConnectOptions,
        local: &mut Option<SocketAddr>,
    ) -> Result<Outcome, String> {
        match tokio::time::timeout(self.timeout, self.exchange(requested, offer, local)).await {
            Ok(result) => result,
            Err(_) => Err(format!("the connection took longer than {:?}", self.timeout)),
        }
    }

    async fn exchange(
        &self,
        requested: &RequestedConnection,
        offer: &ConnectOptions,
        local: &mut Option<SocketAddr>,
    ) -> Result<Outcome, String> {
        let connector = self.connectors.tcp(requested).map_err(|error| error.to_string())?;
        let connected = connect_tls(&connector, offer, self.address, requested.tfo).await;
        let connected = connected.map_err(|error| error.to_string())?;
        *local = connected.stream.socket().local_addr().ok();
        let request = Request::get(self.target.clone());
        let response = http_get(connected, &request, MAX_RESPONSE_BYTES).await;
        let mut response = response.map_err(|error| error.to_string())?;
        let outcome = read(&response, requested)?;
        let mut sessions = std::mem::take(&mut response.sessions);
        let timeout = if sessions.is_empty() { TICKET_TIMEOUT } else { Duration::ZERO };
        sessions.extend(response.exchange.close(timeout).await);
        let tickets = sessions.into_iter().map(Ticket::Tcp).collect();
        self.tickets.borrow_mut().add((requested.version, requested.http), tickets);
        Ok(outcome)
    }
}

/// Collects what TLS and the kernel report about a connection.
fn read(response: &HttpResponse, requested: &RequestedConnection) -> Result<Outcome, String> {
    if !response.head.status.is_success() && !response.head.status.is_redirection() {
        return Err(format!("status {}", response.head.status));
    }
    let version = response.head.version;
    if (version == http::Version::HTTP_2) != (requested.http == HttpVersion::Two) {
        return Err(format!("{version:?} instead of HTTP/{}", requested.http));
    }
    let facts = response.facts.as_ref().ok_or("the connection has no TLS")?;
    let version = facts.version.ok_or("the handshake has no version")?;
    let kind = match (facts.early_data, facts.resumed) {
        (EarlyData::Accepted, _) => LabelKind::EarlyAccepted,
        (EarlyData::Refused, _) => LabelKind::EarlyRefused,
        (EarlyData::Pending, _) => return Err("the early data is still pending".to_owned()),
        (EarlyData::NotOffered, true) => LabelKind::Resumed,
        (EarlyData::NotOffered, false) => LabelKind::Full,
    };
    let tcp = response.tcp;
    // The kernel does not distinguish refused data in a SYN from no data.
    let syn_data = tcp.is_some_and(|tcp| tcp.syn_data);
    let tfo = if syn_data { FastOpen::Used } else { FastOpen::Off };
    let marks = &response.marks;
    let since = |mark: Option<Instant>| mark.map(|mark| mark - marks.start);
    Ok(Outcome {
        times: Times {
            setup: since(marks.secured),
            first_byte: since(marks.first_byte).ok_or("the response has no first byte")?,
            total: since(marks.end).ok_or("the response has no end")?,
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

/// A cell of a remote run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    pub requested: RequestedConnection,
    pub control_of: Option<usize>,
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
        Ok(offer) => server.connect(requested, &offer, &mut local).await,
        Err(why) => Err(why),
    };
    let outcome = result.as_ref().map(|outcome| outcome.times).map_err(String::clone);
    let server = server.address;
    let record = ClientRecord { slot, started_ns, local, client_random: None, server, outcome };
    SampledConnection { record, outcome: result.ok() }
}

impl SampledConnection {
    /// Makes the sample from what the kernel and TLS report.
    pub(super) fn by_kernel(&self, cells: &[Cell], origin_ns: u64) -> Sample {
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

const MAX_RESPONSE_BYTES: usize = 64 << 20;
/// How long a connection waits for tickets after its response.
const TICKET_TIMEOUT: Duration = Duration::from_millis(200);
