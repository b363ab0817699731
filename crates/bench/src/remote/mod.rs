//! Measures a server elsewhere, over the network that there is.
//!
//! Where this process may capture, the packets of its own connections are the witnesses, as they
//! leave and reach this machine. Elsewhere the kernel and the TLS state are: labels come from what
//! the handshake negotiated and from `TCP_INFO`, and round trips are times in units of the least
//! RTT, which is an upper bound, for the server's own time is in it.

mod config;
mod connection;
mod error;
mod figures;
mod packets;
mod shot;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use firstflight_client::{Resolver, Target, connect_tcp};
use firstflight_emulator::monotonic_ns;
use firstflight_report::Record;
use firstflight_samples::{
    Connectors, HandshakeKind, MIN_CONTROL_SAMPLES, blocks, utc_now, why_impossible,
};
use firstflight_tls::KeyLogLines;
use futures_util::StreamExt;

pub use config::{LabelSource, RemoteConfig};
use connection::{Caller, Outcome};
pub use error::RemoteError;
use figures::RunState;
use packets::Packets;
use shot::{Cell, ClientView, shoot};

/// How far a run has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The server is being tried.
    Starting,
    /// Samples are being taken.
    Measuring {
        /// Samples taken.
        done: usize,
        /// Samples in all.
        total: usize,
    },
}

/// Measures and returns what was found; [`Record::witness`] is what was possible and wanted. A
/// combination that the server turns out not to do in a first connection is left out, with the
/// reason.
///
/// # Errors
/// [`RemoteError`] when the URL is not usable, the server cannot be reached, nothing is left to
/// measure, or packets were demanded and may not be captured. A sample that fails is in the record
/// instead.
pub fn run(
    config: &RemoteConfig,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Record, RemoteError> {
    let began = Instant::now();
    let date = utc_now();
    progress(Progress::Starting);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| RemoteError::System { what: "start the client", source })?;
    let mut record = runtime.block_on(measure(config, progress))?;
    record.date = date;
    record.seconds = began.elapsed().as_secs_f64();
    Ok(record)
}

async fn measure(
    config: &RemoteConfig,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Record, RemoteError> {
    let (target, address) = resolve(config).await?;
    let key_log = Arc::new(KeyLogLines::default());
    let (mut packets, why_none) = witness(config, address, &key_log)?;
    let connectors = Connectors::new(config.trust.clone(), &key_log);
    let caller = Caller::new(connectors, target, address, config.limit);
    let (cells, left_out, first) = trial(config, &caller).await?;
    if let Some(packets) = &mut packets {
        packets.warm_up();
    }
    let numbers: Vec<usize> = (0..cells.len()).collect();
    let order = blocks(&numbers, &|_| config.samples, config.seed);
    let (total, done) = (order.len(), AtomicUsize::new(0));
    let origin_ns = monotonic_ns();
    let at_a_time = config.at_a_time.max(1);
    let mut samples = Vec::with_capacity(total);
    let mut least_rtt = first.min_rtt;
    for stretch in order.chunks(stretch(first.bytes).max(at_a_time)) {
        let shots = stretch.iter().map(|slot| {
            let (caller, cells, done) = (&caller, &cells, &done);
            async move {
                let shot = shoot(caller, *slot, &cells[slot.cell].asked).await;
                let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                progress(Progress::Measuring { done, total });
                shot
            }
        });
        let shots = futures_util::stream::iter(shots).buffer_unordered(at_a_time);
        let shots: Vec<ClientView> = shots.collect().await;
        match &mut packets {
            Some(packets) => {
                samples.extend(packets.judge(
                    &shots,
                    &cells,
                    origin_ns,
                    config.output.as_deref(),
                )?);
            }
            None => {
                key_log.take();
                samples.extend(shots.iter().map(|shot| shot.by_kernel(&cells, origin_ns)));
            }
        }
        least_rtt = shots.iter().filter_map(ClientView::min_rtt).chain(least_rtt).min();
    }
    samples.sort_by(|a, b| a.at_ms.total_cmp(&b.at_ms));
    let seen = RunState { samples, least_rtt, packets, why_none };
    Ok(figures::record(config, &caller, &cells, seen, left_out, &first))
}

/// The packets' witness, or why there is none.
fn witness(
    config: &RemoteConfig,
    address: SocketAddr,
    key_log: &Arc<KeyLogLines>,
) -> Result<(Option<Packets>, Option<String>), RemoteError> {
    if config.witness == LabelSource::Kernel {
        return Ok((None, None));
    }
    match Packets::open(address, key_log) {
        Ok(packets) => Ok((Some(packets), None)),
        Err(error) if config.witness == LabelSource::Packets => Err(error.into()),
        Err(error) => Ok((None, Some(error.to_string()))),
    }
}

/// After how many samples their packets are judged: so many as surely fit into memory.
fn stretch(answer_bytes: usize) -> usize {
    // Beside the response: the handshake, and the connections that fetch tickets.
    (packets::LIMIT / 4 / (answer_bytes + (1 << 16))).clamp(1, 256)
}

async fn resolve(config: &RemoteConfig) -> Result<(Target, SocketAddr), RemoteError> {
    let unusable = |reason: String| RemoteError::Url { url: config.url.clone(), reason };
    let target = Target::parse(&config.url).map_err(|error| unusable(error.to_string()))?;
    if target.scheme() != firstflight_client::Scheme::Https {
        return Err(unusable("what is measured is TLS, so it must begin with https://".to_owned()));
    }
    let mut resolver = Resolver::default();
    for entry in &config.resolve {
        resolver.add_override(entry).map_err(|error| unusable(error.to_string()))?;
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
) -> Result<(Vec<Cell>, Vec<String>, Outcome), RemoteError> {
    let (mut cells, mut left_out, mut first) = (Vec::new(), Vec::new(), None);
    for asked in config.asked() {
        let why = match why_impossible(&asked) {
            _ if asked.over_quic() => Some(NO_QUIC.to_owned()),
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
        return Err(RemoteError::EmptyPlan(format!("nothing is left to measure: {reasons}")));
    };
    if config.control && config.samples >= MIN_CONTROL_SAMPLES {
        let early = cells.iter().position(|cell| cell.asked.kind == HandshakeKind::ZeroRtt);
        let cell = early.unwrap_or(0);
        cells.push(Cell { twin_of: Some(cell), ..cells[cell] });
    }
    Ok((cells, left_out, first))
}

/// A kernel joins datagrams of one connection before a capture sees them, and only it knows where
/// one ends.
const NO_QUIC: &str = "HTTP/3: datagrams cannot be told apart in a capture on a real path; \
                       measure it in the lab, or under load (--rate, --connections)";
