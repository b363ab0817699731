//! Single packets: delays by path, their error, changes at run time, the tap.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use firstflight_emulator::{
    CapturedPacket, Direction, MAX_PATHS, Network, NetworkConfig, PathConfig,
};
use libtest_mimic::Trial;

use crate::{Outcome, network, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("round_trips_take_the_delay_of_the_path", round_trips_take_the_delay_of_the_path),
        trial("paths_are_delayed_independently", paths_are_delayed_independently),
        trial("delays_change_at_run_time", delays_change_at_run_time),
        trial("up_and_down_may_differ", up_and_down_may_differ),
        trial("the_tap_cuts_packets_and_keeps_their_length", the_tap_cuts_packets),
        trial("the_maximum_number_of_paths_works", the_maximum_number_of_paths_works),
        trial("packets_of_no_path_are_counted_and_dropped", packets_of_no_path_are_dropped),
    ]
}

fn round_trips_take_the_delay_of_the_path() -> Outcome {
    let network = network([200, 2_000, 20_000, 200_000]);
    echo_server(&network)?;
    for (path, count) in network.paths().into_iter().zip([80, 80, 40, 10]) {
        let server = SocketAddr::from((path.server, PORT));
        let mut errors = network.client().run(|| {
            let socket = connected(server);
            let round_trip = |_| (timed_echo(&socket).checked_sub(path.rtt())).expect("not early");
            (0..count).map(round_trip).collect::<Vec<_>>()
        })?;
        errors.sort_unstable();
        assert!(errors[0] < MAX_MIN_ERROR, "{}: {errors:?}", path.name);
    }
    let lateness = network.lateness();
    assert_eq!(lateness.packets, 420);
    assert!(lateness.p50_ns < MAX_MEDIAN_LATENESS.as_nanos() as u64, "{lateness:?}");
    assert_eq!(network.counters()?.delivered, 420);
    Ok(())
}

fn paths_are_delayed_independently() -> Outcome {
    let network = network([300_000, 1_000]);
    echo_server(&network)?;
    let [slow, fast] = [network.path(0)?, network.path(1)?].map(|p| p.server);
    let order = network.client().run(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        for server in [slow, fast] {
            socket.send_to(b"x", (server, PORT)).unwrap();
        }
        [(); 2].map(|()| socket.recv_from(&mut [0; 8]).unwrap().1.ip())
    })?;
    assert_eq!(order, [fast, slow], "the later packet of the faster path overtakes");
    let packets = network.tap().take().packets;
    assert_eq!(packets.len(), 4);
    for packet in &packets {
        let delay = network.path(packet.path)?.up;
        assert_eq!(packet.due_ns - packet.arrival_ns, delay.as_nanos() as u64);
        assert!(packet.delivered_ns >= packet.due_ns);
    }
    Ok(())
}

fn delays_change_at_run_time() -> Outcome {
    let network = network([1_000]);
    echo_server(&network)?;
    let server = SocketAddr::from((network.path(0)?.server, PORT));
    let set_delay = |index, delay| {
        let PathConfig { up, down, .. } = PathConfig::delays("", delay, delay);
        network.set_cells(index, up, down)
    };
    for milliseconds in [1, 30, 3] {
        let delay = Duration::from_millis(milliseconds);
        set_delay(0, delay)?;
        assert_eq!(network.path(0)?.rtt(), delay * 2);
        let taken = network.client().run(|| timed_echo(&connected(server)))?;
        assert!(taken >= delay * 2, "{taken:?}");
        let delays: Vec<_> = network.tap().take().packets.iter().map(delay_ns).collect();
        assert_eq!(delays, [delay.as_nanos() as u64; 2]);
    }
    assert!(set_delay(1, Duration::ZERO).is_err(), "no such path");
    assert!(set_delay(0, Duration::from_secs(61)).is_err());
    Ok(())
}

fn up_and_down_may_differ() -> Outcome {
    let (up, down) = (Duration::from_millis(12), Duration::from_millis(1));
    let path = PathConfig::delays("asymmetric", up, down);
    let network = Network::build(NetworkConfig::new(vec![path]))?;
    echo_server(&network)?;
    let server = SocketAddr::from((network.path(0)?.server, PORT));
    network.client().run(|| timed_echo(&connected(server)))?;
    let seen: Vec<_> =
        network.tap().take().packets.iter().map(|p| (p.direction, delay_ns(p))).collect();
    assert_eq!(seen, [(Direction::Up, 12_000_000), (Direction::Down, 1_000_000)]);
    Ok(())
}

fn the_tap_cuts_packets() -> Outcome {
    let path = PathConfig::symmetric("short", Duration::from_micros(200));
    // Also tests that the threads of `keep_awake` start and end.
    let config =
        NetworkConfig { snap_length: 50, keep_awake: true, ..NetworkConfig::new(vec![path]) };
    let network = Network::build(config)?;
    echo_server(&network)?;
    let server = SocketAddr::from((network.path(0)?.server, PORT));
    network.client().run(|| {
        let socket = connected(server);
        socket.send(&[7; 1_000]).unwrap();
        socket.recv(&mut [0; 1_000]).unwrap();
    })?;
    let packets = network.tap().take().packets;
    assert_eq!(packets.len(), 2);
    for packet in packets {
        assert_eq!((packet.frame.len(), packet.length), (50, 14 + 20 + 8 + 1_000));
    }
    Ok(())
}

fn the_maximum_number_of_paths_works() -> Outcome {
    let paths = vec![PathConfig::symmetric("one of many", Duration::from_millis(1)); MAX_PATHS];
    let network = Network::build(NetworkConfig::new(paths))?;
    echo_server(&network)?;
    for index in [0, MAX_PATHS / 2, MAX_PATHS - 1] {
        let path = network.path(index)?;
        let server = SocketAddr::from((path.server, PORT));
        network.client().run(|| timed_echo(&connected(server)))?;
        let packets = network.tap().take().packets;
        assert!(packets.iter().all(|packet| packet.path == index));
        let up = etherparse::SlicedPacket::from_ethernet(&packets[0].frame)?;
        let Some(etherparse::NetSlice::Ipv4(ip)) = up.net else { panic!("no IPv4 packet") };
        assert_eq!(ip.header().source_addr(), path.client);
        assert_eq!(ip.header().destination_addr(), path.server);
    }
    assert!(network.path(MAX_PATHS).is_err());
    Ok(())
}

fn packets_of_no_path_are_dropped() -> Outcome {
    let network = network([1_000, 1_000]);
    let (first, second) = (network.path(0)?, network.path(1)?);
    let lost = network.client().run(|| {
        // From the client address of one path to the server address of another.
        let socket = UdpSocket::bind((first.client, 0)).unwrap();
        socket.send_to(b"x", (second.server, PORT)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        socket.recv(&mut [0; 8]).is_err()
    })?;
    assert!(lost);
    let counters = network.counters()?;
    assert_eq!((counters.unexpected, counters.delivered), (1, 0));
    Ok(())
}

/// Starts a UDP echo on every address of the server.
fn echo_server(network: &Network) -> Outcome {
    let socket = network.server().run(|| UdpSocket::bind(("0.0.0.0", PORT)))??;
    network.server().spawn("echo", move || {
        let mut buffer = [0; 2_048];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            socket.send_to(&buffer[..length], from).expect("echoes");
        }
    })?;
    Ok(())
}

fn connected(server: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect(server).unwrap();
    socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    socket
}

fn timed_echo(socket: &UdpSocket) -> Duration {
    let sent = Instant::now();
    socket.send(b"echo").unwrap();
    socket.recv(&mut [0; 8]).unwrap();
    sent.elapsed()
}

fn delay_ns(packet: &CapturedPacket) -> u64 {
    packet.due_ns - packet.arrival_ns
}

const PORT: u16 = 7;
const TEST_TIMEOUT: Duration = Duration::from_secs(5);
/// For the fastest round trip of a path: other programs delay most round trips, but seldom all.
const MAX_MIN_ERROR: Duration = Duration::from_millis(2);
const MAX_MEDIAN_LATENESS: Duration = Duration::from_millis(10);
