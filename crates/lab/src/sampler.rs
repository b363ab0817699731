//! Takes the samples of a run, one by one or at a fixed rate, on one thread in the client's
//! namespace.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use firstflight_client::{ClientError, Target};
use firstflight_emulator::monotonic_ns;
use firstflight_tls::{KeyLogLines, Trust, Version};
use futures_util::StreamExt;

use firstflight_samples::{
    ClientRecord, ConnectionOffer, Connectors, ExchangeLimits, IssuerPool, RequestedConnection,
    STALE_TICKET_AGE_S, Slot, TicketPool, Times, exchange,
};

use crate::servers::HOST;
use crate::third_party::ThirdPartyClients;
use crate::{
    CertificateKind, CipherSuite, ClientKind, HandshakeKind, HttpVersion, LabError, ServerKind,
    Transport, Workload,
};

/// How the samples of a queue follow each other.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// Each sample starts when the previous one has ended.
    OneByOne,
    /// A sample starts at each interval, whether or not earlier ones have ended. For long paths.
    Every(Duration),
}

/// A sample to take.
#[derive(Clone)]
pub(crate) struct SampleJob {
    pub slot: Slot,
    pub client: ClientKind,
    pub server: ServerKind,
    pub requested: RequestedConnection,
    /// The server's address on the path.
    pub address: IpAddr,
    /// The timeout.
    pub limit: Duration,
}

/// The clients of a run.
pub(crate) struct Sampler<'a> {
    connectors: Connectors,
    tickets: RefCell<TicketPool<Issuer>>,
    /// Address tokens, by issuer and server address. They are bound to the client's address, which
    /// differs between paths.
    tokens: RefCell<IssuerPool<(Issuer, IpAddr), Bytes>>,
    /// The server's address on the shortest path, over which most tickets are fetched.
    shortest: IpAddr,
    third_party: ThirdPartyClients<'a>,
}

impl<'a> Sampler<'a> {
    /// A sampler with this project's client and third-party clients.
    pub(crate) fn new(
        trust: &Path,
        key_log: &Arc<KeyLogLines>,
        shortest: IpAddr,
        third_party: ThirdPartyClients<'a>,
    ) -> Self {
        let connectors = Connectors::new(Trust::File(trust.to_owned()), key_log);
        Self {
            connectors,
            tickets: RefCell::default(),
            tokens: RefCell::default(),
            shortest,
            third_party,
        }
    }

    /// Takes samples in their order. Calls `done` after each.
    pub(crate) async fn take_samples(
        &self,
        jobs: Vec<SampleJob>,
        pace: Pace,
        done: &dyn Fn(),
    ) -> Vec<ClientRecord> {
        let start = tokio::time::Instant::now();
        let max_concurrent = match pace {
            Pace::OneByOne => 1,
            Pace::Every(_) => usize::MAX,
        };
        let samples = jobs.into_iter().enumerate().map(|(index, job)| async move {
            if let Pace::Every(interval) = pace {
                tokio::time::sleep_until(start + interval * index as u32).await;
            }
            let record = self.sample(&job).await;
            done();
            record
        });
        futures_util::stream::iter(samples).buffer_unordered(max_concurrent).collect().await
    }

    /// Makes a full handshake that is no sample. It fetches tickets and either the TCP Fast Open
    /// cookie or address tokens.
    pub(crate) async fn warm_up(
        &self,
        server: ServerKind,
        requested: &RequestedConnection,
        address: IpAddr,
    ) -> Result<(), LabError> {
        let requested = RequestedConnection {
            kind: HandshakeKind::Full,
            tfo: !requested.over_quic(),
            token: false,
            ..*requested
        };
        let address =
            SocketAddr::from((address, server.port(requested.workload, requested.certificate)));
        let offer = ConnectionOffer::default();
        let requested = (server, &requested);
        let (result, _) =
            self.connect(requested, offer, address, target(requested.1), SAMPLE_TIMEOUT).await;
        result.map(drop).map_err(|source| failed(server, source))
    }

    /// Sends a GET of `target` as early data over the shortest path, for the attacker to capture.
    pub(crate) async fn early_get(
        &self,
        server: ServerKind,
        requested: &RequestedConnection,
        target: &str,
    ) -> Result<ClientRecord, LabError> {
        let offer = self.offer(server, requested, self.shortest).await?;
        let port = server.port(Workload::Get, requested.certificate);
        let address = SocketAddr::from((self.shortest, port));
        let started_ns = monotonic_ns();
        let (result, local) =
            self.connect((server, requested), offer, address, target, SAMPLE_TIMEOUT).await;
        let times = result.map_err(|source| failed(server, source))?;
        let slot = Slot { cell: 0, block: 0 };
        Ok(ClientRecord {
            slot,
            started_ns,
            local,
            client_random: None,
            server: address,
            outcome: Ok(times),
        })
    }

    /// Takes a sample with a third-party client.
    async fn sample_by_third_party(&self, job: &SampleJob, server: SocketAddr) -> ClientRecord {
        let started_ns = monotonic_ns();
        let random = self.third_party.connect(job.client, &job.requested, server, job.limit).await;
        let (client_random, outcome) = match random {
            Ok(random) => (Some(random), Ok(Times::default())),
            Err(why) => (None, Err(why)),
        };
        ClientRecord { slot: job.slot, started_ns, local: None, client_random, server, outcome }
    }

    /// Takes a sample.
    pub(crate) async fn sample(&self, job: &SampleJob) -> ClientRecord {
        let SampleJob { slot, server, requested, address: ip, limit, .. } = job;
        let address =
            SocketAddr::from((*ip, server.port(requested.workload, requested.certificate)));
        if job.client != ClientKind::Firstflight {
            return self.sample_by_third_party(job, address).await;
        }
        let offer = match self.offer(*server, requested, *ip).await {
            Ok(offer) => offer,
            Err(error) => {
                return ClientRecord {
                    slot: *slot,
                    started_ns: monotonic_ns(),
                    local: None,
                    client_random: None,
                    server: address,
                    outcome: Err(error.to_string()),
                };
            }
        };
        let started_ns = monotonic_ns();
        let (result, local) =
            self.connect((*server, requested), offer, address, target(requested), *limit).await;
        let outcome = result.map_err(|error| error.to_string());
        ClientRecord {
            slot: *slot,
            started_ns,
            local,
            client_random: None,
            server: address,
            outcome,
        }
    }

    /// The offer of a connection to this address. Fetches a ticket or a token first if there is
    /// none.
    async fn offer(
        &self,
        server: ServerKind,
        requested: &RequestedConnection,
        address: IpAddr,
    ) -> Result<ConnectionOffer, LabError> {
        let mut offer = ConnectionOffer::default();
        if requested.kind == HandshakeKind::Full {
            return Ok(offer);
        }
        offer.early_data = requested.kind.is_early();
        let issuer = self.issuer(server, requested, address);
        if requested.token {
            let token = || self.tokens.borrow_mut().pop(&(issuer, address));
            offer.token = token();
            if offer.token.is_none() {
                self.warm_up(server, requested, address).await?;
                offer.token = token();
            }
        }
        let ticket = || self.tickets.borrow_mut().take(&issuer, requested.version);
        let mut stored = ticket();
        if stored.is_none() {
            self.warm_up(server, requested, issuer.address).await?;
            stored = ticket();
        }
        offer.ticket = match (stored, requested.kind) {
            (Some(ticket), HandshakeKind::Refused) => {
                Some(ticket.issued_earlier(STALE_TICKET_AGE_S)?)
            }
            (ticket, _) => ticket,
        };
        Ok(offer)
    }

    /// The issuer of the tickets that a connection to this address uses and receives.
    pub(crate) fn issuer(
        &self,
        server: ServerKind,
        requested: &RequestedConnection,
        address: IpAddr,
    ) -> Issuer {
        let per_address = server.has_ticket_keys_for_each_address(requested.transport);
        Issuer::new(server, requested, if per_address { address } else { self.shortest })
    }

    /// Makes a connection, and keeps its tickets and tokens for later ones. Returns the local
    /// address even if the connection fails after the socket was created.
    async fn connect(
        &self,
        (server, requested): (ServerKind, &RequestedConnection),
        offer: ConnectionOffer,
        address: SocketAddr,
        target: &str,
        limit: Duration,
    ) -> (Result<Times, ClientError>, Option<SocketAddr>) {
        let mut local = None;
        let target = match Target::parse(&format!("https://{HOST}{target}")) {
            Ok(target) => target,
            Err(error) => return (Err(error), None),
        };
        let what = (requested, &target);
        let exchanging = exchange(&self.connectors, offer, address, what, &LIMITS, &mut local);
        let result = match tokio::time::timeout(limit, exchanging).await {
            Ok(result) => result,
            Err(_) => Err(ClientError::Timeout { phase: "the whole sample", after: limit }),
        };
        let times = result.map(|exchange| {
            let issuer = self.issuer(server, requested, address.ip());
            self.tickets.borrow_mut().add(issuer, exchange.tickets);
            self.tokens.borrow_mut().add((issuer, address.ip()), exchange.tokens);
            exchange.times
        });
        (times, local)
    }
}

fn failed(server: ServerKind, source: ClientError) -> LabError {
    LabError::WarmUp { server: server.name().to_owned(), source }
}

/// The timeout of a connection without delay. It exceeds the longest handshake of a plan.
pub(crate) const SAMPLE_TIMEOUT: Duration = Duration::from_secs(15);

/// Allows for more than the largest page of the lab, since a server may serve another one. Tickets
/// come with the response, so none are awaited after it.
pub(crate) const LIMITS: ExchangeLimits =
    ExchangeLimits { response_bytes: 4 << 20, tcp_ticket_timeout: Duration::ZERO };

/// The path that a connection requests.
fn target(requested: &RequestedConnection) -> &'static str {
    requested.size.path()
}

/// The listener that issued a ticket, with transport, version, cipher suite and the application
/// protocol, to which early data is bound (RFC 8446 section 4.2.10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Issuer {
    server: ServerKind,
    workload: Workload,
    certificate: CertificateKind,
    transport: Transport,
    version: Version,
    cipher: CipherSuite,
    http: HttpVersion,
    /// Where tickets are fetched if there is none.
    pub(crate) address: IpAddr,
}

impl Issuer {
    fn new(server: ServerKind, requested: &RequestedConnection, address: IpAddr) -> Self {
        let RequestedConnection { workload, certificate, transport, version, cipher, http, .. } =
            *requested;
        Self { server, workload, certificate, transport, version, cipher, http, address }
    }
}
