//! Commands and configurations of servers that the chaos suite does not know, with early data on
//! wherever they have it.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use firstflight_testkit::program_path;
use serde_json::{Value, json};

use crate::peer::Peer;

/// The command for a server that listens on `port`, in a directory of its own beside `shared`.
pub(crate) fn command(
    peer: Peer,
    shared: &Path,
    own: &Path,
    port: u16,
    upstream: SocketAddr,
) -> Command {
    let cert = shared.join("cert.pem").display().to_string();
    let key = shared.join("key.pem").display().to_string();
    let program = peer.program().expect("a server with a program of its own");
    let mut command = Command::new(program_path(program));
    let written = |text: String| {
        let path = own.join("config");
        fs::write(&path, text).unwrap();
        path
    };
    let port_text = port.to_string();
    match peer {
        Peer::Openssl => {
            command.args(["s_server", "-tls1_3", "-early_data", "-cert", &cert, "-key", &key]);
            command.args(["-accept", &port_text]);
        }
        Peer::Gnutls => {
            command.args(["--http", "--earlydata", "--disable-client-cert", "--port", &port_text]);
            command.args(["--x509certfile", &cert, "--x509keyfile", &key]);
        }
        Peer::Envoy => {
            let config = written(envoy(&cert, &key, port, upstream).to_string());
            command.args(["--concurrency", "1", "--disable-hot-restart", "-l", "error", "-c"]);
            command.arg(config);
        }
        Peer::Caddy => {
            let config = written(format!(
                "{{\n\tadmin off\n\tauto_https off\n}}\nhttps://127.0.0.1:{port},\n\
                 https://localhost:{port} {{\n\ttls {cert} {key}\n\treverse_proxy {upstream}\n}}\n"
            ));
            command.args(["run", "--adapter", "caddyfile", "--config"]).arg(config);
        }
        Peer::H2o => {
            let user = if nix::unistd::geteuid().is_root() { "user: root\n" } else { "" };
            let config = written(format!(
                "{user}listen:\n  host: 127.0.0.1\n  port: {port}\n  ssl:\n    \
                 certificate-file: {cert}\n    key-file: {key}\n    ocsp-update-interval: 0\n\
                 hosts:\n  default:\n    paths:\n      \"/\":\n        \
                 proxy.reverse.url: \"http://{upstream}/\"\n"
            ));
            command.arg("-c").arg(config);
        }
        _ => unreachable!("{} is started by others", peer.name()),
    }
    command
}

fn envoy(cert: &str, key: &str, port: u16, upstream: SocketAddr) -> Value {
    const TYPES: &str = "type.googleapis.com/envoy.extensions";
    let address =
        |port: u16| json!({ "socket_address": { "address": "127.0.0.1", "port_value": port } });
    let router = json!({ "name": "router", "typed_config": {
        "@type": format!("{TYPES}.filters.http.router.v3.Router"),
    } });
    let http = json!({ "name": "http", "typed_config": {
        "@type": format!(
            "{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager"
        ),
        "stat_prefix": "audit",
        "http_filters": [router],
        "route_config": { "virtual_hosts": [{
            "name": "all",
            "domains": ["*"],
            "routes": [{ "match": { "prefix": "/" }, "route": { "cluster": "witness" } }],
        }] },
    } });
    let tls = json!({ "name": "tls", "typed_config": {
        "@type": format!("{TYPES}.transport_sockets.tls.v3.DownstreamTlsContext"),
        "common_tls_context": {
            "alpn_protocols": ["http/1.1"],
            "tls_params": { "tls_maximum_protocol_version": "TLSv1_3" },
            "tls_certificates": [{
                "certificate_chain": { "filename": cert },
                "private_key": { "filename": key },
            }],
        },
    } });
    json!({ "static_resources": {
        "listeners": [{
            "address": address(port),
            "filter_chains": [{ "transport_socket": tls, "filters": [http] }],
        }],
        "clusters": [{
            "name": "witness",
            "load_assignment": {
                "cluster_name": "witness",
                "endpoints": [{ "lb_endpoints": [{
                    "endpoint": { "address": address(upstream.port()) },
                }] }],
            },
        }],
    } })
}
