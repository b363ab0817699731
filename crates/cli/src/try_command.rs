//! `firstflight try`: serves a directory and demonstrates 0-RTT on it.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use firstflight::demo::{self, DemoConfig, DemoError, DemoReport, ServerCounts};
use firstflight_certificates::authority::{Authority, default_directory};
use firstflight_config::{CertificateSource, Content, ServerConfig};
use firstflight_server::{Server, ServerError, ServerHandle};
use firstflight_tls::Trust;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tracing::warn;

use crate::print::{ignore_broken_pipe, stdout_failure};

/// Serve a directory on this machine and show its first 0-RTT response.
///
/// Visits it twice like a client; the second visit sends its request as early data. Then replays
/// the second visit's first flight, as somebody who recorded it could, and shows the outcome. Keeps
/// serving until Ctrl-C. The certificate is signed by this user's development authority (see
/// `firstflight authority --help`).
#[derive(Args)]
pub(crate) struct TryArgs {
    /// Directory to serve.
    #[arg(value_name = "DIR", default_value = ".")]
    directory: PathBuf,

    /// Address to listen on. Default: 127.0.0.1:8443, or another port if that one is in use.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,

    /// Exit after the visits: with 0 if the second visit's early data was accepted and executed
    /// once, else with 1.
    #[arg(long)]
    once: bool,

    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

/// Serves the directory and runs the demonstration.
///
/// # Errors
/// If the directory cannot be served, or a visit fails.
pub(crate) fn run(args: TryArgs) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    let root = args
        .directory
        .canonicalize()
        .with_context(|| format!("cannot serve {}; give a directory", args.directory.display()))?;
    let directory = tempfile::tempdir().context("cannot make a temporary directory")?;
    let (certificate, trusted) = certificate(directory.path());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start worker threads")?;
    let outcome = runtime.block_on(async {
        let server = bind(&args, &root, certificate).await?;
        let address = server.local_addrs()[0];
        let handle = server.handle();
        let serving = tokio::spawn(server.run(std::future::pending()));
        handle.wait_until_serving().await;
        let report = run_demo(address, demo_path(&root), trusted, handle.clone()).await?;
        let output = TryOutput { report: &report, root: &root, address, started };
        let text = if args.json { output.json() } else { output.text(args.once) };
        // The server keeps running if the reader of stdout has closed it.
        let mut stdout = std::io::stdout();
        let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
        ignore_broken_pipe(written).map_err(|error| anyhow::Error::msg(stdout_failure(&error)))?;
        if !args.once {
            wait_for_stop_signal().await?;
        }
        handle.stop();
        serving.await.context("the server has failed")?;
        anyhow::Ok(report)
    });
    runtime.shutdown_background();
    let passed = outcome?.passed();
    Ok(if passed || !args.once { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The certificate to serve, and the file that the visits trust: the development authority's, or a
/// self-signed one if there can be no authority.
fn certificate(temporary: &Path) -> (CertificateSource, PathBuf) {
    let now = u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or(0);
    match default_directory().and_then(|home| Authority::open_or_create(&home, now)) {
        Ok(authority) => (CertificateSource::Development, authority.certificate().to_owned()),
        Err(error) => {
            warn!("{error}; using a self-signed certificate");
            let save = temporary.join("certificate.pem");
            (CertificateSource::SelfSigned { names: Vec::new(), save: Some(save.clone()) }, save)
        }
    }
}

/// Binds the address of `--listen`. By default that is 127.0.0.1:8443, or a free port if it is in use.
async fn bind(
    args: &TryArgs,
    root: &Path,
    certificate: CertificateSource,
) -> anyhow::Result<Server> {
    let config = |address| ServerConfig {
        certificate: certificate.clone(),
        ..ServerConfig::new(address, Content::files(root))
    };
    let default_address = SocketAddr::from((Ipv4Addr::LOCALHOST, 8443));
    let server = match Server::bind(config(args.listen.unwrap_or(default_address))).await {
        Err(ServerError::AddressInUse(_) | ServerError::UdpInUse(_)) if args.listen.is_none() => {
            Server::bind(config(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))).await
        }
        server => server,
    };
    Ok(server?)
}

/// Runs the demonstration on a separate thread, so that the server's tasks do not delay its
/// timestamps.
async fn run_demo(
    server: SocketAddr,
    path: String,
    trusted: PathBuf,
    handle: ServerHandle,
) -> anyhow::Result<DemoReport> {
    let (sender, report) = oneshot::channel();
    let run = move || -> Result<DemoReport, DemoError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let counts = || server_counts(&handle);
        runtime.block_on(demo::run(&DemoConfig {
            server: loopback_address(server),
            host: "localhost",
            path: &path,
            trust: Trust::File(trusted),
            counts: &counts,
        }))
    };
    std::thread::spawn(move || {
        // Fails if the program is ending.
        let _ = sender.send(run());
    });
    Ok(report.await.context("the demonstration has failed")??)
}

/// Replaces an unspecified address by loopback's.
fn loopback_address(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    address
}

fn server_counts(handle: &ServerHandle) -> ServerCounts {
    const REQUESTS: &str = "firstflight_requests_total";
    let metrics = handle.metrics();
    let responses = metrics.sum(REQUESTS, &[]) - metrics.sum(REQUESTS, &[("status", "none")]);
    let replays_blocked = handle.replays().iter().map(|replay| replay.copies).sum();
    ServerCounts { responses: responses as u64, replays_blocked }
}

/// The path to visit: `/` if there is an index page, else the first file whose name needs no escaping.
fn demo_path(root: &Path) -> String {
    if root.join("index.html").is_file() {
        return "/".to_owned();
    }
    let plain = |name: &str| {
        let needs_no_escaping = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !name.starts_with('.') && name.chars().all(needs_no_escaping)
    };
    let names = fs::read_dir(root).into_iter().flatten().flatten();
    let files = names.filter(|entry| entry.path().is_file());
    let mut names: Vec<_> =
        files.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| plain(name));
    names.sort();
    names.first().map_or_else(|| "/".to_owned(), |name| format!("/{name}"))
}

async fn wait_for_stop_signal() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    tokio::select! {
        result = tokio::signal::ctrl_c() => result.context("cannot wait for Ctrl-C"),
        _ = terminate.recv() => Ok(()),
    }
}

/// What the command prints.
struct TryOutput<'a> {
    report: &'a DemoReport,
    root: &'a Path,
    address: SocketAddr,
    started: Instant,
}

/// The URL of a path at an address.
fn url(address: SocketAddr, path: &str) -> String {
    let ip = address.ip();
    match ip.is_loopback() || ip.is_unspecified() {
        true => format!("https://localhost:{}{path}", address.port()),
        false => format!("https://{address}{path}"),
    }
}

impl TryOutput<'_> {
    fn json(&self) -> String {
        let url = url(self.address, &self.report.path);
        let seconds = self.started.elapsed().as_secs_f64();
        let value =
            json!({ "url": url, "root": self.root, "seconds": seconds, "demo": self.report });
        format!("{value:#}\n")
    }

    fn text(&self, once: bool) -> String {
        let (url, status) = (url(self.address, &self.report.path), self.report.returning.status);
        let mut text = format!("{}\n  is served on {url}\n\n{}", self.root.display(), self.report);
        if status != 200 {
            text += &format!("The response is {status}, as there is no index.html.\n");
        }
        let seconds = self.started.elapsed().as_secs_f64();
        text += &format!("Total time: {seconds:.2} s.\n");
        if !once {
            text += &format!(
                "\nFetch it twice; the second request is sent as early data:\n  firstflight \
                 fetch -v --ssl-sessions sessions --tls-earlydata {url}\nOpen it in a browser, \
                 after installing the authority:\n  firstflight authority trust\n"
            );
            text += "\nServing until Ctrl-C.\n";
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc3986_3_2_2_an_ipv6_address_is_in_brackets() {
        for (address, expected) in [
            ("127.0.0.1:8443", "https://localhost:8443/a"),
            ("[::]:8443", "https://localhost:8443/a"),
            ("192.0.2.1:443", "https://192.0.2.1:443/a"),
            ("[2001:db8::1]:8443", "https://[2001:db8::1]:8443/a"),
        ] {
            assert_eq!(url(address.parse().unwrap(), "/a"), expected);
        }
    }
}
