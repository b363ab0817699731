//! The console with a simulated server, for pictures and to try its design:
//!
//! ```text
//! cargo run -p firstflight-admin --example scenes -- quiet 127.0.0.1:9091
//! ```
//!
//! Scenes: `quiet`, `busy`, `replay` (busy, and somebody replays flights), `store` (busy, and the store
//! becomes unreachable after three minutes). All figures are invented.

use std::env;
use std::time::Duration;

use firstflight_admin::{Admin, Certificate, Moment, Reload};
use firstflight_config::{AdminAddress, AdminSettings};
use firstflight_telemetry::metrics::{
    ClaimTimes, Early, HandshakeKind, HeldReason, HoldEnd, Method, Protocol, RefusedReason, Status,
    StoreReading, TlsVersion, TooEarlyBy, Transport, UpstreamReading, UpstreamServerReading,
};
use scene::Scene;

#[path = "../tests/integration/scene.rs"]
mod scene;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut arguments = env::args().skip(1);
    let name = arguments.next().unwrap_or("busy".to_owned());
    let address = arguments.next().unwrap_or("127.0.0.1:9090".to_owned());
    let address = address.parse().expect("an address such as 127.0.0.1:9090");
    let scene = Scene::quiet();
    prepare(&scene, name == "store");
    let settings = AdminSettings::new(AdminAddress::Tcp(address));
    let admin = Admin::bind(settings, scene.clone()).await.expect("a free address");
    println!("http://{}/", admin.name());
    tokio::spawn(play(scene, name));
    admin.run(std::future::pending()).await;
}

/// Adds certificates, and with a store also an upstream.
fn prepare(scene: &Scene, store: bool) {
    let now = Moment::now().0;
    let certificate = |site: &str, days: i64| Certificate {
        site: site.to_owned(),
        source: "acme".to_owned(),
        expires_at: Some(Moment(now + days * 86_400)),
        next_try_at: Some(Moment(now + (days - 30) * 86_400)),
        ..Certificate::default()
    };
    let files = Certificate {
        source: "files".to_owned(),
        ..certificate("shop.example.test", if store { 6 } else { 24 })
    };
    let certificates = vec![certificate("www.example.test", 61), files];
    scene.state(|state| state.certificates = certificates);
    scene.readings(|readings| {
        if store {
            readings.store = Some(StoreReading {
                connections: 2,
                claim_times: ClaimTimes {
                    bounds: vec![0.0001, 0.0002, 0.0005, 0.001, 0.003],
                    buckets: vec![0; 6],
                    sum: 0.0,
                },
                ..StoreReading::default()
            });
            readings.filter = scene::filled(0);
            let server = |address: &str| UpstreamServerReading {
                address: address.to_owned(),
                healthy: true,
                ..UpstreamServerReading::default()
            };
            let servers = vec![server("http://10.0.0.11:8080"), server("http://10.0.0.12:8080")];
            readings.upstreams = vec![UpstreamReading {
                name: "app".to_owned(),
                servers,
                ..UpstreamReading::default()
            }];
        }
    });
}

/// Plays a scene. Never returns.
async fn play(scene: Scene, name: String) {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    for tick in 0_u64.. {
        ticks.tick().await;
        if name == "quiet" {
            continue;
        }
        // Varies over one or two minutes.
        let wave = 1.0 + 0.4 * (tick as f64 / 210.0).sin() + 0.15 * (tick as f64 / 47.0).sin();
        let store_down = name == "store" && tick > 1_800;
        if name == "store" {
            store(&scene, store_down, wave);
        }
        for _ in 0..random.around(9.0 * wave) {
            connection(&scene, &mut random, store_down);
        }
        let attack = name == "replay" && tick > 1_500;
        if attack && random.below(100) < 35 {
            replay(&scene, &mut random, tick);
        }
        if name == "replay" && tick == 600 {
            let error = "firstflight.toml, line 14: unknown mode \"permisive\"".to_owned();
            let at = Moment::now();
            scene.state(|state| {
                state.server.last_reload = Some(Reload { at, error: Some(error) });
            });
        }
    }
}

fn connection(scene: &Scene, random: &mut Random, store_down: bool) {
    let metrics = scene.metrics();
    let transport = if random.below(10) < 4 { Transport::Quic } else { Transport::Tcp };
    metrics.connections.accepted.count(transport);
    let offers = random.below(100) < 68;
    let kind = match (offers, random.below(100)) {
        (true, _) => HandshakeKind::Early,
        (false, ..30) => HandshakeKind::Resumed,
        _ => HandshakeKind::Full,
    };
    let kind = if offers { offer(scene, random, transport, store_down) } else { kind };
    let path = 0.012 * (1.0 + random.below(400) as f64 / 60.0) * (1.0 + random.heavy());
    let trips = match (kind, transport) {
        (HandshakeKind::Early, _) => 0.08,
        (_, Transport::Quic) => 1.0,
        (HandshakeKind::Resumed, _) => 1.0,
        (HandshakeKind::Full, _) => 1.05,
    };
    let version = if random.below(30) == 0 && transport == Transport::Tcp {
        TlsVersion::Tls12
    } else {
        TlsVersion::Tls13
    };
    metrics.handshakes.seconds.observe((version, kind, transport), path);
    metrics.handshakes.first_response.observe((kind, transport), path * trips + 0.002);
    requests(scene, random, kind, transport);
}

/// Counts a connection that offers early data. Returns the kind of its handshake.
fn offer(
    scene: &Scene,
    random: &mut Random,
    transport: Transport,
    store_down: bool,
) -> HandshakeKind {
    let early = &scene.metrics().early_data;
    early.offered.count(transport);
    let reason = match random.below(1000) {
        _ if store_down => RefusedReason::StoreDown,
        ..14 => RefusedReason::SessionNotResumed,
        14..22 => RefusedReason::Age,
        22..26 => RefusedReason::TicketAgeSkew,
        26..29 => RefusedReason::Zone,
        29..30 => RefusedReason::AlpnMismatch,
        _ => {
            early.accepted.count(transport);
            scene.readings(|readings| {
                match &mut readings.store {
                    Some(store) => {
                        store.won += 1;
                        store.claim_times.buckets[[0, 1, 1, 2, 2, 3][random.below(6) as usize]] +=
                            1;
                        readings.filter.records = (readings.filter.records + 1).min(6_200);
                    }
                    None => readings.register.records = (readings.register.records + 1).min(6_200),
                };
            });
            return HandshakeKind::Early;
        }
    };
    early.refused.count((transport, reason));
    match reason {
        RefusedReason::SessionNotResumed => HandshakeKind::Full,
        _ => HandshakeKind::Resumed,
    }
}

fn requests(scene: &Scene, random: &mut Random, kind: HandshakeKind, transport: Transport) {
    let metrics = scene.metrics();
    let protocol = match transport {
        Transport::Quic => Protocol::Http3,
        Transport::Tcp => Protocol::Http2,
    };
    for number in 0..1 + random.around(2.2) {
        let early = match (kind, number, random.below(100)) {
            (HandshakeKind::Early, 0, ..92) => Early::Ran,
            (HandshakeKind::Early, 0, _) => Early::Held,
            _ => Early::No,
        };
        if early == Early::Held {
            metrics.early_data.held.count(HeldReason::Policy);
            metrics.early_data.hold_seconds.observe(HoldEnd::Handshake, 0.04);
        }
        let status = if random.below(60) == 0 { Status::Client } else { Status::Success };
        metrics.requests.ended.count((protocol, Method::Get, status, early));
        scene.readings(|readings| {
            if let Some(pool) = readings.upstreams.first_mut() {
                let at = random.below(2) as usize;
                pool.servers[at].requests += 1;
            }
        });
    }
    let change = random.below(100);
    match change {
        ..50 => metrics.connections.active.increment(transport),
        _ if active_connections(scene, transport) > 40.0 => {
            metrics.connections.active.decrement(transport)
        }
        _ => {}
    }
}

fn active_connections(scene: &Scene, transport: Transport) -> f64 {
    use firstflight_admin::Source;
    let snapshot = Source::metrics(scene);
    snapshot.sum("firstflight_connections_active", &[("transport", transport.name())])
}

fn replay(scene: &Scene, random: &mut Random, tick: u64) {
    let early = &scene.metrics().early_data;
    let transport = if random.below(3) == 0 { Transport::Quic } else { Transport::Tcp };
    let copies = 1 + random.below(6);
    for _ in 0..copies {
        early.offered.count(transport);
        early.refused.count((transport, RefusedReason::Replayed));
    }
    if tick.is_multiple_of(40) {
        early.too_early.count(TooEarlyBy::Server);
    }
    let networks: &[&str] = match random.below(3) {
        0 => &["198.51.100.0/24"],
        1 => &["203.0.113.0/24", "198.51.100.0/24"],
        _ => &["2001:db8:77::/48"],
    };
    scene.replayed(networks, transport.name(), copies, random.below(12) == 0);
}

fn store(scene: &Scene, store_down: bool, wave: f64) {
    let reason = store_down.then_some(RefusedReason::StoreDown);
    scene.state(|state| {
        state.early_data.closed_because = reason.map(|reason| reason.name().to_owned());
    });
    scene.readings(|readings| {
        readings.early_data_open = !store_down;
        if let Some(store) = &mut readings.store {
            store.unavailable = reason;
        }
        if let Some(pool) = readings.upstreams.first_mut() {
            pool.servers[1].healthy = !store_down;
            pool.servers[1].failures[0] += u64::from(store_down && wave > 1.3);
        }
    });
}

/// Pseudorandom numbers, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn around(&mut self, mean: f64) -> u64 {
        (mean * (0.5 + self.below(1000) as f64 / 1000.0)) as u64
    }

    /// Heavy-tailed.
    fn heavy(&mut self) -> f64 {
        1.0 / (0.02 + self.below(1000) as f64 / 1000.0) / 12.0
    }
}
