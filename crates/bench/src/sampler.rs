//! Makes the connections of a run: one after the other or paced, from one thread in the client's
//! namespace.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use firstflight_client::ClientError;
use firstflight_link::monotonic_ns;
use firstflight_tls::{KeyLogLines, Offer, Session, Trust};
use futures_util::StreamExt;

use crate::connectors::Connectors;
use crate::exchange::{Times, talk};
use crate::plan::Slot;
use crate::servers::{Asked, HOST};
use crate::tickets::{Issuer, TicketPool};
use crate::{BenchError, Kind, ServerKind, Workload};

/// A connection as the client saw it; what it was is for the packets to say.
pub(crate) struct Taken {
    pub slot: Slot,
    /// Just before the connect call, on the link's clock.
    pub began_ns: u64,
    /// The client's end, which finds the packets.
    pub local: Option<SocketAddr>,
    pub server: SocketAddr,
    pub outcome: Result<Times, String>,
}

/// How the samples of one queue follow each other.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// Each begins when the one before has ended.
    OneByOne,
    /// One begins every so often, whatever became of those before: long paths, where waiting is
    /// most of the time. Spreading the beginnings keeps computing phases apart.
    Every(Duration),
}

/// One sample to take.
#[derive(Clone)]
pub(crate) struct Job {
    pub slot: Slot,
    pub server: ServerKind,
    pub asked: Asked,
    /// The server's address on the path.
    pub address: IpAddr,
    /// When to give up.
    pub limit: Duration,
}

/// The client side of a run.
pub(crate) struct Sampler {
    connectors: Connectors,
    tickets: RefCell<TicketPool<Issuer>>,
    /// Over which address tickets are fetched when they run out: the shortest path.
    shortest: IpAddr,
}

impl Sampler {
    pub(crate) fn new(trust: &Path, key_log: &Arc<KeyLogLines>, shortest: IpAddr) -> Self {
        let connectors = Connectors::new(Trust::File(trust.to_owned()), key_log);
        Self { connectors, tickets: RefCell::default(), shortest }
    }

    /// Takes samples in their order; `done` is called after each.
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

    /// One full connection outside the figures, which leaves tickets and the TCP Fast Open cookie.
    pub(crate) async fn warm_up(
        &self,
        server: ServerKind,
        asked: &Asked,
        address: IpAddr,
    ) -> Result<(), BenchError> {
        let asked = Asked { kind: Kind::Full, tfo: true, ..*asked };
        let address = SocketAddr::from((address, server.port(asked.workload, asked.certificate)));
        let offer = Offer { host: HOST.to_owned(), ..Offer::default() };
        let (result, _) = self.connect(&asked, &offer, address, target(&asked), LONGEST).await;
        let (_, sessions) = result
            .map_err(|source| BenchError::WarmUp { server: server.name().to_owned(), source })?;
        self.tickets.borrow_mut().put(Issuer::of(server, &asked), sessions);
        Ok(())
    }

    /// A GET of `target` by early data, over the shortest path: the attacker's quarry.
    pub(crate) async fn early_get(
        &self,
        server: ServerKind,
        asked: &Asked,
        target: &str,
    ) -> Result<Taken, BenchError> {
        let offer = self.offer(server, asked).await?;
        let port = server.port(Workload::Get, asked.certificate);
        let address = SocketAddr::from((self.shortest, port));
        let began_ns = monotonic_ns();
        let (result, local) = self.connect(asked, &offer, address, target, LONGEST).await;
        let (times, sessions) = result
            .map_err(|source| BenchError::WarmUp { server: server.name().to_owned(), source })?;
        self.tickets.borrow_mut().put(Issuer::of(server, asked), sessions);
        let slot = Slot { cell: 0, block: 0 };
        Ok(Taken { slot, began_ns, local, server: address, outcome: Ok(times) })
    }

    pub(crate) async fn sample(&self, job: &Job) -> Taken {
        let Job { slot, server, asked, address, limit } = job;
        let address = SocketAddr::from((*address, server.port(asked.workload, asked.certificate)));
        let failed = |began_ns, local, error: String| Taken {
            slot: *slot,
            began_ns,
            local,
            server: address,
            outcome: Err(error),
        };
        let offer = match self.offer(*server, asked).await {
            Ok(offer) => offer,
            Err(error) => return failed(monotonic_ns(), None, error.to_string()),
        };
        let began_ns = monotonic_ns();
        let (result, local) = self.connect(asked, &offer, address, target(asked), *limit).await;
        match result {
            Ok((times, sessions)) => {
                self.tickets.borrow_mut().put(Issuer::of(*server, asked), sessions);
                Taken { slot: *slot, began_ns, local, server: address, outcome: Ok(times) }
            }
            Err(error) => failed(began_ns, local, error.to_string()),
        }
    }

    /// What a connection of this kind brings along; fetches a ticket first if there is none.
    async fn offer(&self, server: ServerKind, asked: &Asked) -> Result<Offer, BenchError> {
        let mut offer = Offer { host: HOST.to_owned(), ..Offer::default() };
        if asked.kind == Kind::Full {
            return Ok(offer);
        }
        offer.early_data = asked.kind.is_early();
        let issuer = Issuer::of(server, asked);
        let mut session = self.tickets.borrow_mut().take(&issuer, asked.version);
        if session.is_none() {
            self.warm_up(server, asked, self.shortest).await?;
            session = self.tickets.borrow_mut().take(&issuer, asked.version);
        }
        offer.session = match (session, asked.kind) {
            (Some(session), Kind::Refused) => Some(session.issued_earlier(TOO_OLD_S)?),
            (session, _) => session,
        };
        Ok(offer)
    }

    /// Connects, asks, and reads to the end of the answer. The local address is there as soon as
    /// the socket was.
    async fn connect(
        &self,
        asked: &Asked,
        offer: &Offer,
        address: SocketAddr,
        target: &str,
        limit: Duration,
    ) -> (Result<(Times, Vec<Session>), ClientError>, Option<SocketAddr>) {
        let connector = match self.connectors.get(asked) {
            Ok(connector) => connector,
            Err(error) => return (Err(ClientError::Usage(error.to_string())), None),
        };
        let mut local = None;
        let whole = talk(&connector, offer, address, asked, target, &mut local);
        let result = match tokio::time::timeout(limit, whole).await {
            Ok(result) => result,
            Err(_) => Err(ClientError::Timeout { phase: "the whole sample", after: limit }),
        };
        (result, local)
    }
}

/// Longer than any handshake of a plan takes, and an end to one that hangs.
pub(crate) const LONGEST: Duration = Duration::from_secs(15);

/// Servers that check freshness allow 10 s (RFC 8446 section 8.3), BoringSSL 60 s.
pub(crate) const TOO_OLD_S: u32 = 100;

/// What a connection asks for.
fn target(asked: &Asked) -> &'static str {
    asked.size.path()
}
