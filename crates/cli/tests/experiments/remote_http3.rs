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
use serde_json::json;

use crate::remote::measure_command;
use crate::{lab, spoiled};

const SAMPLES: usize = 3;
const KINDS: [HandshakeKind; 3] =
    [HandshakeKind::Full, HandshakeKind::Resumed, HandshakeKind::ZeroRtt];
/// The round-trip times of curl's measurements.
const RTTS_MS: [u64; 2] = [18, 260];
const PAGE: ResponseSize = ResponseSize::TenKib;

/// By kind of handshake: the label, and the fewest round trips to the first and to the last byte. A
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

fn in_the_lab() -> Record {
    lab(|config| {
        config.costs = false;
        config.experiments.push(Experiment {
            name: "page".to_owned(),
            title: String::new(),
            profiles: RTTS_MS.map(|ms| Profile::plain(Duration::from_millis(ms))).to_vec(),
            axes: Axes {
                servers: vec![ServerKind::Firstflight, ServerKind::Caddy],
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

pub(super) fn as_in_the_lab() {
    let lab = in_the_lab();
    for (server, command, rtts_ms) in [
        (ServerKind::Firstflight, firstflight as fn(&Path, Ipv4Addr) -> Command, &RTTS_MS[..]),
        // quic-go takes a short path for granted: on one of 260 ms it sends packets again before a
        // response can come, and the lab leaves such samples out.
        (ServerKind::Caddy, caddy, &RTTS_MS[..1]),
    ] {
        for &rtt_ms in rtts_ms {
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
