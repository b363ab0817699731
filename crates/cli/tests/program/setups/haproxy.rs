//! HAProxy by its example.

use std::path::Path;

use super::placed;
use crate::peers::Peer;

/// Where a node listens besides.
pub(crate) struct Ports {
    pub(crate) plain: u16,
    pub(crate) metrics: u16,
}

/// A node with the example as its configuration, once it is changed so. Its ticket keys are `tickets`
/// in `dir`, its log is what it says, and it passes on to this address.
pub(crate) fn start(
    dir: &Path,
    upstream: &str,
    ports: &Ports,
    change: impl Fn(String) -> String,
) -> Peer {
    Peer::start(dir, "haproxy", &["-W", "-db"], |port| {
        let here = |name: &str| dir.join(name).display().to_string();
        let places = [
            ("bind :443 ", format!("bind 127.0.0.1:{port} ")),
            ("bind :80\n", format!("bind 127.0.0.1:{}\n", ports.plain)),
            ("127.0.0.1:8405", format!("127.0.0.1:{}", ports.metrics)),
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
