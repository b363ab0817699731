//! Measures a server elsewhere, over the network that there is.
//!
//! The kernel and the TLS state are the witnesses: labels come from what the handshake negotiated
//! and from `TCP_INFO`, and round trips are times in units of the least RTT, which is an upper
//! bound, for the server's own time is in it.

mod connection;
mod figures;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use firstflight_client::{Resolver, Target, connect_tcp};
use firstflight_report::{Record, Sample};
use firstflight_tls::{KeyLogLines, Trust, Version};
use futures_util::StreamExt;

use crate::connectors::Connectors;
use crate::lab::Progress;
use crate::plan::{LEAST_FOR_CONTROL, Slot, blocks, combinations, impossible};
use crate::servers::Asked;
use crate::{Axes, BenchError, Group, Http, Kind, Workload};
use connection::{Caller, Got};

/// What to measure at a server elsewhere.
#[derive(Clone, Debug)]
pub struct RemoteConfig {
    /// What is asked for; `https` only.
    pub url: String,
    /// Whom to believe.
    pub trust: Trust,
    /// Addresses for names, as curl's `--resolve` has them: `HOST:PORT:ADDRESS`.
    pub resolve: Vec<String>,
    /// TLS versions.
    pub versions: Vec<Version>,
    /// Handshake kinds; [`Kind::Refused`] makes the server refuse by a ticket that claims to be
    /// older.
    pub kinds: Vec<Kind>,
    /// Without and with TCP Fast Open.
    pub tfo: Vec<bool>,
    /// HTTP versions.
    pub http: Vec<Http>,
    /// Key-share groups.
    pub groups: Vec<Group>,
    /// Samples a cell.
    pub samples: usize,
    /// Connections at a time. One disturbs least; more are quicker where the way is long.
    pub at_a_time: usize,
    /// When a connection has hung.
    pub limit: Duration,
    /// Whether one cell is measured twice, as A/A control.
    pub control: bool,
    /// Orders the samples, and draws the bootstrap's resamples.
    pub seed: u64,
    /// The command that makes this run again, for the record.
    pub command: Vec<String>,
}

impl RemoteConfig {
    /// TLS 1.3 over HTTP/1.1 with X25519, full, resumed and 0-RTT, 100 samples each, one at a time.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            trust: Trust::System,
            resolve: Vec::new(),
            versions: vec![Version::Tls13],
            kinds: vec![Kind::Full, Kind::Resumed, Kind::ZeroRtt],
            tfo: vec![false],
            http: vec![Http::One],
            groups: vec![Group::X25519],
            samples: 100,
            at_a_time: 1,
            limit: Duration::from_secs(15),
            control: true,
            seed: 0,
            command: Vec::new(),
        }
    }

    fn asked(&self) -> Vec<Asked> {
        combinations(&Axes {
            workloads: vec![Workload::Get],
            versions: self.versions.clone(),
            kinds: self.kinds.clone(),
            tfo: self.tfo.clone(),
            http: self.http.clone(),
            groups: self.groups.clone(),
            ..Axes::one()
        })
    }
}

/// A cell of a remote run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    pub asked: Asked,
    pub twin_of: Option<usize>,
}

/// Measures and returns what was found; [`Record::witness`] is the kernel. A combination that the
/// server turns out not to do in a first connection is left out, with the reason.
///
/// # Errors
/// [`BenchError`] when the URL is not usable, the server cannot be reached, or nothing is left to
/// measure. A sample that fails is in the record instead.
pub fn run(
    config: &RemoteConfig,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Record, BenchError> {
    let began = Instant::now();
    let date = crate::lab::now();
    progress(Progress::Starting);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| BenchError::System { what: "start the client", source })?;
    let mut record = runtime.block_on(measure(config, progress))?;
    record.date = date;
    record.seconds = began.elapsed().as_secs_f64();
    Ok(record)
}

async fn measure(
    config: &RemoteConfig,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Record, BenchError> {
    let (target, address) = resolve(config).await?;
    let connectors = Connectors::new(config.trust.clone(), &Arc::new(KeyLogLines::default()));
    let caller = Caller::new(connectors, target, address, config.limit);
    let (cells, left_out, first) = trial(config, &caller).await?;
    let numbers: Vec<usize> = (0..cells.len()).collect();
    let order = blocks(&numbers, &|_| config.samples, config.seed);
    let (total, done) = (order.len(), AtomicUsize::new(0));
    let origin = Instant::now();
    let samples = order.into_iter().map(|slot| {
        let (caller, cells, done) = (&caller, &cells, &done);
        async move {
            let sample = sample(caller, slot, &cells[slot.cell].asked, origin).await;
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            progress(Progress::Measuring { done, total });
            sample
        }
    });
    let at_a_time = config.at_a_time.max(1);
    let mut samples: Vec<(Sample, Option<Duration>)> =
        futures_util::stream::iter(samples).buffer_unordered(at_a_time).collect().await;
    samples.sort_by(|a, b| a.0.at_ms.total_cmp(&b.0.at_ms));
    Ok(figures::record(config, &caller, &cells, samples, left_out, &first))
}

async fn resolve(config: &RemoteConfig) -> Result<(Target, SocketAddr), BenchError> {
    let unusable = |reason: String| BenchError::Url { url: config.url.clone(), reason };
    let target = Target::parse(&config.url).map_err(|error| unusable(error.to_string()))?;
    if target.scheme() != firstflight_client::Scheme::Https {
        return Err(unusable("what is measured is TLS, so it must begin with https://".to_owned()));
    }
    let mut resolver = Resolver::default();
    for entry in &config.resolve {
        resolver.fix(entry).map_err(|error| unusable(error.to_string()))?;
    }
    let addresses = resolver.resolve(target.host(), target.port()).await;
    let addresses = addresses.map_err(|error| unusable(error.to_string()))?;
    // One address for all samples: two may be two servers.
    let address = addresses.first().copied();
    let address = address.ok_or_else(|| unusable("its host has no address".to_owned()))?;
    // What comes to no connection now says nothing of what the server can do.
    let reached = tokio::time::timeout(config.limit, connect_tcp(&[address], false)).await;
    match reached {
        Ok(reached) => drop(reached.map_err(|error| unusable(error.to_string()))?),
        Err(_) => return Err(unusable(format!("{address} does not answer"))),
    }
    Ok((target, address))
}

/// Tries every combination and keeps those that are what they should be, doubles one as A/A
/// control, and fetches the first tickets and the TCP Fast Open cookie on the way.
async fn trial(
    config: &RemoteConfig,
    caller: &Caller,
) -> Result<(Vec<Cell>, Vec<String>, Got), BenchError> {
    let (mut cells, mut left_out, mut first) = (Vec::new(), Vec::new(), None);
    for asked in config.asked() {
        let why = match impossible(&asked) {
            Some(why) => Some(why.to_owned()),
            None => match caller.try_out(&asked).await {
                Ok(got) => {
                    first.get_or_insert(got);
                    None
                }
                Err(why) => Some(format!("{}: {why}", connection::in_words(&asked))),
            },
        };
        match why {
            None => cells.push(Cell { asked, twin_of: None }),
            Some(why) if left_out.contains(&why) => {}
            Some(why) => left_out.push(why),
        }
    }
    let Some(first) = first else {
        let reasons = left_out.join("; ");
        return Err(BenchError::EmptyPlan(format!("nothing is left to measure: {reasons}")));
    };
    if config.control && config.samples >= LEAST_FOR_CONTROL {
        let early = cells.iter().position(|cell| cell.asked.kind == Kind::ZeroRtt);
        let cell = early.unwrap_or(0);
        cells.push(Cell { twin_of: Some(cell), ..cells[cell] });
    }
    Ok((cells, left_out, first))
}

/// One sample, and the kernel's least RTT on its connection.
async fn sample(
    caller: &Caller,
    slot: Slot,
    asked: &Asked,
    origin: Instant,
) -> (Sample, Option<Duration>) {
    let offer = caller.offer(asked).await;
    let mut sample = Sample {
        cell: slot.cell,
        block: slot.block,
        at_ms: origin.elapsed().as_secs_f64() * 1e3,
        ..Sample::default()
    };
    let got = match offer {
        Ok(offer) => caller.call(asked, &offer).await,
        Err(why) => Err(why),
    };
    match got {
        Err(why) => {
            sample.fault = Some(firstflight_report::Fault::Failed(why));
            (sample, None)
        }
        Ok(got) => {
            let ms = |time: Duration| time.as_secs_f64() * 1e3;
            sample.setup_ms = got.times.setup.map(ms);
            sample.time_ms = Some(ms(got.times.first_byte));
            sample.total_ms = Some(ms(got.times.total));
            sample.label = Some(got.label.to_string());
            sample.fault = got.wrong(asked).map(firstflight_report::Fault::Mislabelled);
            (sample, got.min_rtt)
        }
    }
}
