//! Probes the capabilities of a server by a few connections before the measurement, from a
//! namespace without an emulated delay.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use firstflight_client::{ClientError, HttpResponse, Request, Target, connect_tls, http_get};
use firstflight_emulator::{Network, NetworkConfig, PathConfig};
use firstflight_samples::{
    ConnectionOffer, Connectors, Exchange, RequestedConnection, STALE_TICKET_AGE_S, Ticket,
    exchange,
};
use firstflight_tls::{
    CipherPolicy, ConnectOptions, Connector, ConnectorConfig, EarlyData, Session, Trust, Version,
};
use tokio::net::TcpStream;

use super::{Capabilities, Capability, HOST, Requirements, RunningServer, ServerKind, Site};
use crate::sampler::LIMITS;
use crate::{CertificateKind, Group, HttpVersion, LabError, ResponseSize, Transport, Workload};

/// Probes a listener. Its functions block, and must run in a namespace that reaches the listener.
pub(super) struct Probe {
    address: SocketAddr,
    trust: PathBuf,
}

/// A GET of a probe.
#[derive(Clone, Copy)]
struct ProbeRequest<'a> {
    version: Version,
    http: HttpVersion,
    groups: &'a str,
    size: ResponseSize,
    session: Option<&'a Session>,
    early_data: bool,
    fast_open: bool,
}

impl ProbeRequest<'_> {
    const fn new(version: Version) -> Self {
        Self {
            version,
            http: HttpVersion::One,
            groups: DEFAULT_GROUPS,
            size: ResponseSize::OneKib,
            session: None,
            early_data: false,
            fast_open: false,
        }
    }
}

/// The groups that every server should support. TLS 1.0 and 1.1 need P-256 for the certificate.
const DEFAULT_GROUPS: &str = "X25519:P-256";

impl Probe {
    pub(super) fn new(address: SocketAddr, trust: &Path) -> Self {
        Self { address, trust: trust.to_owned() }
    }

    /// Checks whether the listener responds to a GET with its certificate. The inner error is the
    /// reason if it does not.
    pub(super) fn responds(&self) -> Result<Result<(), String>, LabError> {
        runtime()?.block_on(async {
            let mut why = String::new();
            for version in [Version::Tls13, Version::Tls12] {
                match self.get(ProbeRequest::new(version)).await {
                    Ok(_) => return Ok(Ok(())),
                    Err(error) => why = error.to_string(),
                }
            }
            Ok(Err(format!(
                "it does not respond to a GET of {}: {why}",
                ResponseSize::OneKib.path()
            )))
        })
    }

    /// Probes all other capabilities, and the responses of these sizes.
    pub(super) fn all(&self, sizes: &[ResponseSize]) -> Result<Vec<(Capability, bool)>, LabError> {
        runtime()?.block_on(async {
            let mut found = Vec::new();
            for version in Version::ALL {
                self.probe_version(version, &mut found).await;
            }
            let newest = match found.contains(&(Capability::Tls(Version::Tls13), true)) {
                true => ProbeRequest::new(Version::Tls13),
                false => ProbeRequest::new(Version::Tls12),
            };
            for group in Group::ALL {
                let supports =
                    self.get(ProbeRequest { groups: group.name(), ..newest }).await.is_ok();
                found.push((Capability::Group(group), supports));
            }
            for &size in sizes {
                let response = self.get(ProbeRequest { size, ..newest }).await;
                let supports = response.is_ok_and(|response| response.body.len() == size.bytes());
                found.push((Capability::ResponseSize(size), supports));
            }
            let response = self.get(ProbeRequest { http: HttpVersion::Two, ..newest }).await;
            let chosen = response.ok().and_then(|response| response.facts?.alpn);
            found.push((Capability::Http2, chosen.as_deref() == Some(HttpVersion::Two.alpn())));
            found.push((Capability::FastOpen, self.fast_open(newest).await));
            found.push((
                Capability::ConcurrentConnections,
                self.concurrent_connections(newest).await,
            ));
            found.extend(probe_quic(self.address, &self.trust).await);
            Ok(found)
        })
    }

    /// Probes full and resumed handshakes, and early data in TLS 1.3.
    async fn probe_version(&self, version: Version, found: &mut Vec<(Capability, bool)>) {
        let sessions = match self.get(ProbeRequest::new(version)).await {
            Ok(response) => Some(sessions(response).await),
            Err(_) => None,
        };
        found.push((Capability::Tls(version), sessions.is_some()));
        let Some(mut sessions) = sessions else { return };
        let mut resumed = false;
        if let Some(session) = sessions.pop() {
            let response = self
                .get(ProbeRequest { session: Some(&session), ..ProbeRequest::new(version) })
                .await;
            resumed =
                response.is_ok_and(|response| response.facts.is_some_and(|facts| facts.resumed));
        }
        found.push((Capability::Resumption(version), resumed));
        if version == Version::Tls13 {
            found.push((Capability::EarlyData, self.early_data(sessions).await));
        }
    }

    async fn early_data(&self, mut sessions: Vec<Session>) -> bool {
        if sessions.is_empty() {
            // The server issues one ticket at a time.
            if let Ok(response) = self.get(ProbeRequest::new(Version::Tls13)).await {
                sessions = self::sessions(response).await;
            }
        }
        let Some(session) = sessions.pop().filter(Session::early_data_capable) else {
            return false;
        };
        let early = ProbeRequest {
            session: Some(&session),
            early_data: true,
            ..ProbeRequest::new(Version::Tls13)
        };
        let facts = self.get(early).await.ok().and_then(|response| response.facts);
        facts.is_some_and(|facts| facts.early_data == EarlyData::Accepted)
    }

    /// Probes TCP Fast Open. The first connection fetches the cookie (RFC 7413 section 3), the
    /// second uses it.
    async fn fast_open(&self, plain: ProbeRequest<'_>) -> bool {
        let mut used = false;
        for _ in 0..2 {
            let response = self.get(ProbeRequest { fast_open: true, ..plain }).await;
            used = response.is_ok_and(|response| response.tcp.is_some_and(|tcp| tcp.syn_data));
        }
        used
    }

    /// Whether it responds while another connection is idle.
    async fn concurrent_connections(&self, plain: ProbeRequest<'_>) -> bool {
        let Ok(_idle) = TcpStream::connect(self.address).await else { return false };
        tokio::time::timeout(CONCURRENT_RESPONSE_TIMEOUT, self.get(plain))
            .await
            .is_ok_and(|response| response.is_ok())
    }

    async fn get(&self, request: ProbeRequest<'_>) -> Result<HttpResponse, ClientError> {
        let mut config = ConnectorConfig::new(Trust::File(self.trust.clone()));
        (config.min_version, config.max_version) = (request.version, request.version);
        config.ciphers = CipherPolicy { groups: Some(request.groups.into()), ..Default::default() };
        config.ed25519 = true;
        config.alpn = vec![request.http.alpn().to_vec()];
        let connector = Connector::new(config)?;
        let offer = ConnectOptions {
            host: HOST.to_owned(),
            session: request.session.cloned(),
            early_data: request.early_data,
        };
        let target = format!("https://{HOST}{}", request.size.path());
        let get = Request::get(Target::parse(&target)?);
        let exchanging = async {
            let connected =
                connect_tls(&connector, &offer, self.address, request.fast_open).await?;
            http_get(connected, &get, 2 * ResponseSize::OneMib.bytes()).await
        };
        let timeout =
            ClientError::Timeout { phase: "a connection of the probe", after: PROBE_TIMEOUT };
        let response =
            tokio::time::timeout(PROBE_TIMEOUT, exchanging).await.unwrap_or(Err(timeout))?;
        match response.head.status.is_success() {
            true => Ok(response),
            false => Err(ClientError::Status(response.head.status.as_u16())),
        }
    }
}

/// The sessions of a connection. Their tickets arrive before the response or shortly after it.
async fn sessions(mut response: HttpResponse) -> Vec<Session> {
    match response.sessions.is_empty() {
        true => response.exchange.close(TICKET_TIMEOUT).await,
        false => std::mem::take(&mut response.sessions),
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, LabError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| LabError::System { what: "start the client of the probe", source })
}

/// How soon a server must respond while another connection is idle.
const CONCURRENT_RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long after the response a ticket may arrive.
const TICKET_TIMEOUT: Duration = Duration::from_millis(200);

/// A GET of the smallest page over HTTP/3.
const HTTP3_GET: RequestedConnection = RequestedConnection::smallest_get(Transport::Quic);

/// Probes HTTP/3. If the listener supports it, also resumption, early data, the refusal of early
/// data by ticket age, and address tokens.
async fn probe_quic(address: SocketAddr, trust: &Path) -> Vec<(Capability, bool)> {
    let key_log = Arc::default();
    let connectors = Connectors::new(Trust::File(trust.to_owned()), &key_log);
    let get = |ticket: Option<Ticket>, early_data| {
        let offer = ConnectionOffer { ticket, early_data, token: None };
        quic_get(&connectors, offer, address)
    };
    let first = match get(None, false).await {
        Ok(first) => first,
        Err(why) => {
            tracing::debug!(%address, %why, "no HTTP/3");
            return vec![(Capability::Http3, false)];
        }
    };
    let (mut tickets, tokens) = (first.tickets, !first.tokens.is_empty());
    let mut found = vec![(Capability::Http3, true), (Capability::AddressTokens, tokens)];
    let resumed = match tickets.pop() {
        Some(ticket) => get(Some(ticket), false).await.ok(),
        None => None,
    };
    let facts = resumed.as_ref().and_then(|second| second.handshake.as_ref());
    found.push((Capability::QuicResumption, facts.is_some_and(|facts| facts.resumed)));
    tickets.extend(resumed.into_iter().flat_map(|second| second.tickets));
    let accepts = async |ticket: Option<Ticket>| {
        let early = ticket.filter(|ticket| ticket.session().early_data_capable())?;
        let third = get(Some(early), true).await.ok()?;
        let accepted = third.handshake.is_some_and(|facts| facts.early_data == EarlyData::Accepted);
        Some((accepted, third.tickets))
    };
    let early = accepts(tickets.pop()).await;
    let accepts_early = early.as_ref().is_some_and(|(accepted, _)| *accepted);
    found.push((Capability::QuicEarlyData, accepts_early));
    tickets.extend(early.into_iter().flat_map(|(_, tickets)| tickets));
    if accepts_early {
        let old = tickets.pop().and_then(|ticket| ticket.issued_earlier(STALE_TICKET_AGE_S).ok());
        let refuses = accepts(old).await.is_some_and(|(accepted, _)| !accepted);
        found.push((Capability::QuicTicketAgeCheck, refuses));
    }
    found
}

async fn quic_get(
    connectors: &Connectors,
    offer: ConnectionOffer,
    address: SocketAddr,
) -> Result<Exchange, ClientError> {
    let mut local = None;
    let target = Target::parse(&format!("https://{HOST}{}", HTTP3_GET.size.path()))?;
    let what = (&HTTP3_GET, &target);
    let exchanging = exchange(connectors, offer, address, what, &LIMITS, &mut local);
    let timeout = ClientError::Timeout { phase: "a connection of the probe", after: PROBE_TIMEOUT };
    tokio::time::timeout(PROBE_TIMEOUT, exchanging).await.unwrap_or(Err(timeout))
}

/// How long a connection of the probe may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// A server with its probed capabilities.
#[derive(Clone, Debug)]
pub struct ProbedServer {
    /// The server.
    pub server: ServerKind,
    /// Its version and its TLS library.
    pub version: String,
    /// Its capabilities.
    pub capabilities: Capabilities,
}

/// Starts a server with every certificate and every size, probes its capabilities, and stops it.
///
/// `directory` is an empty directory that the caller removes, `program` the `firstflight` program.
/// The calling process needs the privileges that `firstflight_emulator::enter_user_namespace`
/// provides.
///
/// # Errors
/// [`LabError`] if the server is not installed or does not start, or the network cannot be built.
pub fn probe_server(
    server: ServerKind,
    directory: &Path,
    program: &Path,
) -> Result<ProbedServer, LabError> {
    let site = Site::create(directory, program, &CertificateKind::ALL)?;
    let path = PathConfig::symmetric("probe", Duration::ZERO);
    let network = Network::build(NetworkConfig::new(vec![path]))?;
    let required = Requirements {
        workloads: &[Workload::Get],
        certificates: &CertificateKind::ALL,
        sizes: &ResponseSize::ALL,
    };
    let running = RunningServer::start(server, &required, &network, &site)?;
    running.stop();
    Ok(ProbedServer {
        server,
        version: running.version.clone(),
        capabilities: running.capabilities.clone(),
    })
}
