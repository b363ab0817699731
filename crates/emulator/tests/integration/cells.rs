//! Cells with real kernels at both ends: rate, loss, MTU, middleboxes, counters, replacement.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use firstflight_emulator::{
    CapturedPacket, CellSpec, DelaySpec, Direction, LossSpec, Middlebox, MtuSpec, Network,
    NetworkConfig, PathConfig, Profile, RateSpec, TooBig,
};
use libtest_mimic::Trial;

use crate::fast_open::{self, REQUEST};
use crate::{Outcome, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_rate_of_10_mbits_is_kept", a_rate_is_kept),
        trial("a_full_queue_is_seen_in_tap_and_counters", a_full_queue_is_seen),
        trial("rfc1191_tcp_learns_a_smaller_mtu", tcp_learns_a_smaller_mtu),
        trial("rfc2923_2_1_a_black_hole_swallows_full_segments", a_black_hole_swallows),
        trial("loss_is_reproducible_with_the_same_seed", loss_is_reproducible),
        trial("middlebox_strip_tfo", strip_tfo),
        trial("middlebox_drop_tfo", drop_tfo),
        trial("middlebox_strip_syn_data", strip_syn_data),
        trial("middlebox_drop_syn_data", drop_syn_data),
        trial("middlebox_drop_large_hello", drop_large_hello),
        trial("middlebox_drop_early_data", drop_early_data),
        trial("cells_change_at_run_time", cells_change_at_run_time),
        trial("every_built_in_network_carries_a_packet", every_network_carries_a_packet),
    ]
}

/// A network of one path with these cells.
fn network(up: Vec<CellSpec>, down: Vec<CellSpec>) -> Network {
    let path = PathConfig { name: "cells".to_owned(), up, down };
    Network::build(NetworkConfig::new(vec![path])).expect("builds")
}

fn delay(ms: u64) -> CellSpec {
    CellSpec::Delay(DelaySpec { delay: Duration::from_millis(ms) })
}

fn a_rate_is_kept() -> Outcome {
    const BYTES: usize = 2_500_000;
    let rate = CellSpec::Rate(RateSpec { mbits: 10.0, queue_bytes: 125_000, burst_bytes: 0 });
    let network = network(vec![rate, delay(5)], vec![delay(5)]);
    let listener = network.server().run(|| TcpListener::bind(("0.0.0.0", PORT)))??;
    let reader = std::thread::spawn(move || -> std::io::Result<()> {
        listener.accept()?.0.read_exact(&mut vec![0; BYTES])
    });
    let server = SocketAddr::from((network.path(0)?.server, PORT));
    network.client().run(|| TcpStream::connect(server)?.write_all(&vec![7; BYTES]))??;
    reader.join().expect("no panic")?;
    // From the wire: the payload delivered over the time from the first full segment to the last.
    let packets = network.tap().take().packets;
    let full: Vec<u64> = packets
        .iter()
        .filter(|packet| packet.direction == Direction::Up && packet.length == 1_514)
        .filter_map(CapturedPacket::delivered)
        .collect();
    let mbits = |full: &[u64]| {
        let seconds = (full[full.len() - 1] - full[0]) as f64 / 1e9;
        (full.len() - 1) as f64 * 1_448.0 * 8.0 / seconds / 1e6
    };
    let (whole, ideal) = (mbits(&full), 10.0 * 1_448.0 / 1_500.0);
    assert!(whole < 1.02 * ideal, "{whole} instead of {ideal}");
    // A stall of the machine makes one or two pieces slow. The median shows the link.
    let mut pieces: Vec<f64> = full.chunks_exact(full.len() / 10).map(mbits).collect();
    pieces.sort_by(f64::total_cmp);
    assert!(pieces[pieces.len() / 2] > 0.9 * ideal, "{pieces:?} instead of {ideal}");
    Ok(())
}

fn a_full_queue_is_seen() -> Outcome {
    let rate = CellSpec::Rate(RateSpec { mbits: 1.0, queue_bytes: 5_000, burst_bytes: 0 });
    let network = network(vec![rate, delay(1)], vec![]);
    let sink = network.server().run(|| UdpSocket::bind(("0.0.0.0", PORT)))??;
    sink.set_read_timeout(Some(TEST_TIMEOUT))?;
    let server = SocketAddr::from((network.path(0)?.server, PORT));
    network.client().run(|| -> std::io::Result<()> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        (0..10).try_for_each(|_| socket.send_to(&[7; 972], server).map(drop))
    })??;
    for _ in 0..5 {
        sink.recv(&mut [0; 1_000])?;
    }
    let packets = network.tap().take().packets;
    let dropped: Vec<_> = packets.iter().filter(|packet| packet.delivered().is_none()).collect();
    assert_eq!((packets.len(), dropped.len()), (10, 5));
    assert!(dropped.iter().all(|packet| packet.dropped_by == Some("rate")));
    assert!(
        dropped.iter().all(|packet| packet.frame.len() == 1_014),
        "the tap keeps dropped packets"
    );
    let up = network.path_counters(0)?.up;
    assert_eq!((up.arrived, up.delivered, up.dropped(), up.lost), (10, 5, 5, 0));
    assert_eq!((up.cells[0].name, up.cells[0].passed, up.cells[0].dropped), ("rate", 5, 5));
    assert_eq!((up.arrived_bytes, up.delivered_bytes), (10_140, 5_070));
    assert_eq!(network.counters()?.dropped, 5);
    assert!(network.path_counters(1).is_err(), "no such path");
    Ok(())
}

fn tcp_learns_a_smaller_mtu() -> Outcome {
    let mtu = CellSpec::Mtu(MtuSpec { bytes: 1_200, too_big: TooBig::Icmp });
    let network = network(vec![mtu, delay(1)], vec![delay(1)]);
    let received = upload(&network, 50_000, TEST_TIMEOUT)?;
    assert_eq!(received, 50_000, "all arrives");
    let packets = network.tap().take().packets;
    let longest = |up: bool| {
        let up = if up { Direction::Up } else { Direction::Down };
        let passed = packets.iter().filter(|p| p.direction == up && p.delivered().is_some());
        passed.map(|packet| packet.length).max()
    };
    assert_eq!(longest(true), Some(1_214), "the sender fills the smaller MTU");
    assert!(packets.iter().any(|packet| packet.dropped_by == Some("mtu")));
    Ok(())
}

fn a_black_hole_swallows() -> Outcome {
    let mtu = CellSpec::Mtu(MtuSpec { bytes: 1_200, too_big: TooBig::BlackHole });
    let network = network(vec![mtu, delay(1)], vec![delay(1)]);
    let received = upload(&network, 50_000, Duration::from_secs(1))?;
    assert_ne!(received, 50_000, "the transfer stalls");
    let up = network.path_counters(0)?.up;
    assert!(up.cells[0].dropped > 0);
    Ok(())
}

/// Sends this many bytes. Returns how many arrive before a `silence` of this length.
fn upload(
    network: &Network,
    bytes: usize,
    silence: Duration,
) -> Result<usize, Box<dyn std::error::Error>> {
    let listener = network.server().run(|| TcpListener::bind(("0.0.0.0", PORT)))??;
    let server = SocketAddr::from((network.path(0)?.server, PORT));
    let client = network.client().run(|| TcpStream::connect(server))??;
    let mut accepted = listener.accept()?.0;
    let writer = client.try_clone()?;
    let sending = std::thread::spawn(move || {
        // Fails if this function drops the connection, below, before all is sent.
        let _ = (&writer).write_all(&vec![7; bytes]);
    });
    accepted.set_read_timeout(Some(silence))?;
    let mut received = 0;
    while received < bytes {
        match accepted.read(&mut [0; 65_536]) {
            Ok(0) | Err(_) => break,
            Ok(length) => received += length,
        }
    }
    client.shutdown(std::net::Shutdown::Both)?;
    drop(accepted);
    sending.join().expect("no panic");
    Ok(received)
}

fn loss_is_reproducible() -> Outcome {
    let decisions = |seed| -> Result<Vec<bool>, Box<dyn std::error::Error>> {
        let path = PathConfig {
            name: "lossy".to_owned(),
            up: vec![CellSpec::Loss(LossSpec { probability: 0.3 })],
            down: vec![],
        };
        let network = Network::build(NetworkConfig { seed, ..NetworkConfig::new(vec![path]) })?;
        let server = SocketAddr::from((network.path(0)?.server, PORT));
        network.client().run(|| -> std::io::Result<()> {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            (0..100).try_for_each(|_| socket.send_to(b"x", server).map(drop))
        })??;
        let mut packets = Vec::new();
        let started = Instant::now();
        while packets.len() < 100 && started.elapsed() < TEST_TIMEOUT {
            let new = network.tap().take().packets;
            packets.extend(new.into_iter().filter(|p| p.direction == Direction::Up));
        }
        Ok(packets.iter().map(|packet| packet.delivered().is_some()).collect())
    };
    let first = decisions(1)?;
    assert_eq!(first.len(), 100);
    assert!((45..95).contains(&first.iter().filter(|passed| **passed).count()));
    assert_eq!(first, decisions(1)?);
    assert_ne!(first, decisions(2)?);
    Ok(())
}

/// The packets of two successive Fast Open connections through a middlebox.
fn two_connections(
    kind: Middlebox,
) -> Result<[Vec<CapturedPacket>; 2], Box<dyn std::error::Error>> {
    let down = if kind.alters_responses() { vec![CellSpec::Middlebox(kind)] } else { vec![] };
    let network = network(vec![delay(1)], vec![delay(1)]);
    fast_open::echo_server(&network)?;
    let server: Ipv4Addr = network.path(0)?.server;
    let exchange = || -> Result<Vec<CapturedPacket>, Box<dyn std::error::Error>> {
        network.client().run(|| fast_open::echo(server))?;
        Ok(network.tap().take().packets)
    };
    // `StripTfo` must act before the client has a cookie; for the others the client needs a cookie
    // first.
    if kind != Middlebox::StripTfo {
        exchange()?;
    }
    network.set_cells(
        0,
        vec![CellSpec::Middlebox(kind), delay(1)],
        [down, vec![delay(1)]].concat(),
    )?;
    Ok([exchange()?, exchange()?])
}

fn strip_tfo() -> Outcome {
    for packets in two_connections(Middlebox::StripTfo)? {
        let syn = fast_open::syn(&packets, Direction::Up);
        assert_eq!(syn.data, 0, "without a cookie there is no data in a SYN");
        let altered: Vec<_> = packets.iter().filter_map(|packet| packet.altered.as_ref()).collect();
        assert!(altered.iter().all(|altered| altered.by == "strip-tfo"));
        assert_eq!(altered.len(), 1, "the request, which brings no cookie");
    }
    Ok(())
}

fn drop_tfo() -> Outcome {
    fell_back_after_a_timer(&two_connections(Middlebox::DropTfo)?[0], "drop-tfo")
}

fn drop_syn_data() -> Outcome {
    fell_back_after_a_timer(&two_connections(Middlebox::DropSynData)?[0], "drop-syn-data")
}

/// Checks the first connection only: the kernel remembers such a loss for a while.
fn fell_back_after_a_timer(packets: &[CapturedPacket], by: &str) -> Outcome {
    let dropped = packets.iter().find(|p| p.dropped_by == Some(by)).ok_or("nothing dropped")?;
    let response = packets
        .iter()
        .filter(|packet| packet.direction == Direction::Down)
        .find(|packet| fast_open::is_syn(packet))
        .ok_or("no connection")?;
    let waited = response.arrival_ns - dropped.arrival_ns;
    assert!(waited > 500_000_000, "the client retries without data after its timer: {waited} ns");
    Ok(())
}

fn strip_syn_data() -> Outcome {
    for packets in two_connections(Middlebox::StripSynData)? {
        let (sent, syn_ack) =
            (fast_open::syn(&packets, Direction::Up), fast_open::syn(&packets, Direction::Down));
        assert_eq!(sent.data, REQUEST.len(), "as the client sent it");
        let packet = packets.iter().find(|packet| packet.altered.is_some()).ok_or("unaltered")?;
        let shortened = packet.altered.as_ref().map(|altered| altered.frame.len());
        assert_eq!(shortened, Some(packet.frame.len() - REQUEST.len()));
        let acknowledged = syn_ack.acknowledgment.wrapping_sub(sent.sequence) as usize - 1;
        assert_eq!(acknowledged, 0, "the server accepted a valid SYN without data");
    }
    Ok(())
}

fn drop_large_hello() -> Outcome {
    let kind = Middlebox::DropLargeHello;
    assert!(arrives(kind, &hello(SERVER_NAME, 500))?, "one packet");
    assert!(!arrives(kind, &hello(KEY_SHARE, 1_500))?, "two packets");
    Ok(())
}

fn drop_early_data() -> Outcome {
    let kind = Middlebox::DropEarlyData;
    assert!(arrives(kind, &hello(SERVER_NAME, 500))?);
    assert!(!arrives(kind, &hello(EARLY_DATA, 0))?);
    Ok(())
}

/// Whether a complete first flight passes a middlebox. If not, half a second passes without a byte
/// after the middlebox has dropped a packet.
fn arrives(kind: Middlebox, flight: &[u8]) -> Result<bool, Box<dyn std::error::Error>> {
    let network = network(vec![CellSpec::Middlebox(kind), delay(1)], vec![delay(1)]);
    let dropped = || network.path_counters(0).map(|path| path.up.cells[0].dropped);
    let listener = network.server().run(|| TcpListener::bind(("0.0.0.0", PORT)))??;
    let server = SocketAddr::from((network.path(0)?.server, PORT));
    let mut client = network.client().run(|| TcpStream::connect(server))??;
    client.write_all(flight)?;
    let mut accepted = listener.accept()?.0;
    accepted.set_read_timeout(Some(Duration::from_millis(500)))?;
    let (mut missing, started) = (flight.len(), Instant::now());
    while missing > 0 && started.elapsed() < TEST_TIMEOUT {
        let has_dropped = dropped()? > 0;
        match accepted.read(&mut [0; 4_096]) {
            Ok(length) => missing -= length,
            Err(_) if has_dropped => break,
            Err(_) => {}
        }
    }
    let (whole, dropped) = (missing == 0, dropped()?);
    assert_eq!(whole, dropped == 0, "{dropped} dropped");
    Ok(whole)
}

/// A ClientHello with one extension of this length (RFC 8446 section 4.1.2).
fn hello(extension: u16, length: u16) -> Vec<u8> {
    let head = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 1, 1, 0]].concat();
    let number = |n: usize| (n as u16).to_be_bytes();
    let body = head.len() + 2 + 4 + usize::from(length);
    [
        &[22, 3, 1][..],
        &number(4 + body),
        &[1, 0],
        &number(body),
        &head,
        &number(4 + usize::from(length)),
        &extension.to_be_bytes(),
        &length.to_be_bytes(),
        &vec![7; length.into()],
    ]
    .concat()
}

fn cells_change_at_run_time() -> Outcome {
    let network = network(vec![delay(1)], vec![delay(1)]);
    assert!(
        network.set_cells(0, vec![CellSpec::Loss(LossSpec { probability: 2.0 })], vec![]).is_err()
    );
    assert!(network.set_cells(1, vec![], vec![]).is_err(), "no such path");
    let cable = Profile::parse("cable")?;
    network.set_cells(0, cable.up.clone(), cable.down.clone())?;
    let path = network.path(0)?;
    assert_eq!((path.rtt(), path.up_cells), (Duration::from_millis(28), cable.up));
    let names: Vec<_> = network.path_counters(0)?.down.cells.iter().map(|c| c.name).collect();
    assert_eq!(names, ["rate", "delay"]);
    Ok(())
}

fn every_network_carries_a_packet() -> Outcome {
    let profiles = Profile::networks();
    let network = Network::build(NetworkConfig::new(profiles.iter().map(Into::into).collect()))?;
    let socket = network.server().run(|| UdpSocket::bind(("0.0.0.0", PORT)))??;
    network.server().spawn("echo", move || {
        let mut buffer = [0; 64];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            socket.send_to(&buffer[..length], from).expect("echoes");
        }
    })?;
    let paths = network.paths();
    let times = network.client().run(|| -> std::io::Result<Vec<Duration>> {
        let sockets: Vec<_> = paths
            .iter()
            .map(|path| {
                let socket = UdpSocket::bind("0.0.0.0:0")?;
                socket.connect((path.server, PORT))?;
                socket.set_read_timeout(Some(TEST_TIMEOUT))?;
                Ok((socket, Instant::now()))
            })
            .collect::<std::io::Result<_>>()?;
        let started = Instant::now();
        sockets.iter().try_for_each(|(socket, _)| socket.send(b"x").map(drop))?;
        sockets
            .iter()
            .map(|(socket, _)| socket.recv(&mut [0; 8]).map(|_| started.elapsed()))
            .collect()
    })??;
    for (path, time) in paths.iter().zip(times) {
        // A random delay may be shorter than its base, but not by more than half.
        assert!(time >= path.rtt() / 2, "{}: {time:?}", path.name);
    }
    Ok(())
}

/// Extensions of RFC 8446 section 4.2.
const SERVER_NAME: u16 = 0;
const EARLY_DATA: u16 = 42;
const KEY_SHARE: u16 = 51;
const PORT: u16 = 7;
const TEST_TIMEOUT: Duration = Duration::from_secs(30);
