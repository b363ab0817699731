//! What 0-RTT does, shown at a server that runs: a first visit, a returning one whose request is
//! early data, and the returning one's flight once more as an attacker would send it.
//!
//! The visits go through a [`Relay`] in this process, which is the witness: it sees who waited for
//! whom, and has the flight that is sent again. [`take`] makes the tour, [`Story`] is what was
//! seen.
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

pub use outcome::{Copy, Story, Visit};
pub use relay::{Passage, Relay};

/// Where a tour goes.
pub struct Tour<'a> {
    /// The server, which listens on TCP.
    pub server: SocketAddr,
    /// A host name of it that leads to 127.0.0.1.
    pub host: &'a str,
    /// What is requested: a path, percent-encoded.
    pub path: &'a str,
    /// Whom to trust.
    pub trust: Trust,
    /// What the server says of itself.
    pub counts: &'a dyn Fn() -> Counts,
}

/// What a server has counted so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that it has answered.
    pub answered: u64,
    /// Copies of flights that it has kept from running.
    pub stopped: u64,
}

/// Makes the tour, on the calling thread's current-thread runtime.
///
/// # Errors
/// [`TourError`]: a visit came to nothing. That early data was refused is no error.
pub async fn take(tour: &Tour<'_>) -> Result<Story, TourError> {
    let relay = Relay::to(tour.server).await?;
    // Away with the tour: its sessions are of use to nobody else.
    let folder = tempfile::tempdir()?;
    let key = JarKey::File(folder.path().join("key"));
    let client = Client::new(ClientConfig {
        trust: tour.trust.clone(),
        versions: (Version::Tls13, Version::Tls13),
        http: HttpVersions::One,
        early_data: EarlyPolicy::SafeMethods,
        max_time: Some(VISIT_TIMEOUT),
        jar: Some(Jar::open(&folder.path().join("jar"), key)?),
        ..ClientConfig::new()
    })?;
    let target = Target::parse(&format!("https://{}:{}{}", tour.host, relay.port()?, tour.path))?;
    let (first, _) = visit("first", &client, &target, &relay).await?;
    let (returning, passage) = visit("returning", &client, &target, &relay).await?;
    let copy = match returning.early_data {
        true => Some(copy(tour, &passage.first_flight).await?),
        false => None,
    };
    Ok(Story { path: tour.path.to_owned(), first, returning, copy })
}

async fn visit(
    name: &'static str,
    client: &Client,
    target: &Target,
    relay: &Relay,
) -> Result<(Visit, Passage), TourError> {
    let (mut passage, mut body) = (Passage::default(), Counter(0));
    let mut passing = Box::pin(relay.pass(&mut passage));
    let mut fetching = Box::pin(client.fetch(Request::get(target.clone()), &mut body));
    let report = tokio::select! {
        report = &mut fetching => report,
        passed = &mut passing => {
            passed?;
            fetching.await
        }
    };
    // Both ends are let go, so that the server has ended its side too.
    let _ = timeout(VISIT_TIMEOUT, passing).await;
    let seen = judge(name, &report, &passage)?;
    Ok((seen, passage))
}

/// What a visit came to.
fn judge(name: &'static str, report: &Report, passage: &Passage) -> Result<Visit, TourError> {
    let failed = |reason: String| TourError::Visit { visit: name, reason };
    if let Some(error) = &report.error {
        return Err(failed(error.to_string()));
    }
    let (Some(first_byte), Some(facts)) = (report.marks.first_byte, &report.facts) else {
        return Err(failed("there was no answer".to_owned()));
    };
    Ok(Visit {
        status: report.status(),
        resumed: facts.resumed,
        early_data: report.early_data() == "accepted",
        early_data_says: facts.early_data_reason.to_string(),
        early_bytes: report.early_bytes,
        first_flight_bytes: passage.first_flight.len(),
        // TCP's own comes before the relay has anything to see.
        round_trips: 1 + passage.waits_until(first_byte),
        first_byte_ms: report.timings().starttransfer * 1e3,
    })
}

/// The flight once more, on a connection of its own. The server has ended with it when this
/// returns.
async fn copy(tour: &Tour<'_>, flight: &[u8]) -> Result<Copy, TourError> {
    let before = (tour.counts)();
    let answer_bytes = timeout(VISIT_TIMEOUT, relay::send_alone(tour.server, flight)).await;
    let answer_bytes = answer_bytes.unwrap_or(Ok(0))?;
    let after = (tour.counts)();
    Ok(Copy {
        bytes: flight.len(),
        answer_bytes,
        seen: after.stopped > before.stopped,
        executed: after.answered > before.answered,
    })
}

/// Why there was no tour.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TourError {
    /// The client could not be set up.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Its sessions cannot be kept.
    #[error(transparent)]
    Jar(#[from] JarError),
    /// A visit came to nothing.
    #[error("the {visit} visit failed: {reason}")]
    Visit {
        /// Which: `first` or `returning`.
        visit: &'static str,
        /// Why.
        reason: String,
    },
    /// The system gives no socket or file.
    #[error("the tour needs a loopback socket and a temporary directory: {0}")]
    System(#[from] io::Error),
}

/// Counts the body and keeps nothing of it.
struct Counter(u64);

impl Listener for Counter {
    fn body(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.0 += bytes.len() as u64;
        Ok(())
    }
}

/// For each step, on a machine that is busy with other things.
const VISIT_TIMEOUT: Duration = Duration::from_secs(20);
