//! Settings of a network namespace under /proc/sys/net.

use std::fs;
use std::path::Path;

use crate::LinkError;

/// Writes all settings for the network namespace of the calling thread, and returns those that
/// this machine did not take, as `key=value`.
///
/// # Errors
/// If one fails without which the figures would be wrong.
pub(crate) fn apply() -> Result<Vec<String>, LinkError> {
    for (key, value) in REQUIRED {
        write(key, value).map_err(|source| LinkError::Setting { key, value, source })?;
    }
    let mut refused = Vec::new();
    for (key, value) in WANTED {
        if Path::new(ROOT).join(key).exists() && write(key, value).is_err() {
            refused.push(format!("{key}={value}"));
        }
    }
    Ok(refused)
}

fn write(key: &str, value: &str) -> std::io::Result<()> {
    fs::write(Path::new(ROOT).join(key), value)
}

const ROOT: &str = "/proc/sys";

/// TCP Fast Open as client and as server (RFC 7413).
const REQUIRED: [(&str, &str); 1] = [("net/ipv4/tcp_fastopen", "3")];

const WANTED: [(&str, &str); 14] = [
    // One lost SYN would otherwise switch Fast Open off for an hour.
    ("net/ipv4/tcp_fastopen_blackhole_timeout_sec", "0"),
    // A connection must not inherit RTT and window from the one before. Fast Open cookies are
    // kept in the same table but stored in any case.
    ("net/ipv4/tcp_no_metrics_save", "1"),
    // Tens of thousands of short connections, closed by either side. The lower ports are left to
    // servers that are restarted meanwhile.
    ("net/ipv4/ip_unprivileged_port_start", "0"),
    ("net/ipv4/ip_local_port_range", "16384 65535"),
    ("net/ipv4/tcp_tw_reuse", "1"),
    ("net/ipv4/tcp_max_tw_buckets", "262144"),
    ("net/ipv4/tcp_max_syn_backlog", "65536"),
    ("net/core/somaxconn", "65535"),
    // The attacker's packets enter by another interface than their source's route.
    ("net/ipv4/conf/all/rp_filter", "0"),
    ("net/ipv4/conf/default/rp_filter", "0"),
    // Neighbour and router discovery would be foreign packets on the link.
    ("net/ipv6/conf/all/disable_ipv6", "1"),
    ("net/ipv6/conf/default/disable_ipv6", "1"),
    // A response to a refused connection is a sample too.
    ("net/ipv4/icmp_ratelimit", "0"),
    ("net/ipv4/tcp_invalid_ratelimit", "0"),
];
