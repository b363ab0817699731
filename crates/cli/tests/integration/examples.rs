//! The files under `examples/`, run with other paths, ports and host names. Each value that is
//! replaced must occur in the example.

mod compose;
mod kubernetes;
mod proxies;
mod witness;

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::peer::Peer;

/// The path of an example.
pub(crate) fn example(name: &str) -> PathBuf {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    fs::canonicalize(examples).unwrap().join(name)
}

/// The text of an example with these values replaced. Each must occur in it exactly once.
pub(crate) fn adapted(name: &str, places: &[(&str, String)]) -> String {
    let mut text = fs::read_to_string(example(name)).unwrap();
    for (theirs, ours) in places {
        assert_eq!(text.matches(theirs).count(), 1, "{theirs} in {name}");
        text = text.replace(theirs, ours);
    }
    text
}

/// HAProxy with the example's configuration, adapted by `change`. It reads its ticket keys from
/// `tickets` in `dir`, logs to standard output, and forwards to `upstream`. It also listens on the unix
/// sockets `plain` and `metrics`.
pub(crate) fn start_haproxy(dir: &Path, upstream: &str, change: impl Fn(String) -> String) -> Peer {
    Peer::start(dir, "haproxy", &["-W", "-db"], |port| {
        let here = |name: &str| dir.join(name).display().to_string();
        let places = [
            // By default two processes can share a port, and each gets some of the other's clients.
            ("global\n    log", "global\n    noreuseport\n    log".to_owned()),
            ("bind :443 ", format!("bind 127.0.0.1:{port} ")),
            ("bind :80\n", format!("bind unix@{}\n", here("plain"))),
            ("bind 127.0.0.1:8405", format!("bind unix@{}", here("metrics"))),
            ("127.0.0.1:8080", upstream.to_owned()),
            ("/etc/haproxy/tls/both.pem", here("both.pem")),
            ("/run/firstflight-keys/haproxy", here("tickets")),
            // The user who runs the tests may not be able to change to another one.
            ("    user haproxy\n", String::new()),
            ("    group haproxy\n", String::new()),
        ];
        change(adapted("haproxy/haproxy.cfg", &places))
    })
}

/// nginx with the example as a site. It reads its ticket keys from `tickets` in `dir`, logs to
/// `early-data.log`, and forwards to `upstream`.
pub(crate) fn start_nginx(dir: &Path, upstream: &str) -> Peer {
    Peer::start(dir, "nginx", &["-e", "stderr", "-p", "."], |port| {
        let here = |name: &str| dir.join(name).display().to_string();
        let places = [
            ("listen 443 ssl http2;", format!("listen 127.0.0.1:{port} ssl http2;")),
            ("listen 80;", format!("listen unix:{};", here("plain"))),
            ("127.0.0.1:8080", upstream.to_owned()),
            ("/etc/nginx/tls/fullchain.pem", here("cert.pem")),
            ("/etc/nginx/tls/privkey.pem", here("key.pem")),
            ("/run/firstflight-keys/nginx", here("tickets")),
            ("/var/log/nginx/early-data.log", here("early-data.log")),
        ];
        std::fs::write(dir.join("site.conf"), adapted("nginx/early-data.conf", &places)).unwrap();
        // What a distribution's nginx.conf contains in addition.
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {name};\n"))
            .concat();
        format!(
            "daemon off;\nworker_processes 1;\npid nginx.pid;\nevents {{ }}\nhttp {{\naccess_log \
             off;\n{temporary}include site.conf;\n}}\n"
        )
    })
}
