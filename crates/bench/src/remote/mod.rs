//! Measures a remote server over the real network.
//!
//! If this process may capture packets, labels and round trips come from the packets of its own
//! connections at this machine. Otherwise labels come from the TLS state, `TCP_INFO` and QUIC's
//! statistics, and round trips are times divided by the minimum RTT. That is an upper bound, because
//! it includes the time that the server takes.

mod config;
mod connection;
mod packets;
mod record;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use firstflight_client::{Resolver, Target, connect_tcp};
use firstflight_emulator::monotonic_ns;
use firstflight_report::Record;
use firstflight_samples::{
    Connectors, HandshakeKind, MIN_CONTROL_SAMPLES, Transport, blocks, utc_now, why_impossible,
};
use firstflight_tls::KeyLogLines;
use futures_util::StreamExt;

use connection::{Cell, Outcome, RemoteServer, SampledConnection, take_sample};
use packets::Packets;
use record::RunState;

pub use config::{LabelSource, RemoteConfig, RemoteError};

/// Progress of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Checking what the server supports.
    Starting,
    /// Taking samples.
    Measuring {
        /// Samples taken.
        done: usize,
        /// Samples in total.
        total: usize,
    },
}

/// Measures a server and returns the record. [`Record::witness`] is the source of labels that was
/// used. Combinations that the server does not support are left out, with the reason.
///
/// # Errors
/// [`RemoteError`] if the URL is invalid, the server cannot be reached, nothing is left to measure, or
/// packets are required and cannot be captured. Samples that fail are in the record.
pub fn run(
    config: &RemoteConfig,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Record, RemoteError> {
    let started = Instant::now();
    let date = utc_now();
    progress(Progress::Starting);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| RemoteError::System { what: "start the client", source })?;
    let mut record = runtime.block_on(measure(config, progress))?;
    record.date = date;
    record.seconds = started.elapsed().as_secs_f64();
    Ok(record)
}

async fn measure(
    config: &RemoteConfig,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Record, RemoteError> {
    let transports = config.used_transports();
    let (target, address) = resolve(config, &transports).await?;
    let key_log = Arc::new(KeyLogLines::default());
    let (mut packets, capture_error) = open_capture(config, address, &transports, &key_log)?;
    let connectors = Connectors::new(config.trust.clone(), &key_log);
    let server = RemoteServer::new(connectors, target, address, config.timeout);
    let (cells, left_out, first) = check_cells(config, &server).await?;
    if let Some(packets) = &mut packets {
        packets.warm_up();
    }
    let indices: Vec<usize> = (0..cells.len()).collect();
    let order = blocks(&indices, &|_| config.samples, config.seed);
    let (total, done) = (order.len(), AtomicUsize::new(0));
    let origin_ns = monotonic_ns();
    let concurrency = config.concurrency.max(1);
    let mut samples = Vec::with_capacity(total);
    let mut min_rtt = first.min_rtt;
    let max_response_bytes = cells.iter().map(|cell| cell.response_bytes).max().unwrap_or_default();
    for batch in order.chunks(batch_size(max_response_bytes).max(concurrency)) {
        let sampled = batch.iter().map(|slot| {
            let (server, cells, done) = (&server, &cells, &done);
            async move {
                let sampled = take_sample(server, *slot, &cells[slot.cell].requested).await;
                let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                progress(Progress::Measuring { done, total });
                sampled
            }
        });
        let sampled = futures_util::stream::iter(sampled).buffer_unordered(concurrency);
        let sampled: Vec<SampledConnection> = sampled.collect().await;
        match &mut packets {
            Some(packets) => {
                samples.extend(packets.classify(
                    &sampled,
                    &cells,
                    origin_ns,
                    config.output.as_deref(),
                )?);
            }
            None => {
                key_log.take();
                samples
                    .extend(sampled.iter().map(|sampled| sampled.kernel_sample(&cells, origin_ns)));
            }
        }
        min_rtt = sampled.iter().filter_map(SampledConnection::min_rtt).chain(min_rtt).min();
    }
    samples.sort_by(|a, b| a.at_ms.total_cmp(&b.at_ms));
    let state = RunState { samples, min_rtt, packets, capture_error };
    Ok(record::record(config, &server, &cells, state, left_out, &first))
}

/// Opens the capture. Returns the reason if there is none.
fn open_capture(
    config: &RemoteConfig,
    address: SocketAddr,
    transports: &[Transport],
    key_log: &Arc<KeyLogLines>,
) -> Result<(Option<Packets>, Option<String>), RemoteError> {
    if config.label_source == LabelSource::Kernel {
        return Ok((None, None));
    }
    match Packets::open(address, transports, key_log) {
        Ok(packets) => Ok((Some(packets), None)),
        Err(error) if config.label_source == LabelSource::Packets => Err(error.into()),
        Err(error) => Ok((None, Some(error.to_string()))),
    }
}

/// Limits the samples whose packets are classified together, so that the packets fit into memory.
fn batch_size(response_bytes: usize) -> usize {
    // 64 KiB for the handshake and for connections that fetch tickets.
    (packets::MAX_CAPTURE_BYTES / 4 / (response_bytes + (1 << 16))).clamp(1, 256)
}

async fn resolve(
    config: &RemoteConfig,
    transports: &[Transport],
) -> Result<(Target, SocketAddr), RemoteError> {
    let url_error = |reason: String| RemoteError::Url { url: config.url.clone(), reason };
    let target = Target::parse(&config.url).map_err(|error| url_error(error.to_string()))?;
    if target.scheme() != firstflight_client::Scheme::Https {
        return Err(url_error("the URL must start with https://".to_owned()));
    }
    let mut resolver = Resolver::default();
    for entry in &config.resolve {
        resolver.add_override(entry).map_err(|error| url_error(error.to_string()))?;
    }
    let addresses = resolver.resolve(target.host(), target.port()).await;
    let addresses = addresses.map_err(|error| url_error(error.to_string()))?;
    let first = addresses.first().copied();
    let first = first.ok_or_else(|| url_error("its host has no address".to_owned()))?;
    if !transports.contains(&Transport::Tcp) {
        return Ok((target, first));
    }
    // All samples use the first address that responds, because two addresses may be two servers.
    // A server that cannot be reached must not look like one that supports nothing.
    let reached = tokio::time::timeout(config.timeout, connect_tcp(&addresses, false)).await;
    match reached {
        Ok(reached) => {
            let reached = reached.map_err(|error| url_error(error.to_string()))?;
            Ok((target, reached.peer))
        }
        Err(_) => Err(url_error(format!("{first} does not respond"))),
    }
}

/// Checks every combination and keeps those that the server supports. Adds one again as A/A
/// control. Fetches the first tickets and the TCP Fast Open cookie on the way.
async fn check_cells(
    config: &RemoteConfig,
    server: &RemoteServer,
) -> Result<(Vec<Cell>, Vec<String>, Outcome), RemoteError> {
    let (mut cells, mut left_out, mut first) = (Vec::new(), Vec::new(), None);
    for requested in config.requested() {
        let why = match why_impossible(&requested) {
            Some(why) => Some(why.to_owned()),
            None => match server.check(&requested).await {
                Ok(outcome) => {
                    let response_bytes = outcome.bytes;
                    cells.push(Cell { requested, control_of: None, response_bytes });
                    first.get_or_insert(outcome);
                    None
                }
                Err(why) => Some(format!("{}: {why}", connection::describe(&requested))),
            },
        };
        left_out.extend(why.filter(|why| !left_out.contains(why)));
    }
    let Some(first) = first else {
        let reasons = left_out.join("; ");
        return Err(RemoteError::EmptyPlan(format!("nothing is left to measure: {reasons}")));
    };
    if config.control && config.samples >= MIN_CONTROL_SAMPLES {
        let early = cells.iter().position(|cell| cell.requested.kind == HandshakeKind::ZeroRtt);
        let cell = early.unwrap_or(0);
        cells.push(Cell { control_of: Some(cell), ..cells[cell] });
    }
    Ok((cells, left_out, first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn rfc8305_5_the_next_address_of_a_name_is_tried() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let port = address.port();
        let mut config = RemoteConfig::new(format!("https://a.test:{port}/"));
        config.resolve = vec![format!("a.test:{port}:127.0.0.9,127.0.0.1")];
        let (_, found) = resolve(&config, &[Transport::Tcp]).await.unwrap();
        assert_eq!(found, address);
        drop(listener);
        let refused = resolve(&config, &[Transport::Tcp]).await.unwrap_err();
        assert!(refused.to_string().contains("127.0.0.1"), "{refused}");
    }
}
