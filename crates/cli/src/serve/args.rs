//! The flags of `firstflight serve`.

use std::env;
use std::path::PathBuf;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, Error, FromArgMatches, ValueEnum};
use firstflight_config::{AccessLogFormat, Directory, parse_duration};
use firstflight_tls::Version;

/// Serve sites over TLS and QUIC, with early data executed at most once.
///
/// The configuration comes from a file (docs/reference/configuration.md), from flags, or both.
/// Flags override environment variables, which override the file.
///
/// Without a certificate, this user's development authority signs one for testing: see `firstflight
/// authority --help`. If the environment variable SSLKEYLOGFILE is set, TLS secrets are written to
/// that file; there is no flag for it, because it undoes the encryption.
///
/// SIGTERM and SIGINT finish running requests and exit; a second one exits immediately. SIGHUP
/// reloads the configuration and its files, SIGUSR1 reopens the access log, and SIGUSR2 starts the
/// program again to take over from this process without refusing a connection
/// (docs/operate/lifecycle.md).
#[derive(Args)]
pub(crate) struct ServeArgs {
    // Must be the first field: later fields remove their arguments from the matches.
    #[command(flatten)]
    pub(super) command_line: CommandLine,

    /// Configuration file (TOML).
    #[arg(long, value_name = "FILE", env = "FIRSTFLIGHT_CONFIG")]
    pub(super) config: Option<PathBuf>,

    /// Check the configuration and the files that it names, print what would be served, and exit
    /// with 0, or with 2 if something is wrong. Opens no socket and does not contact the store.
    #[arg(long)]
    pub(super) check: bool,

    /// Print the effective configuration as TOML, including flags and defaults, and exit.
    #[arg(long)]
    pub(super) print_config: bool,

    /// Address to listen on; may be repeated. A host name stands for all its addresses; with port 0
    /// the system chooses.
    #[arg(long, value_name = "ADDRESS:PORT", env = "FIRSTFLIGHT_LISTEN", value_delimiter = ',')]
    pub(super) listen: Vec<String>,

    #[command(flatten)]
    pub(super) content: ContentArgs,

    /// Certificate chain (PEM), the server's certificate first.
    #[arg(long, value_name = "FILE", requires = "key", env = "FIRSTFLIGHT_CERT")]
    pub(super) cert: Option<PathBuf>,

    /// Private key of the certificate (PEM).
    #[arg(long, value_name = "FILE", requires = "cert", env = "FIRSTFLIGHT_KEY")]
    pub(super) key: Option<PathBuf>,

    #[command(flatten)]
    pub(super) acme: AcmeArgs,

    /// Use a self-signed certificate that includes this host name or address; may be repeated.
    #[arg(long, value_name = "NAME")]
    pub(super) self_signed: Vec<String>,

    /// Use a self-signed certificate and write it to this file, for clients' --cacert.
    #[arg(long, value_name = "FILE")]
    pub(super) save_cert: Option<PathBuf>,

    /// File of ticket keys shared by several processes (`firstflight keys new FILE`). Default: keys
    /// of this process only.
    #[arg(long, value_name = "FILE", env = "FIRSTFLIGHT_TICKET_KEYS")]
    pub(super) ticket_keys: Option<PathBuf>,

    /// Whether early data (0-RTT) is offered and accepted. Default: on.
    #[arg(long, value_name = "on|off", env = "FIRSTFLIGHT_EARLY_DATA")]
    pub(super) early_data: Option<Switch>,

    /// Whether connections are kept for further requests. Default: on.
    #[arg(long, value_name = "on|off")]
    pub(super) keep_alive: Option<Switch>,

    /// Whether HTTP/2 is offered. Default: on.
    #[arg(long, value_name = "on|off")]
    pub(super) http2: Option<Switch>,

    /// Disable HTTP/3 and its UDP sockets.
    #[arg(long)]
    pub(super) no_http3: bool,

    #[command(flatten)]
    pub(super) tls: TlsArgs,

    #[command(flatten)]
    pub(super) limits: LimitArgs,

    /// Admin listener address (metrics, console, readiness): 127.0.0.1:9090, unix:/PATH.
    #[arg(long, value_name = "ADDRESS:PORT|unix:PATH", env = "FIRSTFLIGHT_ADMIN")]
    pub(super) admin: Option<String>,

    #[command(flatten)]
    pub(super) logs: LogArgs,

    /// Worker threads. Default: one per core.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..),
        env = "FIRSTFLIGHT_WORKERS")]
    pub(super) workers: Option<u16>,
}

#[derive(Args)]
pub(super) struct ContentArgs {
    /// Directory to serve, instead of the file's sites: as --root, and on 127.0.0.1:8443 if no
    /// address is given.
    #[arg(value_name = "DIR")]
    pub(super) directory: Option<PathBuf>,

    /// Directory to serve, instead of the file's sites.
    #[arg(long, value_name = "DIR", env = "FIRSTFLIGHT_ROOT")]
    pub(super) root: Option<PathBuf>,

    /// HTTP server to forward to, instead of the file's sites: http://HOST:PORT, unix:/PATH.
    #[arg(long, value_name = "URL", env = "FIRSTFLIGHT_UPSTREAM")]
    pub(super) upstream: Option<String>,

    /// Respond to each PING with PONG over TLS, without HTTP (for measurements).
    #[arg(long)]
    pub(super) ping_pong: bool,
}

#[derive(Args)]
pub(super) struct AcmeArgs {
    /// Host name to get a certificate for from an ACME authority (docs/operate/certificates.md);
    /// may be repeated. Needs --acme-agree. Without --listen the server listens on [::]:443, and on
    /// [::]:80 to redirect.
    #[arg(long, value_name = "NAME", env = "FIRSTFLIGHT_ACME", value_delimiter = ',')]
    pub(super) acme: Vec<String>,

    /// Contact mail address for the authority; may be repeated.
    #[arg(long, value_name = "ADDRESS", env = "FIRSTFLIGHT_ACME_CONTACT", value_delimiter = ',')]
    pub(super) acme_contact: Vec<String>,

    /// Agree to the authority's terms of service.
    #[arg(long, env = "FIRSTFLIGHT_ACME_AGREE")]
    pub(super) acme_agree: bool,

    /// URL of the authority's directory. Default: Let's Encrypt.
    #[arg(long, value_name = "URL", env = "FIRSTFLIGHT_ACME_DIRECTORY")]
    pub(super) acme_directory: Option<Directory>,

    /// Certificates to trust for the authority's own HTTPS (PEM). Default: the system's.
    #[arg(long, value_name = "FILE", env = "FIRSTFLIGHT_ACME_CA")]
    pub(super) acme_ca: Option<PathBuf>,

    /// Directory for account, keys and certificates. Default: /var/lib/firstflight/acme.
    #[arg(long, value_name = "DIR", env = "FIRSTFLIGHT_ACME_STATE")]
    pub(super) acme_state: Option<PathBuf>,
}

#[derive(Args)]
pub(super) struct TlsArgs {
    /// Oldest TLS version: 1.0, 1.1, 1.2 or 1.3. Default: 1.2.
    #[arg(long, value_name = "VERSION")]
    pub(super) tls_min: Option<Version>,

    /// Newest TLS version. Default: 1.3.
    #[arg(long, value_name = "VERSION")]
    pub(super) tls_max: Option<Version>,

    /// Ciphers for TLS 1.2 and older, as `openssl ciphers` names them. Default: those with
    /// ECDHE and AEAD.
    #[arg(long, value_name = "LIST")]
    pub(super) ciphers: Option<String>,

    /// Ciphers for TLS 1.3, such as TLS_AES_128_GCM_SHA256, separated by colons.
    #[arg(long, value_name = "LIST")]
    pub(super) tls13_ciphers: Option<String>,

    /// Groups for the key exchange, such as X25519:P-256. Default: BoringSSL's.
    #[arg(long, value_name = "LIST")]
    pub(super) groups: Option<String>,

    /// Tickets that each full TLS 1.3 handshake issues; a resumed one issues one. Default: 2.
    #[arg(long, value_name = "N")]
    pub(super) tickets: Option<usize>,
}

#[derive(Args)]
pub(super) struct LimitArgs {
    /// Time limit for the handshake and for each request head. Default: 10s.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(super) header_timeout: Option<Duration>,

    /// Maximum size of a request head in bytes. Default: 32768.
    #[arg(long, value_name = "BYTES")]
    pub(super) header_size: Option<usize>,

    /// Time limit for a connection without a request. Default: 60s.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(super) idle_timeout: Option<Duration>,

    /// Maximum number of connections; further ones wait. Default: 10000.
    #[arg(long, value_name = "N")]
    pub(super) max_connections: Option<u32>,

    /// Time limit for the head of the upstream's response. Default: 60s.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(super) upstream_timeout: Option<Duration>,

    /// Time limit for running requests after SIGTERM. Default: 30s.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(super) drain_timeout: Option<Duration>,

    /// Maximum number of connections that wait to be accepted. Default: 4096.
    #[arg(long, value_name = "N")]
    pub(super) backlog: Option<u32>,
}

#[derive(Args)]
pub(super) struct LogArgs {
    /// Write an access log to this file, or to standard output for `-`.
    #[arg(long, value_name = "FILE|-", env = "FIRSTFLIGHT_ACCESS_LOG")]
    pub(super) access_log: Option<PathBuf>,

    /// Format of the access log; combined is that of Apache and nginx. Default: text.
    #[arg(long, value_enum)]
    pub(super) log_format: Option<Format>,

    /// Log level on stderr: error, warn, info, debug, trace. Default: info, or the value of
    /// RUST_LOG. With FIRSTFLIGHT_LOG_FORMAT=json each message is a JSON object.
    #[arg(long, value_name = "LEVEL", env = "FIRSTFLIGHT_LOG")]
    pub(super) log_level: Option<String>,
}

impl LogArgs {
    /// The value of RUST_LOG, unless a flag or its own variable sets the level.
    pub(super) fn rust_log(&self) -> Option<String> {
        env::var("RUST_LOG").ok().filter(|_| self.log_level.is_none())
    }
}

impl ServeArgs {
    /// Ignores environment variables that set other content or another certificate than the flags.
    /// In clap, a flag overrides only its own variable.
    pub(super) fn prefer_flags(&mut self) {
        let has_arg = |ids: &[&str]| self.command_line.has(ids);
        if has_arg(&["directory", "root", "upstream", "ping_pong"]) {
            let content = &mut self.content;
            content.root = content.root.take().filter(|_| has_arg(&["root"]));
            content.upstream = content.upstream.take().filter(|_| has_arg(&["upstream"]));
        }
        let (files, self_signed) =
            (has_arg(&["cert", "key"]), has_arg(&["self_signed", "save_cert"]));
        if !files && (self_signed || has_arg(&["acme"])) {
            (self.cert, self.key) = (None, None);
        }
        if (files || self_signed || has_arg(&["ping_pong"])) && !has_arg(&["acme"]) {
            self.acme.acme.clear();
        }
    }
}

/// The IDs of the arguments given on the command line, not by the environment.
pub(super) struct CommandLine(Vec<String>);

impl CommandLine {
    /// Whether one of these arguments, given by the names of their fields, is on the command line.
    pub(super) fn has(&self, ids: &[&str]) -> bool {
        self.0.iter().any(|id| ids.contains(&&**id))
    }
}

impl Args for CommandLine {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

impl FromArgMatches for CommandLine {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let ids = matches.ids().map(|id| id.as_str());
        let given = ids.filter(|id| matches.value_source(id) == Some(ValueSource::CommandLine));
        Ok(Self(given.map(str::to_owned).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum Format {
    Text,
    Json,
    Combined,
}

impl From<Format> for AccessLogFormat {
    fn from(format: Format) -> Self {
        match format {
            Format::Text => Self::Text,
            Format::Json => Self::Json,
            Format::Combined => Self::Combined,
        }
    }
}
