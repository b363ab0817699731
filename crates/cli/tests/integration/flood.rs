//! Forged Initial packets beside honest clients: memory stays bounded, and the honest are served.
//! `scripts/flood` has the same longer, as fast as it goes, and in figures.

use std::fs;
use std::time::Duration;

use firstflight_bench::{
    Exchange, FloodConfig, FloodPhase, FloodTrial, Forgery, LoadConfig, LoadHandshake, Model,
    Transport,
};
use firstflight_tls::Trust;

use crate::running::{Serve, site};

/// Forged connections a second.
const FORGED: f64 = 1000.0;

/// How many handshakes the server lets be in progress before it asks for a Retry.
const RETRY_ABOVE: usize = 100;

/// What the server may take for them. Each handshake costs it some 35 KiB, and what forged packets
/// leave behind in the allocator as much again; all of them together would be twice this and more.
const MEMORY_KIB: u64 = 32 * 1024;

#[test]
fn forged_initial_packets_neither_fill_the_memory_nor_shut_the_honest_out() {
    let dir = site();
    let config = dir.path().join("config.toml");
    fs::write(&config, format!("[http3]\nretry_above = {RETRY_ABOVE}\n")).unwrap();
    let config = ["--config", config.to_str().unwrap(), "--workers", "1"];
    let server = Serve::files(dir.path(), &config);
    let trial = FloodTrial {
        flood: FloodConfig {
            target: server.address,
            host: "localhost".to_owned(),
            forgeries: Forgery::ALL.to_vec(),
            rate: Some(FORGED),
            seed: 1,
        },
        honest: LoadConfig {
            transport: Transport::Quic,
            exchange: Exchange::get(&server.address.to_string(), "/"),
            trust: Trust::File(server.cert.clone()),
            model: Model::open(20.0),
            // Long enough never to matter on a loaded machine.
            timeout: Duration::from_secs(60),
            ..LoadConfig::new(vec![server.address], "localhost")
        },
        kinds: vec![LoadHandshake::Full, LoadHandshake::ZeroRtt],
        server_pid: server.pid(),
        phase: Duration::from_secs(2),
    };
    let phases = trial.run().unwrap();
    let [before, during, after] = phases.as_slice() else { panic!("{phases:?}") };
    for phase in &phases {
        let (due, completed) = phase.honest_connections();
        assert!(phase.starved.is_empty(), "{phase:?}");
        assert!(due > 0 && completed == due, "{completed} of {due}: {phase:?}");
    }
    let flood = during.flood.as_ref().unwrap();
    assert!(flood.forged > 0 && flood.retries > 0, "{flood:?}");
    // RFC 9000 section 8.1: an address that has not answered gets three times what came from it.
    assert!(flood.bytes_received <= 3 * flood.bytes_sent, "{flood:?}");
    let most = |phase: &FloodPhase| phase.resident_max_kib;
    let grown = most(during).max(most(after)).saturating_sub(most(before));
    assert!(grown < MEMORY_KIB, "{grown} KiB: {flood:?}");
    server.stop();
}
