//! `firstflight serve`: files or an upstream over TLS, with early data that runs at most once.

use std::env;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};
use firstflight_config::{
    AccessLogSettings, CertificateSource, ConfigFile, Content, KeySource, Listener, LogFormat,
    ProcessSettings, ServerConfig, TlsSettings, parse_duration,
};
use firstflight_server::ServerError;
use firstflight_tls::{CipherPolicy, CipherPreference, Version};
use tracing::warn;

use process::Source;

mod process;

/// Serve a directory or an HTTP upstream over TLS, with early data that runs at most once.
///
/// Without --cert and --key a self-signed certificate is made, for trying out. SIGTERM and SIGINT
/// finish running requests and exit, a second one exits at once; SIGHUP reads configuration and
/// certificates again, and SIGUSR1 opens the access log anew, as SIGHUP does too. The TLS secrets
/// are written to the file that the environment variable SSLKEYLOGFILE names, if it is set; there
/// is no flag for that, because it undoes the encryption.
#[derive(Args)]
pub(crate) struct ServeArgs {
    /// Address to listen on; may be repeated. A host name takes all its addresses, port 0 lets
    /// the system choose.
    #[arg(long, value_name = "ADDRESS:PORT", required_unless_present = "check")]
    listen: Vec<String>,

    #[command(flatten)]
    content: ContentArgs,

    /// Certificate chain, PEM, the server's own first.
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,

    /// Private key of the certificate, PEM.
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,

    /// Further host name or address for the self-signed certificate; may be repeated.
    #[arg(long, value_name = "NAME", conflicts_with = "cert")]
    self_signed: Vec<String>,

    /// Write the self-signed certificate to this file, for clients' --cacert.
    #[arg(long, value_name = "FILE", conflicts_with = "cert")]
    save_cert: Option<PathBuf>,

    /// Policy by path, limits, store and tickets, TOML. Flags override it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Check the configuration file and the files that it names, and exit: 0 if all is good, 2 if
    /// not. The store itself is not asked.
    #[arg(long, requires = "config")]
    check: bool,

    /// Ticket keys that several processes share (`firstflight keys new FILE`). Default: keys of
    /// this process alone.
    #[arg(long, value_name = "FILE")]
    ticket_keys: Option<PathBuf>,

    /// Whether early data (0-RTT) is offered and accepted. Default: on.
    #[arg(long, value_name = "on|off")]
    early_data: Option<Switch>,

    /// Whether a connection takes further requests.
    #[arg(long, value_name = "on|off", default_value = "on")]
    keep_alive: Switch,

    /// Whether HTTP/2 is offered.
    #[arg(long, value_name = "on|off", default_value = "on")]
    http2: Switch,

    /// Leave out HTTP/3, and with it the UDP sockets.
    #[arg(long)]
    no_http3: bool,

    #[command(flatten)]
    tls: TlsArgs,

    #[command(flatten)]
    limits: LimitArgs,

    /// A line per request to this file, or to standard output for `-`.
    #[arg(long, value_name = "FILE|-")]
    access_log: Option<PathBuf>,

    /// How the lines look.
    #[arg(long, value_enum, default_value = "text", requires = "access_log")]
    log_format: Format,

    /// Connections that may wait to be accepted.
    #[arg(long, value_name = "N", default_value_t = 4096)]
    backlog: u32,

    /// Worker threads. Default: one per core.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    workers: Option<u16>,
}

#[derive(Args)]
struct ContentArgs {
    /// Directory to serve.
    #[arg(long, value_name = "DIR", group = "content")]
    root: Option<PathBuf>,

    /// HTTP server to forward to, http://HOST:PORT.
    #[arg(long, value_name = "URL", group = "content")]
    upstream: Option<String>,

    /// Answer each PING by PONG over TLS, without HTTP (for measuring).
    #[arg(long, group = "content")]
    ping_pong: bool,
}

#[derive(Args)]
struct TlsArgs {
    /// Oldest TLS version: 1.0, 1.1, 1.2 or 1.3.
    #[arg(long, value_name = "VERSION", default_value = "1.2")]
    tls_min: Version,

    /// Newest TLS version.
    #[arg(long, value_name = "VERSION", default_value = "1.3")]
    tls_max: Version,

    /// Ciphers for TLS 1.2 and older, as `openssl ciphers` names them. Default: BoringSSL's.
    #[arg(long, value_name = "LIST")]
    ciphers: Option<String>,

    /// Ciphers for TLS 1.3, such as TLS_AES_128_GCM_SHA256, separated by colons.
    #[arg(long, value_name = "LIST")]
    tls13_ciphers: Option<String>,

    /// Groups for the key exchange, such as X25519:P-256. Default: BoringSSL's.
    #[arg(long, value_name = "LIST")]
    groups: Option<String>,

    /// Tickets that each TLS 1.3 handshake issues.
    #[arg(long, value_name = "N", default_value_t = 2)]
    tickets: usize,
}

#[derive(Args)]
struct LimitArgs {
    /// For the handshake and each request's head. Default: 10s.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    header_timeout: Option<Duration>,

    /// Bytes of a request's head. Default: 32768.
    #[arg(long, value_name = "BYTES")]
    header_size: Option<usize>,

    /// For a connection without a request. Default: 60s.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    idle_timeout: Option<Duration>,

    /// Connections at a time; at the limit further ones wait. Default: 10000.
    #[arg(long, value_name = "N")]
    max_connections: Option<u32>,

    /// For the head of the upstream's answer. Default: 60s.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    upstream_timeout: Option<Duration>,

    /// For running requests after SIGTERM. Default: 30s.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    drain_timeout: Option<Duration>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// Serves until it is told to stop. An error means that it could not start; the caller prints it
/// and exits with 2.
///
/// # Errors
/// One sentence with the mend.
pub(crate) fn run(args: ServeArgs) -> anyhow::Result<ExitCode> {
    if args.check {
        let path = args.config.as_deref().unwrap_or("".as_ref());
        let file = ConfigFile::read(path).map_err(ServerError::from).map_err(sentence)?;
        let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut config = ServerConfig::new(anywhere, Content::PingPong);
        (config.store, config.tickets, config.limits) = (file.store, file.tickets, file.limits);
        firstflight_server::check(&config).map_err(sentence)?;
        println!("{}: OK", path.display());
        return Ok(ExitCode::SUCCESS);
    }
    keep_memory_private();
    let file = args.config.clone();
    let source = Source { file, read: Box::new(move || config(&args)) };
    let first = source.first()?;
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if let Some(workers) = first.config.process.workers {
        builder.worker_threads(workers.into());
    }
    let runtime = builder.enable_all().build().context("cannot start worker threads")?;
    runtime.block_on(process::serve(source, first))
}

/// The memory of a server has its private keys in it, ticket keys, and what its clients said. So it
/// leaves no core dump, and other processes of the same user may not look into it.
fn keep_memory_private() {
    if let Err(error) = nix::sys::prctl::set_dumpable(false) {
        warn!("a core dump would contain secrets: it cannot be forbidden ({error})");
    }
}

/// The error's own sentence, which has its cause in it already.
fn sentence(error: ServerError) -> anyhow::Error {
    anyhow::Error::msg(error.to_string())
}

fn config(args: &ServeArgs) -> anyhow::Result<ServerConfig> {
    let file = match &args.config {
        Some(path) => ConfigFile::read(path).map_err(ServerError::from).map_err(sentence)?,
        None => ConfigFile::default(),
    };
    let content = match (&args.content.root, &args.content.upstream, args.content.ping_pong) {
        (Some(root), _, _) => Content::files(root),
        (_, Some(url), _) => Content::upstream(url)?,
        (_, _, true) => Content::PingPong,
        _ => anyhow::bail!("there is nothing to serve; give --root DIR or --upstream URL"),
    };
    let certificate = match (args.cert.clone(), args.key.clone()) {
        (Some(cert), Some(key)) => CertificateSource::Files { cert, key },
        _ => CertificateSource::SelfSigned {
            names: args.self_signed.clone(),
            save: args.save_cert.clone(),
        },
    };
    let listen = addresses(&args.listen)?;
    let mut early_data = file.early_data;
    if let Some(switch) = args.early_data {
        early_data.enabled = switch == Switch::On;
    }
    let mut tickets = file.tickets;
    if let Some(file) = &args.ticket_keys {
        tickets.keys = KeySource::File(file.clone());
    }
    let mut limits = file.limits;
    let given = &args.limits;
    limits.header_timeout = given.header_timeout.unwrap_or(limits.header_timeout);
    limits.header_size = given.header_size.unwrap_or(limits.header_size);
    limits.idle_timeout = given.idle_timeout.unwrap_or(limits.idle_timeout);
    limits.connections = given.max_connections.unwrap_or(limits.connections);
    limits.upstream_timeout = given.upstream_timeout.unwrap_or(limits.upstream_timeout);
    limits.drain_timeout = given.drain_timeout.unwrap_or(limits.drain_timeout);
    let mut http3 = file.http3;
    http3.enabled &= !args.no_http3;
    Ok(ServerConfig {
        listeners: listen.into_iter().map(Listener::new).collect(),
        backlog: args.backlog,
        certificate,
        content,
        tls: tls_settings(&args.tls, args.http2 == Switch::On),
        http3,
        early_data,
        store: file.store,
        tickets,
        keep_alive: args.keep_alive == Switch::On,
        limits,
        access_log: args.access_log.clone().map(|file| AccessLogSettings {
            file: (file.as_os_str() != "-").then_some(file),
            format: match args.log_format {
                Format::Text => LogFormat::Text,
                Format::Json => LogFormat::Json,
            },
        }),
        admin: None,
        telemetry: None,
        process: ProcessSettings {
            workers: args.workers,
            watch: args.config.is_some(),
            ..ProcessSettings::default()
        },
    })
}

fn tls_settings(args: &TlsArgs, http2: bool) -> TlsSettings {
    let key_log = env::var_os("SSLKEYLOGFILE").filter(|path| !path.is_empty()).map(PathBuf::from);
    if let Some(path) = &key_log {
        warn!("TLS secrets are written to {} (SSLKEYLOGFILE)", path.display());
    }
    TlsSettings {
        min_version: args.tls_min,
        max_version: args.tls_max,
        ciphers: CipherPolicy {
            ciphers: args.ciphers.clone(),
            tls13_ciphers: args.tls13_ciphers.clone(),
            groups: args.groups.clone(),
        },
        cipher_preference: CipherPreference::default(),
        tickets: args.tickets,
        http2,
        key_log,
    }
}

fn addresses(listen: &[String]) -> anyhow::Result<Vec<SocketAddr>> {
    let mut all = Vec::new();
    for text in listen {
        let found = text.to_socket_addrs().map_err(|reason| {
            anyhow::anyhow!(
                "cannot listen on {text:?}: {reason}; give an address such as 127.0.0.1:8443 or \
                 [::]:443"
            )
        })?;
        all.extend(found);
    }
    Ok(all)
}
