//! Handshakes by kind, and the tickets that they need.

use firstflight_bench::{
    ErrorKind, Exchange, Handshakes, LoadConfig, LoadError, LoadHandshake, Model,
};
use firstflight_tls::{CipherPolicy, Trust, Version};

use crate::support::{Behaviour, TestServer, run, start_proxy};

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
            ..server.load(41)
        };
        let result = run(&config).unwrap();
        assert_eq!(result.handshakes, handshakes);
        assert_eq!((result.started, result.completed, result.as_requested), (41, 41, 41));
        assert_eq!((result.errors.len(), result.without_ticket), (0, 0), "{result:?}");
        assert_eq!(result.negotiated, [("TLSv1.3 X25519".to_owned(), 41)]);
        assert_eq!(result.model, "closed");
        assert!(result.response_bytes > 41_000, "{}", result.response_bytes);
        assert!(result.client_us.unwrap() > 0.0 && result.server_us.unwrap() > 0.0);
        let latencies = [&result.setup, &result.first_byte, &result.total];
        let [setup, first_byte, total] = latencies.map(|latency| latency.as_ref().unwrap());
        assert!(setup.min_ms <= first_byte.min_ms && first_byte.min_ms <= total.min_ms);
        assert!(total.count == 41 && total.p95_ms.is_none());
        // An unoptimised client is busy all the time.
        let others = result.warnings.iter().filter(|warning| !warning.contains("busy"));
        assert_eq!(others.count(), 0, "{:?}", result.warnings);
    }
}

#[test]
fn older_versions_resume_one_session_many_times() {
    let server = TestServer::files(|_| {});
    let config =
        LoadConfig { version: Version::Tls12, kind: LoadHandshake::Resumed, ..server.load(20) };
    let result = run(&config).unwrap();
    assert_eq!(result.handshakes, Handshakes { resumed: 20, ..Handshakes::default() });
    assert!(result.negotiated[0].0.starts_with("TLSv1.2 "), "{:?}", result.negotiated);
    assert_eq!(result.warm_up, 1);
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
        fast_open: true,
        ..servers[0].load(30)
    };
    let result = run(&config).unwrap();
    // Neither server accepts a ticket of the other.
    assert_eq!(result.handshakes, Handshakes { early_accepted: 30, ..Handshakes::default() });
    assert_eq!((result.model.as_str(), result.response_bytes), ("open", 120));
    assert!(result.lateness.is_some() && result.fast_open.is_some());
}

#[test]
fn refused_early_data_is_counted_as_refused() {
    // A register without capacity accepts no early data.
    let server = TestServer::files(|config| config.early_data.register_capacity = 0);
    let config = LoadConfig { kind: LoadHandshake::ZeroRtt, ..server.load(12) };
    let result = run(&config).unwrap();
    assert_eq!(result.handshakes, Handshakes { early_refused: 12, ..Handshakes::default() });
    assert_eq!((result.completed, result.as_requested, result.total.as_ref()), (12, 0, None));
    assert!(result.warnings[0].contains("12 of 12"), "{:?}", result.warnings);
}

#[test]
fn a_server_without_usable_tickets_is_reported() {
    let no_tickets = TestServer::files(|config| config.tls.tickets = 0);
    let config = LoadConfig { kind: LoadHandshake::Resumed, ..no_tickets.load(5) };
    let error = run(&config).unwrap_err();
    assert!(matches!(error, LoadError::NoTickets { what: "tickets", .. }), "{error}");

    let no_early = TestServer::files(|config| config.early_data.enabled = false);
    let config = LoadConfig { kind: LoadHandshake::ZeroRtt, ..no_early.load(5) };
    let error = run(&config).unwrap_err().to_string();
    assert!(error.contains("tickets that allow early data"), "{error}");
}

#[test]
fn without_a_ticket_a_full_handshake_fetches_some_and_is_not_measured() {
    let server = TestServer::files(|config| config.tls.tickets = 1);
    // The six connections of the warm-up get six tickets. The next eight connections are reset.
    let address = start_proxy(&server, |index| match index {
        6..14 => Behaviour::Reset,
        _ => Behaviour::Pass,
    });
    let config =
        LoadConfig { addresses: vec![address], kind: LoadHandshake::Resumed, ..server.load(20) };
    let result = run(&config).unwrap();
    assert_eq!(result.warm_up, 6);
    assert!(result.without_ticket > 0 && result.refills > 0, "{result:?}");
    assert_eq!(result.handshakes.full, 0);
    // A reset may also hit a connection that fetches tickets.
    let resets = result.errors.iter().find(|error| error.kind == ErrorKind::Reset).unwrap().count;
    assert_eq!((resets, result.failed()), (8, 8), "{result:?}");
    assert!(result.warnings.iter().any(|warning| warning.contains("no ticket was left")));
}
