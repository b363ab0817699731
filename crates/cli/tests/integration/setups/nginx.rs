//! nginx by its example.

use std::path::Path;

use super::placed;
use crate::peers::Peer;

/// A node with the example as a site of its nginx. Its ticket keys are `tickets` in `dir`, its log
/// is `early-data.log`, and it passes on to this address.
pub(crate) fn start(dir: &Path, upstream: &str) -> Peer {
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
        std::fs::write(dir.join("site.conf"), placed("nginx/early-data.conf", &places)).unwrap();
        // What a distribution's nginx.conf has around it.
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {name};\n"))
            .concat();
        format!(
            "daemon off;\nworker_processes 1;\npid nginx.pid;\nevents {{ }}\nhttp {{\naccess_log \
             off;\n{temporary}include site.conf;\n}}\n"
        )
    })
}
