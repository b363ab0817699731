//! HAProxy by its example.

use std::path::Path;

use super::placed;
use crate::peers::Peer;

/// A node with the example as its configuration, once it is changed so. Its ticket keys are
/// `tickets` in `dir`, its log is what it says, and it passes on to this address. Besides it
/// listens on the sockets `plain` and `metrics`.
pub(crate) fn start(dir: &Path, upstream: &str, change: impl Fn(String) -> String) -> Peer {
    Peer::start(dir, "haproxy", &["-W", "-db"], |port| {
        let here = |name: &str| dir.join(name).display().to_string();
        let places = [
            // By default two processes can have one port, and each gets some of the other's
            // clients.
            ("global\n    log", "global\n    noreuseport\n    log".to_owned()),
            ("bind :443 ", format!("bind 127.0.0.1:{port} ")),
            ("bind :80\n", format!("bind unix@{}\n", here("plain"))),
            ("bind 127.0.0.1:8405", format!("bind unix@{}", here("metrics"))),
            ("127.0.0.1:8080", upstream.to_owned()),
            ("/etc/haproxy/tls/both.pem", here("both.pem")),
            ("/run/firstflight-keys/haproxy", here("tickets")),
            // The tests may be run by somebody who cannot become another user.
            ("    user haproxy\n", String::new()),
            ("    group haproxy\n", String::new()),
        ];
        change(placed("haproxy/haproxy.cfg", &places))
    })
}
