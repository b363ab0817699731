//! The load of honest clients.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use firstflight_bench::{Limit, LoadConfig, LoadHandshake, LoadResult, Model, Transport};
use firstflight_tls::Trust;

use crate::Plan;
use crate::operator::POLL_INTERVAL;

/// Loads that run until they are stopped.
pub(crate) struct Loads {
    stop: Arc<AtomicBool>,
    running: Vec<JoinHandle<LoadResult>>,
}

/// Kinds of connections, with their percentage.
const MIX: [(Transport, LoadHandshake, f64); 6] = [
    (Transport::Tcp, LoadHandshake::Full, 10.0),
    (Transport::Tcp, LoadHandshake::Resumed, 20.0),
    (Transport::Tcp, LoadHandshake::ZeroRtt, 35.0),
    (Transport::Quic, LoadHandshake::Full, 5.0),
    (Transport::Quic, LoadHandshake::Resumed, 10.0),
    (Transport::Quic, LoadHandshake::ZeroRtt, 15.0),
];

/// Percentage of connections through the attacker, over TCP.
const ATTACKED_PERCENT: f64 = 5.0;

impl Loads {
    /// Starts the loads at the rate of the plan, some of them through the attacker.
    pub(crate) fn start(plan: &Plan, server: SocketAddr, attacker: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let attacked = (Transport::Tcp, LoadHandshake::ZeroRtt, ATTACKED_PERCENT, attacker);
        let all = MIX.map(|(transport, kind, share)| (transport, kind, share, server));
        let running = all.into_iter().chain([attacked]).map(|(transport, kind, share, address)| {
            let config = LoadConfig {
                transport,
                kind,
                model: Model::open(plan.rate * share / 100.0),
                limit: Limit::Time(Duration::from_secs(3600)),
                timeout: Duration::from_secs(30),
                ..config(address)
            };
            let stop = stop.clone();
            thread::spawn(move || run(&config, &stop))
        });
        let running = running.collect();
        Self { stop, running }
    }

    /// Stops the loads, and waits for open connections.
    pub(crate) fn end(self) -> Vec<LoadResult> {
        self.stop.store(true, Ordering::SeqCst);
        self.running.into_iter().map(|thread| thread.join().unwrap()).collect()
    }
}

fn run(config: &LoadConfig, stop: &AtomicBool) -> LoadResult {
    let result = firstflight_bench::run(config, |_| match stop.load(Ordering::SeqCst) {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    });
    result.unwrap_or_else(|error| panic!("{error}"))
}

fn config(address: SocketAddr) -> LoadConfig {
    LoadConfig { trust: Trust::Anyone, ..LoadConfig::new(vec![address], "localhost") }
}

/// Waits out the start-up window of a server whose keys may be older than itself.
pub(crate) fn until_early_data_is_accepted(server: SocketAddr) {
    for _ in 0..400 {
        let kind = LoadHandshake::ZeroRtt;
        let config = LoadConfig { kind, limit: Limit::Connections(1), ..config(server) };
        let config = LoadConfig { model: Model::Closed { connections: 1 }, ..config };
        if run(&config, &AtomicBool::new(false)).as_requested > 0 {
            return;
        }
        thread::sleep(POLL_INTERVAL);
    }
    panic!("early data is never accepted");
}
