//! Makes the connections of a run: one after the other or paced, from one thread in the client's
//! namespace.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use firstflight_client::ClientError;
use firstflight_emulator::monotonic_ns;
use firstflight_tls::{KeyLogLines, Trust};
use futures_util::StreamExt;

use firstflight_samples::{
    ClientRecord, Connectors, RequestedConnection, Slot, Stock, TOO_OLD_S, TicketPool, Times,
};

use crate::connection::ConnectionOffer;
use crate::exchange::talk;
use crate::servers::HOST;
use crate::third_party::ThirdParty;
use crate::tickets::Issuer;
use crate::{Client, Kind, LabError, ServerKind, Workload};

/// How the samples of one queue follow each other.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// Each starts when the one before has ended.
    OneByOne,
    /// One starts every so often, whatever became of those before: long paths, where waiting is
    /// most of the time. Spreading the starts keeps computing phases apart.
    Every(Duration),
}

/// One sample to take.
#[derive(Clone)]
pub(crate) struct Job {
    pub slot: Slot,
    pub client: Client,
    pub server: ServerKind,
    pub asked: RequestedConnection,
    /// The server's address on the path.
    pub address: IpAddr,
    /// When to give up.
    pub limit: Duration,
}

/// The client side of a run.
pub(crate) struct Sampler<'a> {
    connectors: Connectors,
    tickets: RefCell<TicketPool<Issuer>>,
    /// Address tokens, by the listener and the address of it that was called: they are bound to
    /// the client's address, and each path has its own.
    tokens: RefCell<Stock<(Issuer, IpAddr), Bytes>>,
    /// Over which address tickets are fetched when they run out: the shortest path.
    shortest: IpAddr,
    others: ThirdParty<'a>,
}

impl<'a> Sampler<'a> {
    /// Ours, and beside it clients of other makes.
    pub(crate) fn new(
        trust: &Path,
        key_log: &Arc<KeyLogLines>,
        shortest: IpAddr,
        others: ThirdParty<'a>,
    ) -> Self {
        let connectors = Connectors::new(Trust::File(trust.to_owned()), key_log);
        Self {
            connectors,
            tickets: RefCell::default(),
            tokens: RefCell::default(),
            shortest,
            others,
        }
    }

    /// Takes samples in their order; `done` is called after each.
    pub(crate) async fn take(
        &self,
        jobs: Vec<Job>,
        pace: Pace,
        done: &dyn Fn(),
    ) -> Vec<ClientRecord> {
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

    /// One full connection outside the figures, which leaves tickets, the TCP Fast Open cookie and,
    /// over QUIC, address tokens.
    pub(crate) async fn warm_up(
        &self,
        server: ServerKind,
        asked: &RequestedConnection,
        address: IpAddr,
    ) -> Result<(), LabError> {
        let asked = RequestedConnection {
            kind: Kind::Full,
            tfo: !asked.over_quic(),
            token: false,
            ..*asked
        };
        let address = SocketAddr::from((address, server.port(asked.workload, asked.certificate)));
        let brought = ConnectionOffer { host: HOST.to_owned(), ..ConnectionOffer::default() };
        let asked = (server, &asked);
        let (result, _) =
            self.connect(asked, brought, address, target(asked.1), SAMPLE_TIMEOUT).await;
        result.map(drop).map_err(|source| failed(server, source))
    }

    /// A GET of `target` by early data, over the shortest path: whose flight the attacker captures.
    pub(crate) async fn early_get(
        &self,
        server: ServerKind,
        asked: &RequestedConnection,
        target: &str,
    ) -> Result<ClientRecord, LabError> {
        let offer = self.offer(server, asked, self.shortest).await?;
        let port = server.port(Workload::Get, asked.certificate);
        let address = SocketAddr::from((self.shortest, port));
        let began_ns = monotonic_ns();
        let (result, local) =
            self.connect((server, asked), offer, address, target, SAMPLE_TIMEOUT).await;
        let times = result.map_err(|source| failed(server, source))?;
        let slot = Slot { cell: 0, block: 0 };
        Ok(ClientRecord {
            slot,
            began_ns,
            local,
            client_random: None,
            server: address,
            outcome: Ok(times),
        })
    }

    /// A connection by a client of another make.
    async fn sample_of_another(&self, job: &Job, server: SocketAddr) -> ClientRecord {
        let began_ns = monotonic_ns();
        let random = self.others.connect(job.client, &job.asked, server, job.limit).await;
        let (client_random, outcome) = match random {
            Ok(random) => (Some(random), Ok(Times::default())),
            Err(why) => (None, Err(why)),
        };
        ClientRecord { slot: job.slot, began_ns, local: None, client_random, server, outcome }
    }

    pub(crate) async fn sample(&self, job: &Job) -> ClientRecord {
        let Job { slot, server, asked, address: ip, limit, .. } = job;
        let address = SocketAddr::from((*ip, server.port(asked.workload, asked.certificate)));
        if job.client != Client::Firstflight {
            return self.sample_of_another(job, address).await;
        }
        let offer = match self.offer(*server, asked, *ip).await {
            Ok(offer) => offer,
            Err(error) => {
                return ClientRecord {
                    slot: *slot,
                    began_ns: monotonic_ns(),
                    local: None,
                    client_random: None,
                    server: address,
                    outcome: Err(error.to_string()),
                };
            }
        };
        let began_ns = monotonic_ns();
        let (result, local) =
            self.connect((*server, asked), offer, address, target(asked), *limit).await;
        let outcome = result.map_err(|error| error.to_string());
        ClientRecord { slot: *slot, began_ns, local, client_random: None, server: address, outcome }
    }

    /// What a connection of this kind to this address brings along; fetches a ticket or a token
    /// first if there is none.
    async fn offer(
        &self,
        server: ServerKind,
        asked: &RequestedConnection,
        address: IpAddr,
    ) -> Result<ConnectionOffer, LabError> {
        let mut brought = ConnectionOffer { host: HOST.to_owned(), ..ConnectionOffer::default() };
        if asked.kind == Kind::Full {
            return Ok(brought);
        }
        brought.early_data = asked.kind.is_early();
        let issuer = Issuer::of(server, asked);
        if asked.token {
            let token = || self.tokens.borrow_mut().pop(&(issuer, address));
            brought.token = token();
            if brought.token.is_none() {
                self.warm_up(server, asked, address).await?;
                brought.token = token();
            }
        }
        let ticket = || self.tickets.borrow_mut().take(&issuer, asked.version);
        let mut taken = ticket();
        if taken.is_none() {
            self.warm_up(server, asked, self.shortest).await?;
            taken = ticket();
        }
        brought.ticket = match (taken, asked.kind) {
            (Some(ticket), Kind::Refused) => Some(ticket.issued_earlier(TOO_OLD_S)?),
            (ticket, _) => ticket,
        };
        Ok(brought)
    }

    /// Connects, asks, reads to the end of the response, and keeps what is for later connections.
    /// The local address is there as soon as the socket was.
    async fn connect(
        &self,
        (server, asked): (ServerKind, &RequestedConnection),
        brought: ConnectionOffer,
        address: SocketAddr,
        target: &str,
        limit: Duration,
    ) -> (Result<Times, ClientError>, Option<SocketAddr>) {
        let mut local = None;
        let whole = talk(&self.connectors, brought, address, asked, target, &mut local);
        let result = match tokio::time::timeout(limit, whole).await {
            Ok(result) => result,
            Err(_) => Err(ClientError::Timeout { phase: "the whole sample", after: limit }),
        };
        let times = result.map(|talked| {
            let issuer = Issuer::of(server, asked);
            self.tickets.borrow_mut().put(issuer, talked.tickets);
            self.tokens.borrow_mut().put((issuer, address.ip()), talked.tokens);
            talked.times
        });
        (times, local)
    }
}

fn failed(server: ServerKind, source: ClientError) -> LabError {
    LabError::WarmUp { server: server.name().to_owned(), source }
}

/// Longer than any handshake of a plan takes, and an end to one that hangs.
pub(crate) const SAMPLE_TIMEOUT: Duration = Duration::from_secs(15);

/// What a connection asks for.
fn target(asked: &RequestedConnection) -> &'static str {
    asked.size.path()
}
