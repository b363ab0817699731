//! A demonstration of 0-RTT on a running server: a first visit, a returning visit whose request is
//! early data, and a replay of the returning visit's first flight.
//!
//! The visits pass through a [`Relay`] in this process. It counts the round trips and records the
//! flight to replay. [`run`] returns a [`DemoReport`].

mod outcome;
mod relay;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use firstflight_client::{
    Client, ClientConfig, ClientError, EarlyPolicy, HttpVersions, Jar, JarError, JarKey, Listener,
    Report, Request, Target,
};
use firstflight_tls::{Trust, Version};
use tokio::time::timeout;

pub use outcome::{DemoReport, Replay, Visit};
pub use relay::{Relay, RelayedConnection};

/// What [`run`] visits, and how.
pub struct DemoConfig<'a> {
    /// The server, which listens on TCP.
    pub server: SocketAddr,
    /// A host name of the server that resolves to 127.0.0.1.
    pub host: &'a str,
    /// The path to request, percent-encoded.
    pub path: &'a str,
    /// The certificates to trust.
    pub trust: Trust,
    /// Reads the server's counters.
    pub counts: &'a dyn Fn() -> ServerCounts,
}

/// Counters of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounts {
    /// Responses sent.
    pub responses: u64,
    /// Replayed first flights whose early data was refused.
    pub replays_blocked: u64,
}

/// Runs the two visits and the replay. Call it on a current-thread runtime.
///
/// # Errors
/// [`DemoError`] if a visit fails. Refused early data is not an error.
pub async fn run(demo: &DemoConfig<'_>) -> Result<DemoReport, DemoError> {
    let relay = Relay::new(demo.server).await?;
    // Temporary, so that the sessions are deleted at the end.
    let directory = tempfile::tempdir()?;
    let key = JarKey::File(directory.path().join("key"));
    let client = Client::new(ClientConfig {
        trust: demo.trust.clone(),
        versions: (Version::Tls13, Version::Tls13),
        http: HttpVersions::One,
        early_data: EarlyPolicy::SafeMethods,
        max_time: Some(VISIT_TIMEOUT),
        jar: Some(Jar::open(&directory.path().join("jar"), key)?),
        ..ClientConfig::new()
    })?;
    let target = Target::parse(&format!("https://{}:{}{}", demo.host, relay.port()?, demo.path))?;
    let (first, _) = visit("first", &client, &target, &relay).await?;
    let (returning, relayed) = visit("returning", &client, &target, &relay).await?;
    let replay = match returning.early_data {
        true => Some(replay(demo, &relayed.first_flight).await?),
        false => None,
    };
    Ok(DemoReport { path: demo.path.to_owned(), first, returning, replay })
}

async fn visit(
    name: &'static str,
    client: &Client,
    target: &Target,
    relay: &Relay,
) -> Result<(Visit, RelayedConnection), DemoError> {
    let (mut relayed, mut body) = (RelayedConnection::default(), BodyCounter(0));
    let mut relaying = Box::pin(relay.forward(&mut relayed));
    let mut fetch = Box::pin(client.fetch(Request::get(target.clone()), &mut body));
    let report = tokio::select! {
        report = &mut fetch => report,
        result = &mut relaying => {
            result?;
            fetch.await
        }
    };
    // Waits until the server has closed its side, too.
    let _ = timeout(VISIT_TIMEOUT, relaying).await;
    let visit = visit_from_report(name, &report, &relayed)?;
    Ok((visit, relayed))
}

fn visit_from_report(
    name: &'static str,
    report: &Report,
    relayed: &RelayedConnection,
) -> Result<Visit, DemoError> {
    let failed = |reason: String| DemoError::Visit { visit: name, reason };
    if let Some(error) = &report.error {
        return Err(failed(error.to_string()));
    }
    let (Some(first_byte), Some(facts)) = (report.marks.first_byte, &report.facts) else {
        return Err(failed("the server sent no response".to_owned()));
    };
    Ok(Visit {
        status: report.status(),
        resumed: facts.resumed,
        early_data: report.early_data() == "accepted",
        early_data_reason: facts.early_data_reason.to_string(),
        early_bytes: report.early_bytes,
        first_flight_bytes: relayed.first_flight.len(),
        // The TCP handshake's round trip precedes the first byte at the relay.
        round_trips: 1 + relayed.server_flights_until(first_byte),
        first_byte_ms: report.timings().starttransfer * 1e3,
    })
}

/// Replays a first flight on a new connection, and waits until the server has closed it.
async fn replay(demo: &DemoConfig<'_>, flight: &[u8]) -> Result<Replay, DemoError> {
    let before = (demo.counts)();
    let response_bytes = timeout(VISIT_TIMEOUT, relay::replay_flight(demo.server, flight)).await;
    let response_bytes = response_bytes.unwrap_or(Ok(0))?;
    let after = (demo.counts)();
    Ok(Replay {
        bytes: flight.len(),
        response_bytes,
        detected: after.replays_blocked > before.replays_blocked,
        executed: after.responses > before.responses,
    })
}

/// Why the demonstration failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DemoError {
    /// The client could not be set up.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The session jar could not be opened.
    #[error(transparent)]
    Jar(#[from] JarError),
    /// A visit failed.
    #[error("the {visit} visit failed: {reason}")]
    Visit {
        /// `first` or `returning`.
        visit: &'static str,
        /// The cause.
        reason: String,
    },
    /// A socket or file could not be opened.
    #[error("the demonstration needs a loopback socket and a temporary directory: {0}")]
    System(#[from] io::Error),
}

/// Counts the bytes of a body and discards them.
struct BodyCounter(u64);

impl Listener for BodyCounter {
    fn body(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.0 += bytes.len() as u64;
        Ok(())
    }
}

/// Limit for each step; generous, for busy machines.
const VISIT_TIMEOUT: Duration = Duration::from_secs(20);
