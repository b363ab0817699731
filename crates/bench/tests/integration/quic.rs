//! Load over QUIC: handshakes by kind, and servers that are not there or do not respond.

use std::net::UdpSocket;
use std::time::Duration;

use firstflight_bench::{
    Exchange, Handshakes, LoadConfig, LoadError, LoadHandshake, Model, Transport,
};
use firstflight_tls::{CipherPolicy, Trust};

use crate::support::{TestServer, run};

/// A load of this many connections over QUIC.
fn load(server: &TestServer, connections: u64) -> LoadConfig {
    LoadConfig { transport: Transport::Quic, ..server.load(connections) }
}

#[test]
fn each_kind_of_handshake_is_made_and_counted() {
    let server = TestServer::files(|_| {});
    for (kind, handshakes) in [
        (LoadHandshake::Full, Handshakes { full: 41, ..Handshakes::default() }),
        (LoadHandshake::Resumed, Handshakes { resumed: 41, ..Handshakes::default() }),
        (LoadHandshake::ZeroRtt, Handshakes { early_accepted: 41, ..Handshakes::default() }),
    ] {
        let ciphers = CipherPolicy { groups: Some("X25519".into()), ..CipherPolicy::default() };
        let config = LoadConfig {
            kind,
            ciphers,
            threads: 2,
            server_pids: vec![std::process::id()],
            ..load(&server, 41)
        };
        let result = run(&config).unwrap();
        assert_eq!(result.handshakes, handshakes);
        assert_eq!((result.started, result.completed, result.as_requested), (41, 41, 41));
        assert_eq!((result.errors.len(), result.without_ticket), (0, 0), "{result:?}");
        assert_eq!(result.negotiated, [("TLSv1.3 X25519".to_owned(), 41)]);
        assert!(result.response_bytes > 41_000, "{}", result.response_bytes);
        assert!(result.client_us.unwrap() > 0.0 && result.server_us.unwrap() > 0.0);
        // An unoptimised client is busy all the time.
        let others = result.warnings.iter().filter(|warning| !warning.contains("busy"));
        assert_eq!(others.count(), 0, "{:?}", result.warnings);
    }
}

#[test]
fn pings_run_as_early_data_over_several_addresses() {
    let servers = [TestServer::ping_pong(), TestServer::ping_pong()];
    let config = LoadConfig {
        addresses: servers.iter().map(|server| server.address).collect(),
        exchange: Exchange::PingPong,
        kind: LoadHandshake::ZeroRtt,
        // Two certificates.
        trust: Trust::Anyone,
        model: Model::open(400.0),
        ..load(&servers[0], 30)
    };
    let result = run(&config).unwrap();
    // Neither server accepts a ticket of the other.
    assert_eq!(result.handshakes, Handshakes { early_accepted: 30, ..Handshakes::default() });
    assert_eq!((result.model.as_str(), result.response_bytes), ("open", 120));
}

#[test]
fn refused_early_data_is_sent_again_and_counted() {
    // A register without capacity accepts no early data.
    let server = TestServer::files(|config| config.early_data.register_capacity = 0);
    let config = LoadConfig { kind: LoadHandshake::ZeroRtt, ..load(&server, 12) };
    let result = run(&config).unwrap();
    assert_eq!(result.handshakes, Handshakes { early_refused: 12, ..Handshakes::default() });
    assert_eq!((result.completed, result.as_requested, result.total.as_ref()), (12, 0, None));
}

#[test]
fn a_missing_server_is_an_error_immediately() {
    let server = TestServer::files(|_| {});
    let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = LoadConfig { addresses: vec![server.address, closed], ..load(&server, 5) };
    let error = run(&config).unwrap_err();
    assert!(matches!(&error, LoadError::WarmUp { address, .. } if *address == closed), "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
}

#[test]
fn a_silent_server_runs_into_the_timeout() {
    let server = TestServer::files(|_| {});
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let config = LoadConfig {
        addresses: vec![silent.local_addr().unwrap()],
        timeout: Duration::from_millis(200),
        ..load(&server, 4)
    };
    let error = run(&config).unwrap_err().to_string();
    assert!(error.contains("in time"), "{error}");
}

#[test]
fn an_untrusted_certificate_is_an_error_unless_allowed() {
    let server = TestServer::files(|_| {});
    let error = run(&LoadConfig { trust: Trust::System, ..load(&server, 5) }).unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
    run(&LoadConfig { trust: Trust::Anyone, ..load(&server, 5) }).unwrap();
}

#[test]
fn an_error_page_is_not_measured() {
    let server = TestServer::files(|_| {});
    let config = LoadConfig { exchange: Exchange::get("localhost", "/no"), ..load(&server, 5) };
    let error = run(&config).unwrap_err().to_string();
    assert!(error.contains("404"), "{error}");
}

#[test]
fn a_server_without_tickets_is_reported() {
    let server = TestServer::files(|config| config.tls.tickets = 0);
    let config = LoadConfig { kind: LoadHandshake::Resumed, ..load(&server, 5) };
    let error = run(&config).unwrap_err();
    assert!(matches!(error, LoadError::NoTickets { what: "tickets", .. }), "{error}");
}
