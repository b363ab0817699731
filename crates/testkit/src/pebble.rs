//! A real ACME authority: Pebble, and a DNS server that resolves every name to this machine.

use std::fs;
use std::net::{TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::child::{SupervisedChild, TEST_TIMEOUT, free_port};
use crate::limited::output_within;

/// Settings of the authority.
#[derive(Debug, Clone, Default)]
pub struct PebblePlan {
    /// The port for the challenge `http-01`, in place of 80.
    pub http_port: u16,
    /// The port for the challenge `tls-alpn-01`, in place of 443.
    pub tls_port: u16,
    /// How long its certificates are valid, in seconds; `None` for five years.
    pub validity_seconds: Option<u32>,
    /// The share of valid nonces that it refuses, in percent.
    pub bad_nonces: u32,
    /// Names that it issues no certificates for.
    pub blocked: Vec<String>,
    /// The key id and MAC key (base64url) of the external account binding that it requires, if any.
    pub external_account: Option<(String, String)>,
}

/// An authority whose certificates nobody trusts. It loses its state when restarted, and ends when
/// dropped.
pub struct Pebble {
    plan: PebblePlan,
    files: TempDir,
    port: u16,
    management: u16,
    dns: u16,
    children: Vec<SupervisedChild>,
}

impl Pebble {
    /// Starts it and waits until it responds.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(plan: PebblePlan) -> Self {
        let files = tempfile::Builder::new().prefix("ff-pebble-").tempdir().expect("a directory");
        let (certificate, key) = own_certificate();
        fs::write(files.path().join("own.pem"), certificate).expect("a file");
        fs::write(files.path().join("own.key"), key).expect("a file");
        let mut pebble = Self { plan, files, port: 0, management: 0, dns: 0, children: Vec::new() };
        for _ in 0..5 {
            (pebble.port, pebble.management, pebble.dns) = (free_port(), free_port(), free_port());
            pebble.launch();
            if pebble.wait_ready() {
                return pebble;
            }
        }
        panic!("pebble does not start (scripts/install-deps test); its log:\n{}", pebble.log());
    }

    /// Its directory's URL.
    pub fn directory(&self) -> String {
        format!("https://127.0.0.1:{}/dir", self.port)
    }

    /// A PEM file with the certificate to trust for connections to the authority.
    pub fn authority(&self) -> PathBuf {
        self.files.path().join("own.pem")
    }

    /// The root of the certificates that it issues, as PEM. Another one after each start.
    ///
    /// # Panics
    /// If curl cannot be started, or it does not respond.
    pub fn root(&self) -> String {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--fail", "--cacert"]).arg(self.authority());
        curl.arg(format!("https://127.0.0.1:{}/roots/0", self.management));
        let response = output_within(&mut curl, TEST_TIMEOUT);
        assert!(response.status.success(), "{}", String::from_utf8_lossy(&response.stderr));
        String::from_utf8(response.stdout).expect("PEM is text")
    }

    /// Kills it (SIGKILL).
    pub fn kill(&mut self) {
        self.children.clear();
    }

    /// Starts it again at the same address. It has another root, and knows no account.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&mut self) {
        self.launch();
        assert!(self.wait_ready(), "pebble does not start again; its log:\n{}", self.log());
    }

    /// Its log so far, with every request and every lookup of a name.
    pub fn log(&self) -> String {
        fs::read_to_string(self.files.path().join("log")).unwrap_or_default()
    }

    /// The number of orders so far.
    pub fn orders(&self) -> usize {
        // Each order has a line in the log.
        self.log().matches("Added order").count()
    }

    fn launch(&mut self) {
        self.children.clear();
        let config = self.files.path().join("pebble.json");
        fs::write(&config, self.config()).expect("a file");
        let dns = format!("127.0.0.1:{}", self.dns);
        self.children = vec![
            logged(
                &self.files.path().join("dns.log"),
                &[
                    "pebble-challtestsrv",
                    "-dns01",
                    &dns,
                    "-defaultIPv4",
                    "127.0.0.1",
                    "-defaultIPv6",
                    "",
                    "-http01",
                    "",
                    "-https01",
                    "",
                    "-tlsalpn01",
                    "",
                    // Not used, but it cannot be left out.
                    "-management",
                    "127.0.0.1:0",
                ],
            ),
            logged(
                &self.files.path().join("log"),
                &[
                    "env",
                    "PEBBLE_VA_NOSLEEP=1",
                    "PEBBLE_AUTHZREUSE=0",
                    &format!("PEBBLE_WFE_NONCEREJECT={}", self.plan.bad_nonces),
                    "pebble",
                    "-strict",
                    "-dnsserver",
                    &dns,
                    "-config",
                    &config.display().to_string(),
                ],
            ),
        ];
    }

    fn config(&self) -> String {
        let path = |name: &str| self.files.path().join(name).display().to_string();
        let list = |names: &[String]| {
            names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(",")
        };
        let keys = match &self.plan.external_account {
            Some((id, key)) => format!(
                r#""externalAccountBindingRequired": true,
                   "externalAccountMACKeys": {{{id:?}: {key:?}}},"#
            ),
            None => String::new(),
        };
        format!(
            r#"{{"pebble": {{
                "listenAddress": "127.0.0.1:{port}",
                "managementListenAddress": "127.0.0.1:{management}",
                "certificate": {certificate:?}, "privateKey": {key:?},
                "httpPort": {http}, "tlsPort": {tls},
                "certificateValidityPeriod": {validity}, {keys}
                "domainBlocklist": [{blocked}], "ocspResponderURL": ""
            }}}}"#,
            port = self.port,
            management = self.management,
            certificate = path("own.pem"),
            key = path("own.key"),
            http = self.plan.http_port,
            tls = self.plan.tls_port,
            validity = self.plan.validity_seconds.unwrap_or(157_766_400),
            blocked = list(&self.plan.blocked),
        )
    }

    fn wait_ready(&self) -> bool {
        let end = Instant::now() + Duration::from_secs(20);
        while self.children.iter().all(SupervisedChild::runs) && Instant::now() < end {
            let open = |port| TcpStream::connect(("127.0.0.1", port)).is_ok();
            if [self.port, self.management, self.dns].into_iter().all(open) && resolves(self.dns) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }
}

/// Whether a name server responds. It may accept TCP before UDP, which Pebble uses.
fn resolves(port: u16) -> bool {
    // RFC 1035 section 4.1: recursion desired, one question, "a", type A, class IN.
    let question = b"\0\x01\x01\0\0\x01\0\0\0\0\0\0\x01a\0\0\x01\0\x01";
    let query = || {
        let socket = UdpSocket::bind(("127.0.0.1", 0))?;
        socket.connect(("127.0.0.1", port))?;
        socket.set_read_timeout(Some(Duration::from_millis(500)))?;
        socket.send(question)?;
        socket.recv(&mut [0; 512])
    };
    query().is_ok()
}

/// Starts a program that writes into a file.
fn logged(log: &Path, command: &[&str]) -> SupervisedChild {
    let log = log.display().to_string();
    let mut words = vec!["/bin/sh", "-c", r#"log=$1; shift; exec "$@" >>"$log" 2>&1"#, "sh", &log];
    words.extend(command);
    SupervisedChild::start(&words.into_iter().map(str::to_owned).collect::<Vec<_>>())
}

fn own_certificate() -> (String, String) {
    let key = rcgen::KeyPair::generate().expect("a key");
    let names = ["127.0.0.1", "localhost"].map(str::to_owned);
    let certificate = rcgen::CertificateParams::new(names)
        .and_then(|params| params.self_signed(&key))
        .expect("a certificate");
    (certificate.pem(), key.serialize_pem())
}
