//! What handshakes were, by the TLS state, and the tickets that make them.

use firstflight_bench::{ErrorKind, Exchange, Handshakes, Kind, LoadConfig, LoadError, Model};
use firstflight_tls::{CipherPolicy, Trust, Version};

use crate::support::{Deed, Rig, front, run};

#[test]
fn each_kind_is_what_was_asked_and_counted_as_such() {
    let server = Rig::files(|_| {});
    for (kind, handshakes) in [
        (Kind::Full, Handshakes { full: 41, ..Handshakes::default() }),
        (Kind::Resumed, Handshakes { resumed: 41, ..Handshakes::default() }),
        (Kind::ZeroRtt, Handshakes { early_accepted: 41, ..Handshakes::default() }),
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
        assert_eq!((result.begun, result.completed, result.as_asked), (41, 41, 41));
        assert_eq!((result.errors.len(), result.without_ticket), (0, 0), "{result:?}");
        assert_eq!(result.negotiated, [("TLSv1.3 X25519".to_owned(), 41)]);
        assert_eq!(result.model, "closed");
        assert!(result.answer_bytes > 41_000, "{}", result.answer_bytes);
        assert!(result.client_us.unwrap() > 0.0 && result.server_us.unwrap() > 0.0);
        let latencies = [&result.setup, &result.first_byte, &result.total];
        let [setup, first_byte, total] = latencies.map(|latency| latency.as_ref().unwrap());
        assert!(setup.min_ms <= first_byte.min_ms && first_byte.min_ms <= total.min_ms);
        assert!(total.count == 41 && total.p95_ms.is_none());
        assert!(result.warnings.is_empty(), "{:?}", result.warnings);
    }
}

#[test]
fn older_versions_resume_one_session_again_and_again() {
    let server = Rig::files(|_| {});
    let config = LoadConfig { version: Version::Tls12, kind: Kind::Resumed, ..server.load(20) };
    let result = run(&config).unwrap();
    assert_eq!(result.handshakes, Handshakes { resumed: 20, ..Handshakes::default() });
    assert!(result.negotiated[0].0.starts_with("TLSv1.2 "), "{:?}", result.negotiated);
    assert_eq!(result.warm_up, 1);
}

#[test]
fn pings_run_as_early_data_over_several_addresses() {
    let servers = [Rig::ping_pong(), Rig::ping_pong()];
    let config = LoadConfig {
        addresses: servers.iter().map(|server| server.address).collect(),
        exchange: Exchange::PingPong,
        kind: Kind::ZeroRtt,
        // Two certificates.
        trust: Trust::Anyone,
        model: Model::open(400.0),
        fast_open: true,
        ..servers[0].load(30)
    };
    let result = run(&config).unwrap();
    // A ticket of the one is worth nothing to the other.
    assert_eq!(result.handshakes, Handshakes { early_accepted: 30, ..Handshakes::default() });
    assert_eq!((result.model.as_str(), result.answer_bytes), ("open", 120));
    assert!(result.lateness.is_some() && result.fast_open.is_some());
}

#[test]
fn refused_early_data_is_counted_and_never_passed_off() {
    // A register without room accepts nothing.
    let server = Rig::files(|config| config.early_data.register_capacity = 0);
    let config = LoadConfig { kind: Kind::ZeroRtt, ..server.load(12) };
    let result = run(&config).unwrap();
    assert_eq!(result.handshakes, Handshakes { early_refused: 12, ..Handshakes::default() });
    assert_eq!((result.completed, result.as_asked, result.total.as_ref()), (12, 0, None));
    assert!(result.warnings[0].contains("12 of 12"), "{:?}", result.warnings);
}

#[test]
fn a_server_without_what_a_kind_needs_is_named() {
    let no_tickets = Rig::files(|config| config.tls.tickets = 0);
    let config = LoadConfig { kind: Kind::Resumed, ..no_tickets.load(5) };
    let error = run(&config).unwrap_err();
    assert!(matches!(error, LoadError::NoTickets { what: "tickets", .. }), "{error}");

    let no_early = Rig::files(|config| config.early_data.enabled = false);
    let config = LoadConfig { kind: Kind::ZeroRtt, ..no_early.load(5) };
    let error = run(&config).unwrap_err().to_string();
    assert!(error.contains("tickets that allow early data"), "{error}");
}

#[test]
fn where_tickets_run_short_full_handshakes_fetch_some_and_are_not_measured() {
    let server = Rig::files(|config| config.tls.tickets = 1);
    // The warm-up's six connections bring six tickets; then eight are lost with their connection.
    let address = front(&server, |index| match index {
        6..14 => Deed::Reset,
        _ => Deed::Pass,
    });
    let config = LoadConfig { addresses: vec![address], kind: Kind::Resumed, ..server.load(20) };
    let result = run(&config).unwrap();
    assert_eq!(result.warm_up, 6);
    assert!(result.without_ticket > 0 && result.refills > 0, "{result:?}");
    assert_eq!(result.handshakes.full, 0);
    // A reset may also have hit a connection for tickets.
    let resets = result.errors.iter().find(|error| error.kind == ErrorKind::Reset).unwrap().count;
    assert_eq!((resets, result.failed()), (8, 8), "{result:?}");
    assert!(result.warnings.iter().any(|warning| warning.contains("ran short")));
}
