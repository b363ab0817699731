//! The kinds of servers in a cluster, and their configuration.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use firstflight_tickets::SharedKeys;

use firstflight_testkit::{TEST_TIMEOUT, output_within, program_path};

/// The server that runs on the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// firstflight with a shared register and its ticket keys in the store.
    Shared,
    /// firstflight with a key file, and a local register in each process.
    Local,
    /// firstflight with ticket keys in the process. Used only by the peers of an audit.
    #[allow(dead_code)]
    Alone,
    /// nginx with shared ticket keys.
    Nginx,
    /// HAProxy with shared ticket keys.
    Haproxy,
}

/// Settings that are the same on all nodes.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// `[early_data] freshness`.
    pub(crate) freshness: Duration,
    /// `[store] clock_margin`.
    pub(crate) clock_margin: Duration,
    /// `[store] budget`.
    pub(crate) budget: Duration,
    /// Further settings of `[store]`.
    pub(crate) store: String,
    /// Further settings of `[tickets]`.
    pub(crate) tickets: &'static str,
    /// Whether early data is on.
    pub(crate) early_data: bool,
}

impl Kind {
    /// The name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Shared => "firstflight",
            Self::Local => "firstflight, no store",
            Self::Alone => "firstflight, alone",
            Self::Nginx => "nginx",
            Self::Haproxy => "HAProxy",
        }
    }

    /// Whether it is firstflight, which writes an access log and can choose its port.
    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Self::Shared | Self::Local | Self::Alone)
    }

    /// Writes the shared files into the directory of the cluster: certificate and ticket keys.
    pub(crate) fn prepare(self, dir: &Path) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        fs::write(dir.join("cert.pem"), &cert).unwrap();
        fs::write(dir.join("key.pem"), &key).unwrap();
        fs::write(dir.join("both.pem"), cert + &key).unwrap();
        match self {
            Self::Shared => keys(&["new-encryption"], &dir.join("kek")),
            Self::Local => keys(&["new"], &dir.join("ring")),
            Self::Alone => {}
            Self::Nginx | Self::Haproxy => (0..3).for_each(|_| self.rotate(dir)),
        }
    }

    /// Rotates the ticket keys in the directory of the cluster.
    pub(crate) fn rotate(self, dir: &Path) {
        match self {
            Self::Shared => keys(&["rotate", "--config"], &dir.join("node-0/config.toml")),
            Self::Local => keys(&["rotate"], &dir.join("ring")),
            Self::Alone => {}
            // The first key encrypts.
            Self::Nginx => {
                for number in (0..2).rev() {
                    let name = |number| dir.join(format!("ticket.{number}.key"));
                    let _ = fs::rename(name(number), name(number + 1));
                }
                fs::write(dir.join("ticket.0.key"), eighty_bytes()).unwrap();
            }
            // The last but one key encrypts.
            Self::Haproxy => {
                let path = dir.join("tickets");
                let old = fs::read_to_string(&path).unwrap_or_default();
                let mut lines: Vec<String> = old.lines().map(str::to_owned).collect();
                lines.push(STANDARD.encode(eighty_bytes()));
                let from = lines.len().saturating_sub(4);
                fs::write(path, lines[from..].join("\n") + "\n").unwrap();
            }
        }
    }

    /// How long it takes until all nodes encrypt with a new key.
    pub(crate) fn propagation_time(self) -> Duration {
        match self {
            // The new key is used when each node has it.
            Self::Shared => SharedKeys::PROPAGATION_DELAY + Duration::from_secs(2),
            // Nodes check the file every second.
            Self::Local => Duration::from_millis(1500),
            Self::Alone | Self::Nginx | Self::Haproxy => Duration::ZERO,
        }
    }

    /// Whether a node has to be restarted to use new ticket keys.
    pub(crate) fn restarts_to_rotate(self) -> bool {
        !self.is_ours()
    }

    /// The command for a node that listens on `port`, in a directory of its own beside `shared`.
    pub(crate) fn command(
        self,
        shared: &Path,
        own: &Path,
        port: u16,
        upstream: SocketAddr,
        settings: &Settings,
    ) -> Command {
        let mut command = match self {
            Self::Shared | Self::Local | Self::Alone => ours(self, shared, own, upstream, settings),
            Self::Nginx => nginx(shared, own, port, upstream, settings),
            Self::Haproxy => haproxy(shared, own, port, upstream, settings),
        };
        let stderr = File::options().create(true).append(true).open(own.join("stderr")).unwrap();
        command.current_dir(own).stdin(Stdio::null()).stdout(stderr.try_clone().unwrap());
        command.stderr(stderr);
        command
    }
}

/// The binary under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_firstflight");

fn keys(verb: &[&str], file: &Path) {
    let mut command = Command::new(PROGRAM);
    let status = output_within(command.arg("keys").args(verb).arg(file), TEST_TIMEOUT).status;
    assert!(status.success(), "keys {verb:?}: {status}");
}

fn ours(
    kind: Kind,
    shared: &Path,
    own: &Path,
    upstream: SocketAddr,
    settings: &Settings,
) -> Command {
    let mut config = format!(
        "[early_data]\nenabled = {}\nfreshness = \"{}ms\"\nregister_capacity = 65536\n",
        settings.early_data,
        settings.freshness.as_millis()
    );
    if kind == Kind::Shared {
        config += &format!(
            "[store]\nbudget = \"{}ms\"\nclock_margin = \"{}ms\"\n{}",
            settings.budget.as_millis(),
            settings.clock_margin.as_millis(),
            settings.store
        );
        config += &format!(
            "[tickets]\nkeys = \"store\"\nkey_encryption_file = {:?}\n{}",
            shared.join("kek"),
            settings.tickets
        );
    }
    fs::write(own.join("config.toml"), config).unwrap();
    let mut command = Command::new(PROGRAM);
    command.env("HOME", own).env_remove("SSLKEYLOGFILE").env_remove("RUST_LOG");
    command.args(["serve", "--listen", "127.0.0.1:0", "--upstream"]);
    command.arg(format!("http://{upstream}")).args(["--log-format", "json", "--access-log"]);
    command.arg(own.join("log")).arg("--config").arg(own.join("config.toml"));
    command.arg("--cert").arg(shared.join("cert.pem")).arg("--key").arg(shared.join("key.pem"));
    if kind == Kind::Local {
        command.arg("--ticket-keys").arg(shared.join("ring"));
    }
    command
}

/// A single process, so that SIGKILL ends all of it.
fn nginx(
    shared: &Path,
    own: &Path,
    port: u16,
    upstream: SocketAddr,
    settings: &Settings,
) -> Command {
    let early_data = if settings.early_data { "on" } else { "off" };
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {}/{name};\n", own.display()))
        .concat();
    let tickets: String = (0..3)
        .map(|number| format!("ssl_session_ticket_key {}/ticket.{number}.key;\n", shared.display()))
        .collect();
    let config = format!(
        "daemon off;\nmaster_process off;\npid {own}/nginx.pid;\n\
         events {{ worker_connections 4096; }}\nhttp {{\naccess_log off;\n{temporary}\
         server {{\nlisten 127.0.0.1:{port} ssl;\nssl_certificate {shared}/cert.pem;\n\
         ssl_certificate_key {shared}/key.pem;\nssl_protocols TLSv1.3;\nssl_early_data {early_data};\n\
         ssl_session_tickets on;\n{tickets}location / {{\nproxy_pass http://{upstream};\n\
         proxy_set_header Early-Data $ssl_early_data;\n}}\n}}\n}}\n",
        own = own.display(),
        shared = shared.display(),
    );
    fs::write(own.join("nginx.conf"), config).unwrap();
    let mut command = Command::new(program_path("nginx"));
    command.args(["-e", "stderr", "-p", ".", "-c"]).arg(own.join("nginx.conf"));
    command
}

fn haproxy(
    shared: &Path,
    own: &Path,
    port: u16,
    upstream: SocketAddr,
    settings: &Settings,
) -> Command {
    let early_data = if settings.early_data { "allow-0rtt " } else { "" };
    let config = format!(
        "global\n  nbthread 1\n  maxconn 4096\n  noreuseport\ndefaults\n  mode http\n  \
         timeout client 30s\n  \
         timeout server 30s\n  timeout connect 5s\nfrontend test\n  bind 127.0.0.1:{port} ssl crt \
         {shared}/both.pem {early_data}alpn http/1.1 tls-ticket-keys {shared}/tickets\n  \
         http-request set-header Early-Data 1 if {{ ssl_fc_has_early }}\n  \
         default_backend upstream\nbackend upstream\n  server upstream {upstream}\n",
        shared = shared.display(),
    );
    fs::write(own.join("haproxy.cfg"), config).unwrap();
    let mut command = Command::new(program_path("haproxy"));
    command.arg("-db").arg("-f").arg(own.join("haproxy.cfg"));
    command
}

/// A random ticket key in OpenSSL's format: name, HMAC key and AES key.
pub(crate) fn eighty_bytes() -> Vec<u8> {
    let mut bytes = [0; 80];
    let mut random = File::open("/dev/urandom").unwrap();
    std::io::Read::read_exact(&mut random, &mut bytes).unwrap();
    bytes.to_vec()
}
