//! `firstflight try`: the first 0-RTT answer of one's own directory.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use firstflight::demo::{Counts, Story, Tour, TourError};
use firstflight_certificates::authority::{Authority, directory};
use firstflight_config::{CertificateSource, Content, ServerConfig};
use firstflight_server::{Server, ServerError, ServerHandle};
use firstflight_tls::Trust;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tracing::warn;

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

/// Serves and shows.
///
/// # Errors
/// Why it could not.
pub(crate) fn run(args: TryArgs) -> anyhow::Result<ExitCode> {
    let began = Instant::now();
    let root = args
        .directory
        .canonicalize()
        .with_context(|| format!("cannot serve {}; give a directory", args.directory.display()))?;
    let folder = tempfile::tempdir().context("cannot make a temporary directory")?;
    let (certificate, trusted) = certificate(folder.path());
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
        let story = tour(address, page(&root), trusted, handle.clone()).await?;
        let shown = TryOutput { story: &story, root: &root, address, began };
        let told = if args.json { shown.json() } else { shown.text(args.once) };
        // Who reads the first lines alone goes on to be served.
        let _ = std::io::stdout().write_all(told.as_bytes());
        if !args.once {
            told_to_end().await?;
        }
        handle.stop();
        serving.await.context("the server has failed")?;
        anyhow::Ok(story)
    });
    runtime.shutdown_background();
    let good = outcome?.is_good();
    Ok(if good || !args.once { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The development authority's, and whom to trust then. Where there can be none, a self-signed
/// one does, for the visits at least.
fn certificate(folder: &Path) -> (CertificateSource, PathBuf) {
    let now = u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or(0);
    match directory().and_then(|home| Authority::open_or_make(&home, now)) {
        Ok(authority) => (CertificateSource::Development, authority.certificate().to_owned()),
        Err(error) => {
            warn!("{error}; until then the certificate is self-signed");
            let save = folder.join("certificate.pem");
            (CertificateSource::SelfSigned { names: Vec::new(), save: Some(save.clone()) }, save)
        }
    }
}

/// Listens where it was told to; by default where the guides look, or anywhere.
async fn bind(
    args: &TryArgs,
    root: &Path,
    certificate: CertificateSource,
) -> anyhow::Result<Server> {
    let config = |address| ServerConfig {
        certificate: certificate.clone(),
        ..ServerConfig::new(address, Content::files(root))
    };
    let usual = SocketAddr::from((Ipv4Addr::LOCALHOST, 8443));
    let server = match Server::bind(config(args.listen.unwrap_or(usual))).await {
        Err(ServerError::AddressInUse(_) | ServerError::UdpInUse(_)) if args.listen.is_none() => {
            Server::bind(config(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))).await
        }
        server => server,
    };
    server.map_err(|error| anyhow::Error::msg(error.to_string()))
}

/// On a thread of its own, so that the server's work does not come between what the tour sees.
async fn tour(
    server: SocketAddr,
    path: String,
    trusted: PathBuf,
    handle: ServerHandle,
) -> anyhow::Result<Story> {
    let (sender, story) = oneshot::channel();
    let take = move || -> Result<Story, TourError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let counts = || counts(&handle);
        runtime.block_on(firstflight::demo::take(&Tour {
            server: reachable(server),
            host: "localhost",
            path: &path,
            trust: Trust::File(trusted),
            counts: &counts,
        }))
    };
    std::thread::spawn(move || {
        // Nobody waits for it any more when the program ends.
        let _ = sender.send(take());
    });
    Ok(story.await.context("the tour has failed")??)
}

/// Where to find a server that listens on every address.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    address
}

fn counts(handle: &ServerHandle) -> Counts {
    const REQUESTS: &str = "firstflight_requests_total";
    let metrics = handle.metrics();
    let answered = metrics.sum(REQUESTS, &[]) - metrics.sum(REQUESTS, &[("status", "none")]);
    let stopped = handle.replays().iter().map(|replay| replay.copies).sum();
    Counts { answered: answered as u64, stopped }
}

/// The index page, or else the first file whose name needs no escape.
fn page(root: &Path) -> String {
    if root.join("index.html").is_file() {
        return "/".to_owned();
    }
    let plain = |name: &str| {
        let fit = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !name.starts_with('.') && name.chars().all(fit)
    };
    let names = fs::read_dir(root).into_iter().flatten().flatten();
    let files = names.filter(|entry| entry.path().is_file());
    let mut names: Vec<_> =
        files.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| plain(name));
    names.sort();
    names.first().map_or_else(|| "/".to_owned(), |name| format!("/{name}"))
}

async fn told_to_end() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    tokio::select! {
        pressed = tokio::signal::ctrl_c() => pressed.context("cannot wait for Ctrl-C"),
        _ = terminate.recv() => Ok(()),
    }
}

/// What is told.
struct TryOutput<'a> {
    story: &'a Story,
    root: &'a Path,
    address: SocketAddr,
    began: Instant,
}

impl TryOutput<'_> {
    fn url(&self) -> String {
        let host = match self.address.ip() {
            ip if ip.is_loopback() || ip.is_unspecified() => "localhost".to_owned(),
            _ => self.address.ip().to_string(),
        };
        format!("https://{host}:{}{}", self.address.port(), self.story.path)
    }

    fn json(&self) -> String {
        let url = self.url();
        let seconds = self.began.elapsed().as_secs_f64();
        let told = json!({ "url": url, "root": self.root, "seconds": seconds, "tour": self.story });
        format!("{told:#}\n")
    }

    fn text(&self, once: bool) -> String {
        let (url, status) = (self.url(), self.story.returning.status);
        let mut text = format!("{}\n  is served on {url}\n\n{}", self.root.display(), self.story);
        if status != 200 {
            text += &format!("The answer is {status}: there is no index.html.\n");
        }
        let seconds = self.began.elapsed().as_secs_f64();
        text += &format!("All of this took {seconds:.2} s.\n");
        if !once {
            text += &format!(
                "\nYour own client, twice: the second time its request is early data\n  firstflight \
                 fetch -v --ssl-sessions sessions --tls-earlydata {url}\nYour browser, once it \
                 believes the certificate\n  firstflight authority trust\n"
            );
            text += "\nServing until Ctrl-C.\n";
        }
        text
    }
}
