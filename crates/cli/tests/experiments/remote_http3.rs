//! `bench URL --http 3` finds at a server what the lab finds at the same one: labels and round trips.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use firstflight_emulator::Profile;
use firstflight_lab::{
    Axes, ConnectionAxes, Experiment, HandshakeKind, HttpVersion, ResponseSize, ServerKind,
};
use firstflight_report::Record;
use firstflight_testkit::program_path;
use serde_json::json;

use crate::remote::measure_command;
use crate::{lab, spoiled};

const SAMPLES: usize = 3;
const KINDS: [HandshakeKind; 3] =
    [HandshakeKind::Full, HandshakeKind::Resumed, HandshakeKind::ZeroRtt];
/// The round-trip times of curl's measurements.
const RTTS_MS: [u64; 2] = [18, 260];
const PAGE: ResponseSize = ResponseSize::TenKib;

/// By kind of handshake: the label, and the minimum of round trips to the first and to the last byte. A
/// busy machine adds round trips, but takes none away.
type Found = BTreeMap<String, (String, u32, u32)>;

fn found(record: &Record, server: Option<ServerKind>, rtt_ms: u64) -> Found {
    let mut found = Found::new();
    for sample in &record.samples {
        let cell = &record.cells[sample.cell];
        let elsewhere = server.is_some_and(|server| {
            cell.server != server.name() || cell.rtt_ms.round() as u64 != rtt_ms
        });
        if elsewhere {
            continue;
        }
        // A late packet changes no label.
        assert!(sample.fault.is_none() || spoiled(sample), "{sample:?} in {cell:?}");
        let (label, first, last) = (&sample.label, sample.round_trips, sample.total_round_trips);
        let (label, first, last) = (label.clone().unwrap(), first.unwrap(), last.unwrap());
        let known = found.entry(cell.kind.clone()).or_insert((label.clone(), first, last));
        assert_eq!(known.0, label, "{cell:?}");
        (known.1, known.2) = (known.1.min(first), known.2.min(last));
    }
    found
}

fn in_the_lab(servers: Vec<ServerKind>) -> Record {
    lab(|config| {
        config.costs = false;
        config.experiments.push(Experiment {
            name: "page".to_owned(),
            title: String::new(),
            profiles: RTTS_MS.map(|ms| Profile::plain(Duration::from_millis(ms))).to_vec(),
            axes: Axes {
                servers,
                connections: ConnectionAxes {
                    kinds: KINDS.to_vec(),
                    http: vec![HttpVersion::Three],
                    sizes: vec![PAGE],
                    ..ConnectionAxes::baseline()
                },
                ..Axes::baseline()
            },
            samples: SAMPLES,
            control: false,
        });
    })
}

fn firstflight(site: &Path, _: Ipv4Addr) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_firstflight"));
    command.args(["serve", "--listen", "0.0.0.0:4433", "--early-data", "on", "--root"]).arg(site);
    command.arg("--cert").arg(site.join("cert.pem")).arg("--key").arg(site.join("key.pem"));
    command
}

fn caddy(site: &Path, address: Ipv4Addr) -> Command {
    let config = json!({
        "admin": { "disabled": true, "config": { "persist": false } },
        "apps": {
            "http": { "servers": { "remote": {
                "listen": [format!("{address}:4433")],
                "automatic_https": { "disable": true },
                "tls_connection_policies": [{ "default_sni": "lab.test" }],
                "routes": [{ "handle": [{ "handler": "file_server", "root": site }] }],
            } } },
            "tls": { "certificates": { "load_files": [{
                "certificate": site.join("cert.pem"),
                "key": site.join("key.pem"),
            }] } },
        },
    });
    let file = site.join("caddy.json");
    std::fs::write(&file, config.to_string()).unwrap();
    let mut command = Command::new("caddy");
    command.args(["run", "--config"]).arg(file).env("HOME", site);
    command.env("XDG_DATA_HOME", site).env("XDG_CONFIG_HOME", site);
    command
}

fn nginx(site: &Path, address: Ipv4Addr) -> Command {
    let dir = site.display();
    let config = format!(
        "daemon off;\nmaster_process off;\nuser root root;\npid {dir}/nginx.pid;\n\
         error_log stderr crit;\nevents {{ }}\nhttp {{\naccess_log off;\n\
         client_body_temp_path {dir}/body;\nproxy_temp_path {dir}/proxy;\n\
         fastcgi_temp_path {dir}/fastcgi;\nuwsgi_temp_path {dir}/uwsgi;\n\
         scgi_temp_path {dir}/scgi;\nserver {{\nlisten {address}:4433 quic;\n\
         ssl_certificate {dir}/cert.pem;\nssl_certificate_key {dir}/key.pem;\n\
         ssl_protocols TLSv1.3;\nssl_early_data on;\nroot {dir};\n}}\n}}\n"
    );
    let file = site.join("nginx.conf");
    std::fs::write(&file, config).unwrap();
    let mut command = Command::new(program_path("nginx"));
    command.arg("-p").arg(site).arg("-c").arg(file).args(["-e", "stderr"]);
    command
}

/// Whether the nginx in `PATH` has HTTP/3, unlike that of most distributions.
fn nginx_has_http3() -> bool {
    let about = Command::new(program_path("nginx")).arg("-V").output();
    let has =
        about.is_ok_and(|about| String::from_utf8_lossy(&about.stderr).contains("http_v3_module"));
    if !has {
        eprintln!("skipped for nginx: the one in PATH has no HTTP/3");
    }
    has
}

type Start = fn(&Path, Ipv4Addr) -> Command;

pub(super) fn as_in_the_lab() {
    let mut servers: Vec<(ServerKind, Start)> = vec![
        (ServerKind::Firstflight, firstflight),
        // quic-go's first timer is shorter than the path of 260 ms.
        (ServerKind::Caddy, caddy),
    ];
    if nginx_has_http3() {
        servers.push((ServerKind::Nginx, nginx));
    }
    let lab = in_the_lab(servers.iter().map(|(server, _)| *server).collect());
    for (server, command) in servers {
        for rtt_ms in RTTS_MS {
            let rtt = Duration::from_millis(rtt_ms);
            let bench = measure_command(rtt, PAGE.bytes(), command, |config| {
                config.kinds = KINDS.to_vec();
                config.http = vec![HttpVersion::Three];
                config.samples = SAMPLES;
                config.control = false;
            });
            let (here, there) = (found(&bench, None, rtt_ms), found(&lab, Some(server), rtt_ms));
            assert_eq!(here.len(), KINDS.len(), "{server}: {here:?}, {:?}", bench.left_out);
            assert_eq!(here, there, "{server} at {rtt_ms} ms");
        }
    }
}
