//! Servers that stall, refuse or break off: counted by kind, and never a hang.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::time::Duration;

use firstflight_bench::{
    Arrivals, ErrorKind, Exchange, Kind, Limit, LoadConfig, LoadError, LoadResult, Model,
};
use firstflight_tls::Trust;

use crate::support::{Deed, Rig, front, run};

fn closed_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn errors(result: &LoadResult) -> Vec<(ErrorKind, u64)> {
    result.errors.iter().map(|error| (error.kind, error.count)).collect()
}

#[test]
fn a_server_that_is_not_there_is_an_error_at_once() {
    let server = Rig::files(|_| {});
    let config = LoadConfig { addresses: vec![server.address, closed_port()], ..server.load(5) };
    let error = run(&config).unwrap_err();
    assert!(matches!(&error, LoadError::WarmUp { address, .. } if *address != server.address));
    assert!(error.to_string().contains("refused"), "{error}");
}

#[test]
fn a_certificate_that_nobody_vouches_for_is_an_error_unless_told_otherwise() {
    let server = Rig::files(|_| {});
    let error = run(&LoadConfig { trust: Trust::System, ..server.load(5) }).unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
    run(&LoadConfig { trust: Trust::Anyone, ..server.load(5) }).unwrap();
}

#[test]
fn an_error_page_is_no_answer_to_measure() {
    let server = Rig::files(|_| {});
    let config = LoadConfig { exchange: Exchange::get("localhost", "/no"), ..server.load(5) };
    let error = run(&config).unwrap_err().to_string();
    assert!(error.contains("404"), "{error}");
}

#[test]
fn failures_are_counted_by_their_kind() {
    let server = Rig::files(|_| {});
    for (deed, kind) in [
        (Deed::Reset, ErrorKind::Reset),
        (Deed::Alert, ErrorKind::TlsAlert),
        (Deed::Cut, ErrorKind::Truncated),
    ] {
        // The first one is the warm-up's.
        let address = front(&server, move |index| if index < 2 { Deed::Pass } else { deed });
        let config = LoadConfig { addresses: vec![address], ..server.load(7) };
        let result = run(&config).unwrap();
        assert_eq!((result.completed, errors(&result)), (1, vec![(kind, 6)]), "{result:?}");
        assert!(!result.errors[0].example.is_empty());
    }
}

#[test]
fn a_server_that_stalls_runs_into_the_timeout() {
    let server = Rig::files(|_| {});
    let address = front(&server, |index| if index == 0 { Deed::Pass } else { Deed::Stall });
    let config = LoadConfig {
        addresses: vec![address],
        timeout: Duration::from_millis(400),
        ..server.load(4)
    };
    // The warm-up has that time too; on a machine that is too busy for it, it says so.
    match run(&config) {
        Ok(result) => {
            assert_eq!((result.completed, errors(&result)), (0, vec![(ErrorKind::Timeout, 4)]));
            assert!(result.warnings[0].contains("timeout"), "{:?}", result.warnings);
        }
        Err(error) => assert!(error.to_string().contains("in time"), "{error}"),
    }
}

#[test]
fn a_connection_that_comes_about_late_is_waited_for() {
    let server = Rig::files(|_| {});
    let listener =
        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    listener.listen(1).unwrap();
    let listener = TcpListener::from(listener);
    let address = listener.local_addr().unwrap();
    // Two fill the queue: the kernel drops further SYNs until they are accepted, and the client's
    // first flight has to wait for the SYN that is sent again.
    let idle = [TcpStream::connect(address).unwrap(), TcpStream::connect(address).unwrap()];
    crate::support::front_at(listener, &server, Duration::from_millis(300), |_| Deed::Pass);
    let result = run(&LoadConfig { addresses: vec![address], ..server.load(2) }).unwrap();
    assert_eq!((result.completed, result.failed()), (2, 0));
    drop(idle);
}

#[test]
fn cores_that_are_not_there_are_named() {
    let server = Rig::files(|_| {});
    let error = run(&LoadConfig { cores: vec![100_000], ..server.load(1) }).unwrap_err();
    assert!(error.to_string().contains("100000"), "{error}");
    let allowed = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).unwrap();
    let core = (0..nix::sched::CpuSet::count()).find(|core| allowed.is_set(*core).unwrap());
    run(&LoadConfig { cores: vec![core.unwrap()], ..server.load(1) }).unwrap();
}

#[test]
fn an_open_loop_does_not_hide_a_stall() {
    let server = Rig::files(|_| {});
    let stall = Duration::from_millis(500);
    let address =
        front(&server, move |index| if index == 1 { Deed::Late(stall) } else { Deed::Pass });
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
    assert_eq!((result.completed, result.not_begun), (20, 0));
    // The last was due at 190 ms and could not start before 500: all of them waited, though the
    // server stalled a single one.
    let total = result.total.unwrap();
    assert!(total.min_ms >= 300.0 && total.max_ms >= 490.0, "{total:?}");
    assert!(result.lateness.unwrap().max_ms >= 300.0);
}

#[test]
fn what_could_not_be_begun_is_counted() {
    let server = Rig::files(|_| {});
    let address = front(&server, |index| if index == 0 { Deed::Pass } else { Deed::Stall });
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
    // Both in flight time out, and so may some of those that waited; the rest never started.
    let result = run(&config).unwrap();
    assert_eq!(result.begun + result.not_begun, 50, "{result:?}");
    assert!(result.not_begun >= 43, "{result:?}");
    assert_eq!(errors(&result), [(ErrorKind::Timeout, result.begun)]);
}

#[test]
fn a_run_can_be_stopped_and_says_so() {
    let server = Rig::files(|_| {});
    let config = LoadConfig {
        kind: Kind::ZeroRtt,
        limit: Limit::Time(Duration::from_secs(600)),
        ..server.load(1)
    };
    let mut heard = Vec::new();
    let result = firstflight_bench::run(&config, |progress| {
        heard.push(progress.clone());
        match progress.completed {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    })
    .unwrap();
    let last = heard.last().unwrap();
    assert!(last.completed > 0 && last.rate > 0.0 && last.p50_ms.is_some(), "{last:?}");
    assert!(result.stopped && result.completed >= last.completed);
    assert!(result.seconds > 0.0 && result.seconds < 600.0, "{}", result.seconds);
}
