//! Servers of the ACME tests, and what they report.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use firstflight_testkit::{Pebble, PebblePlan, free_port};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::program::{PAGE, Serve, fetch, run, site, text, until};

/// The ports of a server, to which the authority connects.
#[derive(Clone, Copy)]
pub(crate) struct Ports {
    pub(crate) https: u16,
    pub(crate) redirect: u16,
}

impl Ports {
    pub(crate) fn free() -> Self {
        Self { https: free_port(), redirect: free_port() }
    }

    pub(crate) fn plan(self) -> PebblePlan {
        PebblePlan { http_port: self.redirect, tls_port: self.https, ..PebblePlan::default() }
    }
}

/// Writes `config.toml` with these sites and the ACME settings.
pub(crate) fn configure(
    dir: &Path,
    pebble: &Pebble,
    ports: Ports,
    challenge: &str,
    sites: &[&[&str]],
) {
    let Ports { https, redirect } = ports;
    let (directory, authority) = (pebble.directory(), pebble.authority());
    let mut text = format!(
        "[[listener]]\naddress = \"127.0.0.1:{https}\"\n\
         [[listener]]\naddress = \"127.0.0.1:{redirect}\"\nprotocol = \"redirect\"\n\
         [admin]\naddress = \"127.0.0.1:0\"\n\
         [acme]\ndirectory = {directory:?}\nauthority = {authority:?}\nterms_agreed = true\n\
         contact = [\"ops@example.test\"]\nstate = \"state\"\nchallenges = [{challenge:?}]\n"
    );
    let extra = fs::read_to_string(dir.join("extra.toml")).unwrap_or_default();
    text.push_str(&extra);
    let root = dir.join("root");
    for names in sites {
        text += &format!(
            "[[site]]\nnames = {names:?}\nacme = true\n[[site.route]]\npath = \"/\"\nroot = {root:?}\n"
        );
    }
    // Replaced atomically, because the server watches it.
    fs::write(dir.join("config.new"), text).unwrap();
    fs::rename(dir.join("config.new"), dir.join("config.toml")).unwrap();
}

/// Whether a page is served under a name with a certificate of the authority.
pub(crate) fn is_served(dir: &Path, root: &Path, port: u16, name: &str) -> bool {
    let resolve = format!("{name}:{port}:127.0.0.1");
    let url = format!("https://{name}:{port}/");
    let fetched = fetch(dir, root, &url, &["--resolve", &resolve]);
    (fetched.ended.code, &*fetched.ended.out) == (Some(0), PAGE)
}

/// The authority's current root certificate.
pub(crate) fn trusted(dir: &Path, pebble: &Pebble) -> PathBuf {
    let file = dir.join("root.pem");
    fs::write(&file, pebble.root()).unwrap();
    file
}

/// The serial number of the certificate that OpenSSL receives.
pub(crate) fn serial(port: u16, name: &str) -> String {
    let script = format!(
        "openssl s_client -connect 127.0.0.1:{port} -servername {name} </dev/null 2>/dev/null | \
         openssl x509 -noout -serial"
    );
    run(Command::new("sh").args(["-c", &script])).out
}

/// The status of a site's certificate at the admin listener.
pub(crate) fn certificate(server: &Serve, site: &str) -> Value {
    let url = format!("http://{}/status.json", server.console());
    let status_text = run(Command::new("curl").args(["-sS", &url])).out;
    let status: Value =
        serde_json::from_str(&status_text).unwrap_or_else(|error| panic!("{error}: {status_text}"));
    let all = status["certificates"].as_array().cloned().unwrap_or_default();
    all.into_iter().find(|entry| entry["site"] == site).unwrap_or_default()
}

/// The value of the first metric whose line starts with this text.
pub(crate) fn metric(server: &Serve, series: &str) -> f64 {
    let url = format!("http://{}/metrics", server.console());
    let page = run(Command::new("curl").args(["-sS", &url])).out;
    let found = page.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
    found.unwrap_or_else(|| panic!("{series}: {page}"))
}

pub(crate) fn stderr(server: &Serve) -> String {
    text(&server.stderr)
}

/// Starts an authority and a server, and waits for the certificate of `a.test`.
pub(crate) fn start_server(
    challenge: &str,
    life: Option<u32>,
) -> (TempDir, Ports, Pebble, Serve, PathBuf) {
    start_server_with(challenge, |ports| PebblePlan { validity_seconds: life, ..ports.plan() })
}

pub(crate) fn start_server_with(
    challenge: &str,
    plan: impl Fn(Ports) -> PebblePlan,
) -> (TempDir, Ports, Pebble, Serve, PathBuf) {
    let (site, ports) = (site(), Ports::free());
    let dir = site.path();
    let pebble = Pebble::start(plan(ports));
    configure(dir, &pebble, ports, challenge, &[&["a.test", "b.test"]]);
    let server = Serve::configured(dir);
    let root = trusted(dir, &pebble);
    let there = until(|| is_served(dir, &root, ports.https, "a.test"));
    assert!(there, "{}\n{}", stderr(&server), pebble.log());
    (site, ports, pebble, server, root)
}
