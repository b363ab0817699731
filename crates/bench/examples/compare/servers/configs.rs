//! How each server is configured: one worker, X25519, tickets and early data where supported,
//! no access log, room for 50,000 connections that stay open for an hour, and otherwise defaults.

use nix::sys::resource::{Resource, getrlimit};
use serde_json::json;

use super::Setup;

pub(super) fn firstflight(setup: &Setup<'_>) -> String {
    format!(
        "[limits]\nconnections = 100000\nidle_timeout = \"1h\"\n\
         [[site]]\ncertificate = {cert:?}\nkey = {key:?}\n\
         [[site.route]]\nroot = {root:?}\n\
         [[site.route]]\npath = \"/proxied\"\nupstream = \"origin\"\n\
         [upstream.origin]\nservers = [\"http://{upstream}\"]\n",
        cert = setup.file("cert.pem"),
        key = setup.file("key.pem"),
        root = setup.file("root"),
        upstream = setup.site.upstream,
    )
}

/// `about` is the output of `nginx -V`. Debian's nginx lacks the `http2` directive and HTTP/3.
pub(super) fn nginx(setup: &Setup<'_>, about: &str) -> String {
    let quic = about.contains("http_v3_module");
    let (by_listen, by_directive) =
        match (about.contains("http_v2_module"), has_http2_directive(about)) {
            (false, _) => ("", ""),
            (true, true) => ("", "http2 on;\n"),
            (true, false) => (" http2", ""),
        };
    let quic = match quic {
        true => format!("listen 127.0.0.1:{} quic reuseport;\n", setup.port),
        false => String::new(),
    };
    format!(
        "daemon off;\nuser root root;\nworker_processes 1;\nerror_log stderr error;\n\
         pid {dir}/nginx.pid;\nevents {{ worker_connections 65536; }}\n\
         http {{\naccess_log off;\nsendfile on;\ntcp_nopush on;\nkeepalive_requests 1000000000;\n\
         keepalive_timeout 1h;\n\
         open_file_cache max=64;\n\
         client_body_temp_path {dir}/body;\nproxy_temp_path {dir}/proxy;\n\
         fastcgi_temp_path {dir}/fastcgi;\nuwsgi_temp_path {dir}/uwsgi;\nscgi_temp_path {dir}/scgi;\n\
         upstream origin {{ server {upstream}; keepalive 64; }}\n\
         server {{\nlisten 127.0.0.1:{port} ssl{by_listen} backlog=4096;\n{quic}{by_directive}\
         ssl_certificate {cert};\nssl_certificate_key {key};\nssl_protocols TLSv1.3;\n\
         ssl_ecdh_curve X25519;\nssl_session_cache none;\nssl_session_tickets on;\n\
         ssl_early_data on;\nroot {root};\n\
         location /proxied/ {{ proxy_pass http://origin; proxy_http_version 1.1; \
         proxy_set_header Connection \"\"; }}\n}}\n}}\n",
        dir = setup.directory.display(),
        upstream = setup.site.upstream,
        port = setup.port,
        cert = setup.file("cert.pem"),
        key = setup.file("key.pem"),
        root = setup.file("root"),
    )
}

/// Whether this nginx has the `http2` directive: since 1.25.1.
fn has_http2_directive(about: &str) -> bool {
    let version = about.split("nginx/").nth(1).unwrap_or_default();
    let mut numbers =
        version.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0u32));
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next(), next()) >= (1, 25, 1)
}

pub(super) fn haproxy(setup: &Setup<'_>) -> String {
    format!(
        "global\nnbthread 1\nmaxconn {connections}\ndefaults\nmode http\ntimeout client 1h\n\
         timeout server 60s\ntimeout connect 5s\n\
         frontend bench\nbind 127.0.0.1:{port} ssl crt {both} alpn h2,http/1.1 curves X25519 \
         ssl-min-ver TLSv1.3 allow-0rtt backlog 4096\n\
         http-request return status 200 content-type application/octet-stream file {root}/1k \
         if {{ path /1k }}\n\
         default_backend origin\nbackend origin\nserver origin {upstream}\n",
        connections = max_connections(),
        port = setup.port,
        both = setup.file("both.pem"),
        root = setup.file("root"),
        upstream = setup.site.upstream,
    )
}

/// As many as the limit of open files allows: HAProxy needs two per connection, and does not start
/// with fewer.
fn max_connections() -> u64 {
    let allowed = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(_, hard)| hard);
    (allowed.saturating_sub(200) / 2).min(65_536)
}

pub(super) fn h2o(setup: &Setup<'_>) -> String {
    format!(
        "user: root\nnum-threads: 1\npid-file: {dir}/pid\nerror-log: {dir}/errors\n\
         listen:\n  host: 127.0.0.1\n  port: {port}\n  ssl:\n    certificate-file: {cert}\n    \
         key-file: {key}\n    minimum-version: TLSv1.3\n    ocsp-update-interval: 0\n\
         hosts:\n  default:\n    paths:\n      \"/proxied\":\n        \
         proxy.reverse.url: \"http://{upstream}/proxied\"\n      \
         \"/\":\n        file.dir: {root}\n",
        dir = setup.directory.display(),
        port = setup.port,
        cert = setup.file("cert.pem"),
        key = setup.file("key.pem"),
        upstream = setup.site.upstream,
        root = setup.file("root"),
    )
}

pub(super) fn caddy(setup: &Setup<'_>) -> String {
    json!({
        "admin": { "disabled": true, "config": { "persist": false } },
        "logging": { "logs": { "default": { "level": "ERROR" } } },
        "apps": {
            "http": { "grace_period": "1s", "servers": { "bench": {
                "listen": [format!("127.0.0.1:{}", setup.port)],
                "protocols": ["h1", "h2", "h3"],
                "automatic_https": { "disable": true },
                "tls_connection_policies": [{
                    "protocol_min": "tls1.3",
                    "curves": ["x25519"],
                    "default_sni": "localhost",
                }],
                "routes": [
                    {
                        "match": [{ "path": ["/proxied/*"] }],
                        "handle": [{
                            "handler": "reverse_proxy",
                            "upstreams": [{ "dial": setup.site.upstream.to_string() }],
                        }],
                    },
                    { "handle": [{ "handler": "file_server", "root": setup.file("root") }] },
                ],
            } } },
            "tls": { "certificates": { "load_files": [{
                "certificate": setup.file("cert.pem"),
                "key": setup.file("key.pem"),
            }] } },
        },
    })
    .to_string()
}

pub(super) fn envoy(setup: &Setup<'_>) -> String {
    const TYPES: &str = "type.googleapis.com/envoy.extensions";
    let address = |protocol: &str, port: u16| {
        json!({ "socket_address": {
            "protocol": protocol, "address": "127.0.0.1", "port_value": port,
        } })
    };
    let tls = |alpn: &[&str]| {
        json!({
            "alpn_protocols": alpn,
            "tls_params": {
                "tls_minimum_protocol_version": "TLSv1_3",
                "tls_maximum_protocol_version": "TLSv1_3",
                "ecdh_curves": ["X25519"],
            },
            "tls_certificates": [{
                "certificate_chain": { "filename": setup.file("cert.pem") },
                "private_key": { "filename": setup.file("key.pem") },
            }],
        })
    };
    let http = |codec: &str| {
        json!([{ "name": "http", "typed_config": {
            "@type": format!(
                "{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager"
            ),
            "stat_prefix": "bench",
            "codec_type": codec,
            "http_filters": [{ "name": "router", "typed_config": {
                "@type": format!("{TYPES}.filters.http.router.v3.Router"),
            } }],
            "route_config": { "virtual_hosts": [{
                "name": "bench",
                "domains": ["*"],
                "routes": [
                    {
                        "match": { "path": "/1k" },
                        "direct_response": {
                            "status": 200,
                            "body": { "filename": format!("{}/1k", setup.file("root")) },
                        },
                    },
                    { "match": { "prefix": "/" }, "route": { "cluster": "origin" } },
                ],
            }] },
        } }])
    };
    let upstream = address("TCP", setup.site.upstream.port());
    json!({ "static_resources": {
        "listeners": [
            {
                "name": "tcp",
                "address": address("TCP", setup.port),
                "filter_chains": [{
                    "transport_socket": { "name": "tls", "typed_config": {
                        "@type":
                            format!("{TYPES}.transport_sockets.tls.v3.DownstreamTlsContext"),
                        "common_tls_context": tls(&["h2", "http/1.1"]),
                    } },
                    "filters": http("AUTO"),
                }],
            },
            {
                "name": "quic",
                "address": address("UDP", setup.port),
                "udp_listener_config": { "quic_options": {} },
                "filter_chains": [{
                    "transport_socket": { "name": "quic", "typed_config": {
                        "@type":
                            format!("{TYPES}.transport_sockets.quic.v3.QuicDownstreamTransport"),
                        "downstream_tls_context": { "common_tls_context": tls(&["h3"]) },
                    } },
                    "filters": http("HTTP3"),
                }],
            },
        ],
        "clusters": [{
            "name": "origin",
            "type": "STATIC",
            "load_assignment": {
                "cluster_name": "origin",
                "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": upstream } }] }],
            },
        }],
    } })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::has_http2_directive;

    #[test]
    fn the_http2_directive_exists_since_nginx_1_25_1() {
        assert!(!has_http2_directive("nginx version: nginx/1.22.1\nbuilt with OpenSSL 3.0.22"));
        assert!(has_http2_directive("nginx version: nginx/1.25.1"));
        assert!(has_http2_directive("nginx version: nginx/1.31.5"));
        assert!(!has_http2_directive(""));
    }
}
