//! What a run finds over QUIC.

use firstflight_report::{Cell, Replay, Waterfall, WaterfallPacket};

use super::{Run, cell};

impl Run {
    /// QUIC's cells of the experiments that have them.
    pub(super) fn quic(&mut self) {
        for rtt_ms in [200.0, 20.0, 2.0, 0.2, 0.02] {
            for kind in KINDS {
                self.measure(over_quic("ping-pong", "ping-pong", rtt_ms, kind, false), 100);
            }
        }
        for rtt_ms in [200.0, 20.0, 2.0, 0.2] {
            for kind in KINDS {
                self.measure(over_quic("get", "get", rtt_ms, kind, false), 100);
            }
        }
        for (experiment, client, networks) in [
            ("curl", "firstflight", ["curl-260", "curl-18"]),
            ("third-party", "ngtcp2", ["curl-260", "curl-18"]),
            ("loss", "firstflight", ["20 ms, 1 % loss", "20 ms, reordered"]),
        ] {
            for network in networks {
                let rtt_ms = match network {
                    "curl-260" => 260.0,
                    "curl-18" => 18.0,
                    _ => 20.0,
                };
                for (kind, token) in [("full", false), ("0-RTT", false), ("0-RTT", true)] {
                    let cell = Cell {
                        client: client.to_owned(),
                        profile: network.to_owned(),
                        response_bytes: 10 << 10,
                        ..over_quic(experiment, "get", rtt_ms, kind, token)
                    };
                    self.measure(cell, 100);
                }
            }
        }
        let replay = self.record.replays[0].clone();
        self.record.replays.push(Replay { transport: "quic".to_owned(), ..replay });
    }

    /// A GET over HTTP/3 packet by packet.
    pub(super) fn quic_waterfall(&mut self) {
        let cells = &self.record.cells;
        let is_drawn = |cell: &Cell| {
            (&*cell.experiment, &*cell.transport, &*cell.kind, cell.rtt_ms)
                == ("get", "quic", "0-RTT", 20.0)
        };
        let Some(cell) = cells.iter().position(is_drawn) else { return };
        let packet = |up: bool, sent_ms: f64, what: &[&str], payload| WaterfallPacket {
            up,
            sent_ms,
            delivered_ms: Some(sent_ms + 10.02),
            what: what.iter().map(|&what| what.to_owned()).collect(),
            payload,
            again: false,
            depth: Some(1),
        };
        let flight = ["Initial", "ServerHello", "Handshake", "EncryptedExtensions", "Finished"];
        self.record.waterfalls.push(Waterfall {
            cell,
            label: "QUIC early data accepted".to_owned(),
            first_byte_ms: 20.4,
            last_byte_ms: 20.4,
            packets: vec![
                packet(true, 0.0, &["Initial", "ClientHello"], 1200),
                packet(true, 0.1, &["0-RTT", "early data 142 B"], 200),
                packet(false, 10.3, &flight, 1200),
                packet(false, 10.4, &["1-RTT", "application data 1100 B"], 1200),
            ],
            capture: None,
        });
    }
}

const KINDS: [&str; 3] = ["full", "resumed", "0-RTT"];

fn over_quic(experiment: &str, workload: &str, rtt_ms: f64, kind: &str, token: bool) -> Cell {
    Cell {
        client: "firstflight".to_owned(),
        transport: "quic".to_owned(),
        token,
        http: if workload == "get" { "3" } else { "" }.to_owned(),
        expected_round_trips: Some(if kind == "0-RTT" { 1 } else { 2 }),
        ..cell(experiment, "firstflight", workload, rtt_ms, "1.3", kind, false)
    }
}
