//! Makes the connections of a run: one after the other or paced, from one thread in the client's
//! namespace.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use firstflight_client::{ClientError, Connected, Request, Target, connect_tls, http_get};
use firstflight_link::monotonic_ns;
use firstflight_tls::{
    CipherPolicy, Connector, ConnectorConfig, KeyLogLines, Offer, Session, Trust, Version,
};
use futures_util::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::plan::PlannedCell;
use crate::servers::HOST;
use crate::tickets::TicketPool;
use crate::{BenchError, Certificate, Kind, ServerKind, Size, Workload};

/// A connection as the client saw it; what it was is for the packets to say.
pub(crate) struct Taken {
    pub cell: usize,
    /// Just before the connect call, on the link's clock.
    pub began_ns: u64,
    /// The client's end, which finds the packets.
    pub local: Option<SocketAddr>,
    pub server: SocketAddr,
    /// Until the first byte of the answer.
    pub outcome: Result<Duration, String>,
}

/// How the samples of one path follow each other.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// Each begins when the one before has ended: short paths, where a second connection would
    /// disturb the first.
    OneByOne,
    /// One begins every so often, whatever became of those before: long paths, where waiting is
    /// most of the time. Spreading the beginnings keeps computing phases apart.
    Every(Duration),
}

/// One sample to take.
#[derive(Clone)]
pub(crate) struct Job {
    pub cell: usize,
    pub planned: PlannedCell,
    pub server: IpAddr,
}

/// The client side of a run.
pub(crate) struct Sampler {
    connectors: Vec<(Workload, Version, Connector)>,
    tickets: RefCell<TicketPool>,
    /// Over which address tickets are fetched when they run out: the shortest path.
    shortest: IpAddr,
}

impl Sampler {
    pub(crate) fn new(
        cert: &Path,
        key_log: &Arc<KeyLogLines>,
        shortest: IpAddr,
    ) -> Result<Self, BenchError> {
        let mut connectors = Vec::new();
        for workload in Workload::ALL {
            for version in Version::ALL {
                let mut config = ConnectorConfig::new(Trust::File(cert.to_owned()));
                (config.min_version, config.max_version) = (version, version);
                // A post-quantum share does not fit into a SYN (RFC 7413 section 4.1.2), and
                // TLS 1.0 and 1.1 need P-256 for the certificate.
                config.ciphers =
                    CipherPolicy { groups: Some("X25519:P-256".into()), ..Default::default() };
                if workload == Workload::Get {
                    config.alpn = vec![b"http/1.1".to_vec()];
                }
                config.key_log = Some(key_log.clone());
                connectors.push((workload, version, Connector::new(config)?));
            }
        }
        Ok(Self { connectors, tickets: RefCell::default(), shortest })
    }

    /// Takes the samples of one path in their order; `done` is called after each.
    pub(crate) async fn take(&self, jobs: Vec<Job>, pace: Pace, done: &dyn Fn()) -> Vec<Taken> {
        let begin = tokio::time::Instant::now();
        let at_a_time = match pace {
            Pace::OneByOne => 1,
            Pace::Every(_) => usize::MAX,
        };
        let samples = jobs.into_iter().enumerate().map(|(index, job)| async move {
            if let Pace::Every(interval) = pace {
                tokio::time::sleep_until(begin + interval * index as u32).await;
            }
            let taken = self.sample(&job).await;
            done();
            taken
        });
        futures_util::stream::iter(samples).buffer_unordered(at_a_time).collect().await
    }

    /// One connection outside the figures, which leaves tickets and the TCP Fast Open cookie.
    pub(crate) async fn warm_up(
        &self,
        server: ServerKind,
        workload: Workload,
        version: Version,
        address: IpAddr,
    ) -> Result<(), BenchError> {
        let address = SocketAddr::from((address, server.port(workload, Certificate::EcdsaP256)));
        let offer = Offer { host: HOST.to_owned(), ..Offer::default() };
        let target = Size::OneKib.path();
        let (result, ..) = self.connect(workload, version, &offer, address, true, target).await;
        let (_, sessions) = result
            .map_err(|source| BenchError::WarmUp { server: server.name().to_owned(), source })?;
        self.tickets.borrow_mut().put((server, workload, version), sessions);
        Ok(())
    }

    /// A GET of `target` by early data, over the shortest path: the attacker's quarry.
    pub(crate) async fn early_get(
        &self,
        server: ServerKind,
        target: &str,
    ) -> Result<Taken, BenchError> {
        let issuer = (server, Workload::Get, Version::Tls13);
        let offer = self.offer(issuer, Kind::ZeroRtt).await?;
        let address =
            SocketAddr::from((self.shortest, server.port(Workload::Get, Certificate::EcdsaP256)));
        let began_ns = monotonic_ns();
        let (result, local) =
            self.connect(Workload::Get, Version::Tls13, &offer, address, false, target).await;
        let (time, sessions) = result
            .map_err(|source| BenchError::WarmUp { server: server.name().to_owned(), source })?;
        self.tickets.borrow_mut().put(issuer, sessions);
        Ok(Taken { cell: 0, began_ns, local, server: address, outcome: Ok(time) })
    }

    async fn sample(&self, job: &Job) -> Taken {
        let PlannedCell { server, workload, version, kind, tfo, .. } = job.planned;
        let address = SocketAddr::from((job.server, server.port(workload, Certificate::EcdsaP256)));
        let issuer = (server, workload, version);
        let offer = match self.offer(issuer, kind).await {
            Ok(offer) => offer,
            Err(error) => {
                return Taken {
                    cell: job.cell,
                    began_ns: monotonic_ns(),
                    local: None,
                    server: address,
                    outcome: Err(error.to_string()),
                };
            }
        };
        let began_ns = monotonic_ns();
        let (result, local) =
            self.connect(workload, version, &offer, address, tfo, Size::OneKib.path()).await;
        let outcome = match result {
            Ok((time, sessions)) => {
                self.tickets.borrow_mut().put(issuer, sessions);
                Ok(time)
            }
            Err(error) => Err(error.to_string()),
        };
        Taken { cell: job.cell, began_ns, local, server: address, outcome }
    }

    /// What a connection of this kind brings along; fetches a ticket first if there is none.
    async fn offer(
        &self,
        issuer: (ServerKind, Workload, Version),
        kind: Kind,
    ) -> Result<Offer, BenchError> {
        let mut offer = Offer { host: HOST.to_owned(), ..Offer::default() };
        if kind == Kind::Full {
            return Ok(offer);
        }
        offer.early_data = kind.is_early();
        offer.session = self.tickets.borrow_mut().take(issuer);
        if offer.session.is_none() {
            let (server, workload, version) = issuer;
            self.warm_up(server, workload, version, self.shortest).await?;
            offer.session = self.tickets.borrow_mut().take(issuer);
        }
        Ok(offer)
    }

    /// Connects, asks, and reads to the end of the answer. The local address is there as soon as
    /// the socket was.
    async fn connect(
        &self,
        workload: Workload,
        version: Version,
        offer: &Offer,
        address: SocketAddr,
        tfo: bool,
        target: &str,
    ) -> (Result<(Duration, Vec<Session>), ClientError>, Option<SocketAddr>) {
        let connector = self
            .connectors
            .iter()
            .find(|(w, v, _)| *w == workload && *v == version)
            .map(|(_, _, connector)| connector)
            .expect("a connector for every workload and version");
        let mut local = None;
        let whole = async {
            let connected = connect_tls(connector, offer, address, tfo).await?;
            local = connected.stream.socket().local_addr().ok();
            match workload {
                Workload::PingPong => ping(connected).await,
                Workload::Get => get(connected, target).await,
            }
        };
        let result = match tokio::time::timeout(LONGEST, whole).await {
            Ok(result) => result,
            Err(_) => Err(ClientError::Timeout { phase: "the whole sample", after: LONGEST }),
        };
        (result, local)
    }
}

/// Longer than any handshake of a plan takes, and an end to one that hangs.
const LONGEST: Duration = Duration::from_secs(15);

/// How long a connection may take to end.
const GOODBYE: Duration = Duration::from_secs(2);

async fn ping(connected: Connected) -> Result<(Duration, Vec<Session>), ClientError> {
    let Connected { mut stream, marks } = connected;
    let mut pong = [0; 4];
    stream.write_all(b"PING").await.map_err(ClientError::Send)?;
    stream.flush().await.map_err(ClientError::Send)?;
    stream.read_exact(&mut pong[..1]).await.map_err(received)?;
    let first_byte = Instant::now();
    stream.read_exact(&mut pong[1..]).await.map_err(received)?;
    let sessions = stream.take_sessions();
    let _ = tokio::time::timeout(GOODBYE, stream.shutdown()).await;
    Ok((first_byte - marks.start, sessions))
}

fn received(error: std::io::Error) -> ClientError {
    ClientError::Receive(error.to_string())
}

async fn get(connected: Connected, target: &str) -> Result<(Duration, Vec<Session>), ClientError> {
    let request = Request::get(Target::parse(&format!("https://{HOST}{target}"))?);
    let answer = http_get(connected, &request, 1 << 20).await?;
    if !answer.head.status.is_success() {
        return Err(ClientError::WeirdReply(format!("status {}", answer.head.status)));
    }
    let first_byte = answer.marks.first_byte.unwrap_or(answer.marks.start);
    let mut sessions = answer.sessions;
    sessions.extend(answer.exchange.close(Duration::ZERO).await);
    Ok((first_byte - answer.marks.start, sessions))
}
