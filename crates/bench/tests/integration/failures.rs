//! Servers that stall, refuse or disconnect: failures are counted by kind and never hang the run.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::time::Duration;

use firstflight_bench::{
    Arrivals, ErrorKind, Exchange, Limit, LoadConfig, LoadError, LoadHandshake, LoadResult, Model,
};
use firstflight_tls::Trust;

use crate::support::{Behaviour, TestServer, run, start_proxy};

fn closed_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn errors(result: &LoadResult) -> Vec<(ErrorKind, u64)> {
    result.errors.iter().map(|error| (error.kind, error.count)).collect()
}

#[test]
fn a_missing_server_is_an_error_immediately() {
    let server = TestServer::files(|_| {});
    let config = LoadConfig { addresses: vec![server.address, closed_port()], ..server.load(5) };
    let error = run(&config).unwrap_err();
    assert!(matches!(&error, LoadError::WarmUp { address, .. } if *address != server.address));
    assert!(error.to_string().contains("refused"), "{error}");
}

#[test]
fn an_untrusted_certificate_is_an_error_unless_allowed() {
    let server = TestServer::files(|_| {});
    let error = run(&LoadConfig { trust: Trust::System, ..server.load(5) }).unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
    run(&LoadConfig { trust: Trust::Anyone, ..server.load(5) }).unwrap();
}

#[test]
fn an_error_page_is_not_measured() {
    let server = TestServer::files(|_| {});
    let config = LoadConfig { exchange: Exchange::get("localhost", "/no"), ..server.load(5) };
    let error = run(&config).unwrap_err().to_string();
    assert!(error.contains("404"), "{error}");
}

#[test]
fn failures_are_counted_by_kind() {
    let server = TestServer::files(|_| {});
    for (behaviour, kind) in [
        (Behaviour::Reset, ErrorKind::Reset),
        (Behaviour::Alert, ErrorKind::TlsAlert),
        (Behaviour::Truncate, ErrorKind::Truncated),
    ] {
        // The first connection is the warm-up.
        let address =
            start_proxy(&server, move |index| if index < 2 { Behaviour::Pass } else { behaviour });
        let config = LoadConfig { addresses: vec![address], ..server.load(7) };
        let result = run(&config).unwrap();
        assert_eq!((result.completed, errors(&result)), (1, vec![(kind, 6)]), "{result:?}");
        assert!(!result.errors[0].example.is_empty());
    }
}

#[test]
fn a_server_that_stalls_runs_into_the_timeout() {
    let server = TestServer::files(|_| {});
    let address =
        start_proxy(&server, |index| if index == 0 { Behaviour::Pass } else { Behaviour::Stall });
    let config = LoadConfig {
        addresses: vec![address],
        timeout: Duration::from_millis(400),
        ..server.load(4)
    };
    // The warm-up has the same timeout, and may fail on a busy machine.
    match run(&config) {
        Ok(result) => {
            assert_eq!((result.completed, errors(&result)), (0, vec![(ErrorKind::Timeout, 4)]));
            assert!(result.warnings[0].contains("timed out"), "{:?}", result.warnings);
        }
        Err(error) => assert!(error.to_string().contains("in time"), "{error}"),
    }
}

#[test]
fn a_connection_whose_syn_was_dropped_completes() {
    let server = TestServer::files(|_| {});
    let listener =
        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    listener.listen(1).unwrap();
    let listener = TcpListener::from(listener);
    let address = listener.local_addr().unwrap();
    // Two connections fill the queue. The kernel drops further SYNs until these are accepted, so the
    // client's first flight waits for the retransmitted SYN.
    let idle = [TcpStream::connect(address).unwrap(), TcpStream::connect(address).unwrap()];
    crate::support::start_proxy_on(listener, &server, Duration::from_millis(300), |_| {
        Behaviour::Pass
    });
    let result = run(&LoadConfig { addresses: vec![address], ..server.load(2) }).unwrap();
    assert_eq!((result.completed, result.failed()), (2, 0));
    drop(idle);
}

#[test]
fn a_missing_core_is_named_in_the_error() {
    let server = TestServer::files(|_| {});
    let error = run(&LoadConfig { cores: vec![100_000], ..server.load(1) }).unwrap_err();
    assert!(error.to_string().contains("100000"), "{error}");
    let allowed = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).unwrap();
    let core = (0..nix::sched::CpuSet::count()).find(|core| allowed.is_set(*core).unwrap());
    run(&LoadConfig { cores: vec![core.unwrap()], ..server.load(1) }).unwrap();
}

#[test]
fn an_open_loop_does_not_hide_a_stall() {
    let server = TestServer::files(|_| {});
    let stall = Duration::from_millis(500);
    let address =
        start_proxy(
            &server,
            move |index| if index == 1 { Behaviour::Delay(stall) } else { Behaviour::Pass },
        );
    let config = LoadConfig {
        addresses: vec![address],
        model: Model::Open {
            rate: 100.0,
            arrivals: Arrivals::Constant,
            seed: 1,
            in_flight: 1,
            backlog: 100,
        },
        ..server.load(20)
    };
    let result = run(&config).unwrap();
    assert_eq!((result.completed, result.not_started), (20, 0));
    // The last one was due at 190 ms and could not start before 500 ms: all waited, although the
    // server stalled only one.
    let total = result.total.unwrap();
    assert!(total.min_ms >= 300.0 && total.max_ms >= 490.0, "{total:?}");
    assert!(result.lateness.unwrap().max_ms >= 300.0);
}

#[test]
fn connections_that_could_not_start_are_counted() {
    let server = TestServer::files(|_| {});
    let address =
        start_proxy(&server, |index| if index == 0 { Behaviour::Pass } else { Behaviour::Stall });
    let config = LoadConfig {
        addresses: vec![address],
        model: Model::Open {
            rate: 1000.0,
            arrivals: Arrivals::Poisson,
            seed: 1,
            in_flight: 2,
            backlog: 5,
        },
        timeout: Duration::from_secs(2),
        ..server.load(50)
    };
    // Both in flight time out, and so may some that waited. The others never start.
    let result = run(&config).unwrap();
    assert_eq!(result.started + result.not_started, 50, "{result:?}");
    assert!(result.not_started >= 43, "{result:?}");
    assert_eq!(errors(&result), [(ErrorKind::Timeout, result.started)]);
}

#[test]
fn a_stopped_run_has_a_result_that_says_so() {
    let server = TestServer::files(|_| {});
    let config = LoadConfig {
        kind: LoadHandshake::ZeroRtt,
        limit: Limit::Time(Duration::from_secs(600)),
        ..server.load(1)
    };
    let mut reports = Vec::new();
    let result = firstflight_bench::run(&config, |progress| {
        reports.push(progress.clone());
        match progress.completed {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    })
    .unwrap();
    let last = reports.last().unwrap();
    assert!(last.completed > 0 && last.rate > 0.0 && last.p50_ms.is_some(), "{last:?}");
    assert!(result.stopped && result.completed >= last.completed);
    assert!(result.seconds > 0.0 && result.seconds < 600.0, "{}", result.seconds);
}
