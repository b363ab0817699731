//! What a server sends before it hears from its client again.

use std::sync::Arc;
use std::time::Duration;

use firstflight_quic::Burst;
use quinn_proto::congestion::{ControllerFactory, CubicConfig};
use quinn_proto::{Dir, TransportConfig};

use crate::support::{Admission, Setup};

/// How many bytes a server with much to send sends at once to a client whose address is validated.
fn first_burst(controller: impl ControllerFactory + Send + Sync + 'static, mtu: u16) -> u64 {
    let setup = Setup::default();
    let remembered = setup.remembered();
    let mut pair = setup.pair();
    let mut transport = TransportConfig::default();
    transport.congestion_controller_factory(Arc::new(controller)).initial_mtu(mtu);
    let transport = Arc::new(transport);
    let (crypto, setup) = (pair.crypto.clone(), pair.setup.clone());
    pair.policy = Box::new(move |incoming| {
        if !incoming.remote_address_validated() {
            return Admission::Retry;
        }
        let judged = crypto.for_connection(Box::new(|_| true), None);
        let mut config = (*setup.server_config(judged)).clone();
        config.transport_config(transport.clone());
        Admission::Accept(Arc::new(config))
    });
    let started = pair.start(remembered);
    pair.send(started.client, b"request");
    while pair.accepted.is_empty() {
        assert!(pair.step(Duration::from_secs(1)));
    }
    let server = *pair.accepted.last().unwrap();
    let connection = pair.server(server);
    let stream = connection.streams().open(Dir::Uni).unwrap();
    connection.send_stream(stream).write(&[7; 100_000]).unwrap();
    // No time passes.
    pair.exchange();
    pair.server(server).stats().udp_tx.bytes
}

#[test]
fn rfc9002_7_7_the_first_burst_is_the_initial_window() {
    for mtu in [1200, 1350, 1452] {
        let sent = first_burst(Burst::default(), mtu);
        assert!(sent > 14_720 - 2 * u64::from(mtu), "{sent} bytes at {mtu}");
        assert!(sent < 14_720, "{sent} bytes at {mtu}");
    }
}

#[test]
fn without_burst_the_pacer_sends_ten_of_the_smallest_datagrams() {
    let mut cubic = CubicConfig::default();
    cubic.initial_window(14_720);
    let sent = first_burst(cubic, 1200);
    assert!(sent <= 12_000, "{sent} bytes, so Burst is no longer needed");
}
