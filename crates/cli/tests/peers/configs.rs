//! Commands and configurations of servers that the chaos suite does not know, with early data
//! enabled wherever they support it.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use firstflight_testkit::program_path;
use serde_json::{Value, json};

use crate::kind::Settings;
use crate::peer::{Peer, Server, python};

/// The command for a server that listens on `port`, in a directory of its own beside `shared`.
pub(crate) fn command(
    peer: Peer,
    shared: &Path,
    own: &Path,
    port: u16,
    upstream: SocketAddr,
    settings: &Settings,
) -> Command {
    let cert = shared.join("cert.pem").display().to_string();
    let key = shared.join("key.pem").display().to_string();
    let program = peer.program().expect("a server with a program of its own");
    let mut command = Command::new(program_path(&program));
    let write_config = |text: String| {
        let path = own.join("config");
        fs::write(&path, text).unwrap();
        path
    };
    let port_text = port.to_string();
    match peer.server {
        Server::Openssl => {
            command.args(["s_server", "-tls1_3", "-early_data", "-cert", &cert, "-key", &key]);
            command.args(["-accept", &port_text]);
        }
        Server::Gnutls => {
            command.args(["--http", "--earlydata", "--disable-client-cert", "--port", &port_text]);
            command.args(["--x509certfile", &cert, "--x509keyfile", &key]);
        }
        Server::Envoy | Server::EnvoyKeys => {
            let ticket_key = shared.join("ticket.key").display().to_string();
            let keys = (peer.server == Server::EnvoyKeys).then_some(ticket_key.as_str());
            let config = match peer.quic {
                true => envoy_quic(&cert, &key, keys, port, upstream, settings.early_data),
                false => envoy(&cert, &key, port, upstream),
            };
            let config = write_config(config.to_string());
            command.args(["--concurrency", "1", "--disable-hot-restart", "-l", "error", "-c"]);
            command.arg(config);
        }
        Server::Caddy => {
            let storage = shared.join("storage").display().to_string();
            let config = write_config(caddy(&cert, &key, &storage, port, upstream).to_string());
            command.args(["run", "--config"]).arg(config);
        }
        Server::Nginx => {
            let config = write_config(nginx(shared, own, port, upstream, settings.early_data));
            command.args(["-e", "stderr", "-p"]).arg(own).arg("-c").arg(config);
        }
        Server::Ngtcp2 => {
            let page = own.join("root/proxied/witness");
            fs::create_dir_all(page.parent().unwrap()).unwrap();
            fs::write(page, "page").unwrap();
            command.args(["--no-quic-dump", "--no-http-dump", "--htdocs=root", "127.0.0.1"]);
            command.args([&port_text, &key, &cert]);
        }
        Server::Aioquic => {
            let script = own.join("aioquic_server.py");
            fs::write(&script, include_str!("aioquic_server.py")).unwrap();
            command = python();
            command.arg(script).args(["--cert", &cert, "--key", &key, "--port", &port_text]);
        }
        Server::H2o => {
            let user = if nix::unistd::geteuid().is_root() { "user: root\n" } else { "" };
            let config = write_config(format!(
                "{user}listen:\n  host: 127.0.0.1\n  port: {port}\n  ssl:\n    \
                 certificate-file: {cert}\n    key-file: {key}\n    ocsp-update-interval: 0\n\
                 hosts:\n  default:\n    paths:\n      \"/\":\n        \
                 proxy.reverse.url: \"http://{upstream}/\"\n"
            ));
            command.arg("-c").arg(config);
        }
        _ => unreachable!("{} is started elsewhere", peer.name),
    }
    command
}

const TYPES: &str = "type.googleapis.com/envoy.extensions";

/// Over TCP, without early data, which Envoy supports only over QUIC.
fn envoy(cert: &str, key: &str, port: u16, upstream: SocketAddr) -> Value {
    let tls = json!({ "name": "tls", "typed_config": {
        "@type": format!("{TYPES}.transport_sockets.tls.v3.DownstreamTlsContext"),
        "common_tls_context": {
            "alpn_protocols": ["http/1.1"],
            "tls_params": { "tls_maximum_protocol_version": "TLSv1_3" },
            "tls_certificates": envoy_certificates(cert, key),
        },
    } });
    envoy_resources(
        json!({
            "address": envoy_address("TCP", port),
            "filter_chains": [{ "transport_socket": tls, "filters": [envoy_http("AUTO")] }],
        }),
        upstream,
    )
}

/// Over QUIC, with these ticket keys, or else with keys that Envoy generates.
fn envoy_quic(
    cert: &str,
    key: &str,
    ticket_keys: Option<&str>,
    port: u16,
    upstream: SocketAddr,
    early_data: bool,
) -> Value {
    let mut tls = json!({ "common_tls_context": {
        "alpn_protocols": ["h3"],
        "tls_certificates": envoy_certificates(cert, key),
    } });
    if let Some(file) = ticket_keys {
        tls["session_ticket_keys"] = json!({ "keys": [{ "filename": file }] });
    }
    let socket = json!({ "name": "quic", "typed_config": {
        "@type": format!("{TYPES}.transport_sockets.quic.v3.QuicDownstreamTransport"),
        "enable_early_data": early_data,
        "downstream_tls_context": tls,
    } });
    let mut config = envoy_resources(
        json!({
            "address": envoy_address("UDP", port),
            "udp_listener_config": { "quic_options": {} },
            "filter_chains": [{ "transport_socket": socket, "filters": [envoy_http("HTTP3")] }],
        }),
        upstream,
    );
    // Without this feature flag, Envoy ignores the keys.
    let with_keys = json!({
        "envoy.reloadable_features.quic_session_ticket_support": ticket_keys.is_some(),
    });
    config["layered_runtime"] =
        json!({ "layers": [{ "name": "static", "static_layer": with_keys }] });
    config
}

fn envoy_resources(listener: Value, upstream: SocketAddr) -> Value {
    json!({ "static_resources": {
        "listeners": [listener],
        "clusters": [{
            "name": "witness",
            "load_assignment": {
                "cluster_name": "witness",
                "endpoints": [{ "lb_endpoints": [{
                    "endpoint": { "address": envoy_address("TCP", upstream.port()) },
                }] }],
            },
        }],
    } })
}

fn envoy_address(protocol: &str, port: u16) -> Value {
    json!({ "socket_address": {
        "protocol": protocol,
        "address": "127.0.0.1",
        "port_value": port,
    } })
}

fn envoy_certificates(cert: &str, key: &str) -> Value {
    json!([{ "certificate_chain": { "filename": cert }, "private_key": { "filename": key } }])
}

fn envoy_http(codec: &str) -> Value {
    let router = json!({ "name": "router", "typed_config": {
        "@type": format!("{TYPES}.filters.http.router.v3.Router"),
    } });
    json!({ "name": "http", "typed_config": {
        "@type": format!(
            "{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager"
        ),
        "codec_type": codec,
        "stat_prefix": "audit",
        "http_filters": [router],
        "route_config": { "virtual_hosts": [{
            "name": "all",
            "domains": ["*"],
            "routes": [{ "match": { "prefix": "/" }, "route": { "cluster": "witness" } }],
        }] },
    } })
}

/// Over TCP and QUIC, with its ticket keys in the storage that its processes share.
fn caddy(cert: &str, key: &str, storage: &str, port: u16, upstream: SocketAddr) -> Value {
    json!({
        "admin": { "disabled": true, "config": { "persist": false } },
        "logging": { "logs": { "default": { "level": "WARN" } } },
        "storage": { "module": "file_system", "root": storage },
        "apps": {
            "http": { "grace_period": "1s", "servers": { "audit": {
                "listen": [format!("127.0.0.1:{port}")],
                "protocols": ["h1", "h3"],
                "automatic_https": { "disable": true },
                "tls_connection_policies": [{ "default_sni": "localhost" }],
                "routes": [{ "handle": [{
                    "handler": "reverse_proxy",
                    "upstreams": [{ "dial": upstream.to_string() }],
                }] }],
            } } },
            "tls": {
                "certificates": { "load_files": [{ "certificate": cert, "key": key }] },
                "session_tickets": { "key_source": { "provider": "distributed" } },
            },
        },
    })
}

/// Over QUIC, as a single process.
fn nginx(shared: &Path, own: &Path, port: u16, upstream: SocketAddr, early_data: bool) -> String {
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {}/{name};\n", own.display()))
        .concat();
    let early_data = if early_data { "on" } else { "off" };
    format!(
        "daemon off;\nmaster_process off;\npid {own}/nginx.pid;\n\
         events {{ worker_connections 1024; }}\nhttp {{\naccess_log off;\n{temporary}\
         server {{\nlisten 127.0.0.1:{port} quic;\nssl_certificate {shared}/cert.pem;\n\
         ssl_certificate_key {shared}/key.pem;\nssl_protocols TLSv1.3;\n\
         ssl_early_data {early_data};\nssl_session_tickets on;\n\
         ssl_session_ticket_key {shared}/ticket.key;\nlocation / {{\n\
         proxy_pass http://{upstream};\nproxy_set_header Early-Data $ssl_early_data;\n}}\n}}\n}}\n",
        own = own.display(),
        shared = shared.display(),
    )
}
