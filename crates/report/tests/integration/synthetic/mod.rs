//! A record with every section filled, drawn from a seed: what a run could have found.

use firstflight_report::statistics;
use firstflight_report::{
    Bytes, Calibration, Capture, Cell, Control, ControlPair, Effect, Experiment, Fault, Figures,
    Interval, LinkFacts, MachineFacts, ProfileFacts, Record, Residual, SCHEMA, Sample, ServerFacts,
    Summary, Witness,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

#[allow(dead_code, reason = "not every test looks at pictures")]
mod painted;
mod quic;
mod trials;
#[allow(dead_code, reason = "not every test looks at visits alone")]
mod visits;

use trials::{cold_starts, costs, loads, middleboxes, replay, stalls, waterfall};
#[allow(unused_imports, reason = "not every test looks at visits alone")]
pub(crate) use visits::{paint, visits_alone};

/// The record of this seed; the same seed gives the same record.
pub(crate) fn record(seed: u64) -> Record {
    let mut run = Run::new(seed, setting(seed));
    run.matrix("ping-pong", "firstflight", "ping-pong", &[200.0, 20.0, 2.0, 0.2, 0.02], true);
    for server in ["firstflight", "nginx"] {
        run.matrix("get", server, "get", &[200.0, 20.0, 2.0, 0.2], true);
    }
    run.curl();
    run.blueprint();
    run.profiles();
    run.effects();
    run.control();
    run.trials();
    run.quic();
    run.waterfalls();
    run.quic_waterfall();
    run.visits();
    run.access();
    run.image();
    run.clients();
    run.record
}

pub(super) struct Run {
    rng: StdRng,
    pub(super) record: Record,
}

impl Run {
    pub(super) fn new(seed: u64, record: Record) -> Self {
        Self { rng: StdRng::seed_from_u64(seed), record }
    }

    fn matrix(&mut self, experiment: &str, server: &str, workload: &str, rtts: &[f64], tfo: bool) {
        let versions: &[&str] = &["1.0", "1.1", "1.2", "1.3"];
        for &rtt_ms in rtts {
            for tls in versions {
                for kind in ["full", "resumed", "0-RTT"] {
                    if kind == "0-RTT" && *tls != "1.3" {
                        continue;
                    }
                    for tfo in [false, true].into_iter().filter(|on| tfo || !on) {
                        let cell = cell(experiment, server, workload, rtt_ms, tls, kind, tfo);
                        self.measure(cell, 100);
                    }
                }
            }
        }
    }

    fn curl(&mut self) {
        for rtt_ms in [260.0, 18.0] {
            for kind in ["full", "resumed", "0-RTT"] {
                let cell = Cell {
                    profile: format!("curl-{rtt_ms}"),
                    http: "2".to_owned(),
                    response_bytes: 10 << 10,
                    ..cell("curl", "firstflight", "get", rtt_ms, "1.3", kind, false)
                };
                self.measure(cell, 100);
            }
        }
    }

    fn blueprint(&mut self) {
        for kind in ["full", "resumed", "0-RTT"] {
            let cell = Cell {
                profile: "lan".to_owned(),
                ..cell("blueprint", "firstflight", "get", 0.2, "1.3", kind, false)
            };
            self.measure(cell, 1000);
        }
    }

    fn clients(&mut self) {
        for (experiment, client) in [
            ("clients", "firstflight"),
            ("clients", "curl"),
            ("s-client", "firstflight"),
            ("s-client", "openssl"),
        ] {
            for kind in ["full", "resumed", "0-RTT"] {
                let (profile, rtt_ms) =
                    if experiment == "clients" { ("24 ms", 24.0) } else { ("lan", 0.2) };
                let cell = Cell {
                    client: client.to_owned(),
                    profile: profile.to_owned(),
                    ..cell(experiment, "firstflight", "get", rtt_ms, "1.3", kind, false)
                };
                if (client, kind) != ("curl", "0-RTT") {
                    self.measure(cell, 6);
                }
            }
        }
    }

    fn profiles(&mut self) {
        for (profile, rtt_ms) in [("geo", 600.0), ("3g", 300.0), ("cable", 28.0), ("fibre", 4.0)] {
            for kind in ["full", "resumed", "0-RTT"] {
                for tfo in [false, true] {
                    let cell = Cell {
                        profile: profile.to_owned(),
                        ..cell("matrix", "firstflight", "get", rtt_ms, "1.3", kind, tfo)
                    };
                    self.measure(cell, 60);
                }
            }
        }
    }

    /// Access networks, in another order than that in which they were published.
    fn access(&mut self) {
        for (profile, rtt_ms) in [
            ("2g", 800.0),
            ("geo", 600.0),
            ("3g", 300.0),
            ("adsl+wifi", 61.4),
            ("4g", 53.0),
            ("adsl", 50.0),
            ("leo", 50.0),
            ("5g", 19.0),
            ("fibre+wifi", 14.0),
            ("fibre", 4.0),
        ] {
            for kind in ["full", "resumed", "0-RTT"] {
                let cell = Cell {
                    profile: profile.to_owned(),
                    ..cell("access", "firstflight", "get", rtt_ms, "1.3", kind, false)
                };
                self.measure(cell, 10);
            }
        }
    }

    fn image(&mut self) {
        for rate in ["1", "3", "20"] {
            for kind in ["resumed", "0-RTT"] {
                let cell = Cell {
                    profile: format!("walkthrough, {rate} Mbit/s"),
                    response_bytes: 1 << 20,
                    ..cell("image", "firstflight", "get", 112.0, "1.3", kind, false)
                };
                self.measure(cell, 3);
            }
        }
    }

    /// Samples of a cell, and its figures.
    pub(super) fn measure(&mut self, mut cell: Cell, samples: usize) {
        let place = self.record.cells.len();
        let trips = cell.expected_round_trips.unwrap_or(3);
        for block in 0..samples {
            let overhead = self.overhead(&cell);
            // Rounded, so that every machine's logarithm gives the same record.
            let mut time_ms = f64::from(trips) * cell.rtt_ms + (overhead * 1e4).round() / 1e4;
            let setup_ms = time_ms - if cell.kind == "0-RTT" { 0.0 } else { cell.rtt_ms } - 0.05;
            let spoiled = self.rng.random_bool(0.02);
            if spoiled {
                time_ms += 8.0;
            }
            let total_ms = time_ms + 0.05 + cell.response_bytes as f64 / 1e6;
            self.record.samples.push(Sample {
                cell: place,
                block,
                at_ms: self.record.samples.len() as f64 * 4.5,
                setup_ms: Some(setup_ms.max(0.01)),
                time_ms: Some(time_ms),
                total_ms: Some(total_ms),
                wire_ms: Some(time_ms - 0.2),
                wire_total_ms: Some(total_ms - 0.2),
                round_trips: Some(trips),
                total_round_trips: Some(trips),
                handshake_bytes: Some(bytes(&cell, 0)),
                first_byte_bytes: Some(bytes(&cell, cell.response_bytes.min(1400))),
                label: Some(format!("TLS {} {}", cell.tls, cell.kind)),
                lateness_us: self.rng.random_range(0.0..90.0),
                fault: spoiled.then(|| Fault::Spoiled("a packet 8.0 ms late on the link".into())),
                ..Sample::default()
            });
        }
        let good = self.record.samples.iter().filter(|s| s.cell == place && s.fault.is_none());
        let mut summary = Summary::of_samples(good).unwrap();
        let model_ms = f64::from(trips) * cell.rtt_ms + 0.5;
        let residual_ms = summary.first_byte.p50_ms - model_ms;
        summary.residual = Some(Residual { model_ms, residual_ms, flagged: residual_ms > 0.6 });
        cell.summary = Some(summary);
        self.record.cells.push(cell);
    }

    /// Time beyond the round trips: computing, skewed noise, and an occasional stall.
    fn overhead(&mut self, cell: &Cell) -> f64 {
        let computing = match cell.kind.as_str() {
            "full" => 0.62,
            "resumed" => 0.4,
            _ => 0.33,
        };
        let server = if cell.server == "nginx" { 0.2 } else { 0.0 };
        let waking = 0.1 * (1.0 + cell.rtt_ms).ln();
        let skewed = -0.08 * (1.0 - self.rng.random_range(0.0..0.999_f64)).ln();
        let stall = if self.rng.random_bool(0.01) { self.rng.random_range(1.0..6.0) } else { 0.0 };
        computing + server + waking + skewed + stall
    }

    fn effects(&mut self) {
        let cells = &self.record.cells;
        let mut effects = Vec::new();
        for (to, cell) in cells.iter().enumerate() {
            let what = match (cell.kind.as_str(), cell.tfo) {
                ("0-RTT", false) => "0-RTT instead of full",
                ("0-RTT", true) => "0-RTT + TFO instead of full",
                ("resumed", false) => "resumed instead of full",
                _ => continue,
            };
            let base = |other: &&Cell| {
                other.kind == "full"
                    && !other.tfo
                    && other.tls == "1.3"
                    && cell.tls == "1.3"
                    && (&other.experiment, &other.server, &other.profile, other.response_bytes)
                        == (&cell.experiment, &cell.server, &cell.profile, cell.response_bytes)
            };
            let Some(from) = cells.iter().position(|cell| base(&cell)) else { continue };
            let p50 = |cell: &Cell| cell.summary.as_ref().unwrap().first_byte.p50_ms;
            let estimate = p50(cell) - p50(&cells[from]);
            let half = 0.04 + 0.003 * estimate.abs();
            let ms = Interval { low: estimate - half, estimate, high: estimate + half };
            let rtt = |value: f64| value / cell.rtt_ms;
            effects.push(Effect {
                what: what.to_owned(),
                from,
                to,
                difference_ms: ms,
                difference_rtt: Interval {
                    low: rtt(ms.low),
                    estimate: rtt(ms.estimate),
                    high: rtt(ms.high),
                },
                significant: ms.low > 0.0 || ms.high < 0.0,
            });
        }
        self.record.effects = effects;
    }

    fn control(&mut self) {
        let named = |cell: &Cell| cell.kind == "0-RTT" && !cell.tfo && cell.experiment == "get";
        let twins: Vec<usize> = (0..self.record.cells.len())
            .filter(|place| named(&self.record.cells[*place]))
            .collect();
        let mut control = Control { allowed: 2, ..Control::default() };
        for cell in twins {
            let twin = self.record.cells.len();
            let again = Cell { control: true, ..self.record.cells[cell].clone() };
            self.measure(again, 100);
            let estimate = self.rng.random_range(-0.03..0.03);
            let difference_ms = Interval { low: estimate - 0.05, estimate, high: estimate + 0.05 };
            control.pairs.push(ControlPair { cell, twin, difference_ms, differs: false });
        }
        self.record.control = Some(control);
    }

    fn trials(&mut self) {
        self.record.replays = vec![replay("firstflight", 0), replay("nginx", 1000)];
        self.record.middleboxes = middleboxes();
        self.record.stalls = stalls();
        self.record.cold_starts = cold_starts();
        self.record.costs = costs();
        self.record.loads = loads();
    }

    fn waterfalls(&mut self) {
        for (kind, tfo) in [("full", false), ("resumed", false), ("0-RTT", false), ("0-RTT", true)]
        {
            let here = |cell: &Cell| {
                (cell.experiment.as_str(), cell.server.as_str()) == ("get", "firstflight")
                    && (cell.rtt_ms, cell.tls.as_str()) == (20.0, "1.3")
                    && (cell.kind.as_str(), cell.tfo) == (kind, tfo)
            };
            let cell = self.record.cells.iter().position(here).unwrap();
            self.record.waterfalls.push(waterfall(cell, kind, tfo));
        }
    }
}

pub(super) fn cell(
    experiment: &str,
    server: &str,
    workload: &str,
    rtt_ms: f64,
    tls: &str,
    kind: &str,
    tfo: bool,
) -> Cell {
    let handshake = match (tls, kind) {
        ("1.3", "0-RTT") => 0,
        ("1.3", _) | (_, "resumed") => 1,
        _ => 2,
    };
    let get = workload == "get";
    Cell {
        experiment: experiment.to_owned(),
        client: "firstflight".to_owned(),
        server: server.to_owned(),
        workload: workload.to_owned(),
        profile: format!("{rtt_ms} ms"),
        rtt_ms,
        transport: "tcp".to_owned(),
        tls: tls.to_owned(),
        kind: kind.to_owned(),
        tfo,
        http: if get { "1.1" } else { "" }.to_owned(),
        group: "X25519".to_owned(),
        certificate: "ecdsa-p256".to_owned(),
        response_bytes: if get { 1024 } else { 4 },
        expected_round_trips: Some(1 + u32::from(!tfo) + handshake),
        ..Cell::default()
    }
}

/// Bytes of a handshake and of `response` bytes of a response.
fn bytes(cell: &Cell, response: u64) -> Bytes {
    let certificate = if cell.kind == "full" { 900 } else { 0 };
    Bytes { up: 700, down: 600 + certificate + response }
}

fn figures(values: Vec<f64>) -> Figures {
    let values = statistics::ascending(values);
    let percentile = |p| statistics::reported_percentile(&values, p);
    Figures {
        min_ms: values[0],
        p50_ms: statistics::percentile(&values, 0.5).unwrap(),
        p50_interval_ms: statistics::median_interval(&values).unwrap(),
        p95_ms: percentile(0.95),
        p95_interval_ms: statistics::percentile_interval(&values, 0.95),
        p99_ms: percentile(0.99),
        p99_interval_ms: statistics::percentile_interval(&values, 0.99),
        p999_ms: percentile(0.999),
        max_ms: values[values.len() - 1],
        mean_ms: statistics::mean(&values).unwrap(),
    }
}

pub(super) fn profile(
    name: &str,
    rtt_ms: f64,
    rates: Option<(f64, f64)>,
    more: &str,
    source: &str,
) -> ProfileFacts {
    ProfileFacts {
        name: name.to_owned(),
        rtt_ms,
        down_mbps: rates.map(|rates| rates.0),
        up_mbps: rates.map(|rates| rates.1),
        more: more.to_owned(),
        source: source.to_owned(),
    }
}

fn setting(seed: u64) -> Record {
    let experiment =
        |name: &str, title: &str| Experiment { name: name.into(), title: title.into() };
    let calibration = |profile: &str, before: bool, p50_us: f64, p99_us: f64| Calibration {
        profile: profile.to_owned(),
        before,
        probes: 300,
        min_us: -4.0,
        p50_us,
        p99_us,
    };
    Record {
        schema: SCHEMA,
        version: "0.1.0".to_owned(),
        command: ["lab", "--seed", &seed.to_string(), "--server-cmd", "my server --port 1"]
            .map(str::to_owned)
            .to_vec(),
        date: "2026-11-21T12:00:00Z".to_owned(),
        seconds: 131.5,
        seed,
        witness: Witness::Packets,
        machine: MachineFacts {
            kernel: "Linux 6.18.44".to_owned(),
            processor: "AMD EPYC 9B14".to_owned(),
            processors: 2,
            no_counters: Some(
                "this virtual machine has no counters (perf_event_open: ENOENT)".to_owned(),
            ),
        },
        servers: vec![
            ServerFacts {
                name: "firstflight".to_owned(),
                version: "firstflight 0.1.0".to_owned(),
                notes: Vec::new(),
            },
            ServerFacts {
                name: "nginx".to_owned(),
                version: "nginx/1.22.1 <\"Debian\" & co>".to_owned(),
                notes: vec!["no ping-pong".to_owned()],
            },
        ],
        link: Some(LinkFacts {
            backend: "packet rings".to_owned(),
            congestion_control: "cubic".to_owned(),
            initial_window: 10,
            packets: 329_885,
            lateness_p50_us: 21.4,
            lateness_p99_us: 93.1,
            lateness_max_us: 812.9,
            own_lateness_p99_us: Some(48.0),
            waited_ms: Some(31.2),
            stolen_ms: Some(10.0),
            refused_settings: vec!["net.ipv4.tcp_no_metrics_save".to_owned()],
            keep_awake: true,
            calibrations: vec![
                calibration("200 ms", true, 118.0, 402.0),
                calibration("200 ms", false, 121.0, 398.0),
                calibration("20 ms", true, 74.0, 166.0),
                calibration("20 ms", false, 71.0, 171.0),
                calibration("2 ms", true, 26.0, 83.0),
                calibration("2 ms", false, 27.0, 84.0),
            ],
        }),
        profiles: vec![
            profile("200 ms", 200.0, None, "", ""),
            profile("20 ms", 20.0, None, "", ""),
            profile("cable", 28.0, Some((5.0, 1.0)), "", "WebPageTest Cable"),
            profile("geo", 600.0, Some((100.0, 10.0)), "queue 64 KiB each way", "APNIC"),
        ],
        experiments: vec![
            experiment("ping-pong", "The ping-pong matrix"),
            experiment("get", "HTTP GET of 1 KiB"),
            experiment("curl", "curl's bars"),
            experiment("blueprint", "The blueprint's percentiles"),
            experiment("matrix", "Chosen by hand"),
            experiment("third-party", "Another client"),
            experiment("loss", "Lost packets"),
        ],
        captures: vec![Capture {
            file: "captures/firstflight-0-RTT.pcapng".to_owned(),
            what: "firstflight get at 20 ms, TLS 1.3 0-RTT".to_owned(),
            connections: 1,
        }],
        left_out: vec!["ping-pong at nginx: it answers HTTP only".to_owned()],
        ..Record::default()
    }
}
