//! The attacker: its bytes reach the server unchanged, and it reports how each connection ended.

use std::collections::{HashMap, HashSet};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use firstflight_emulator::{Attempt, ConnectionEnd, Network, Resend, ResendDatagrams};
use libtest_mimic::Trial;

use crate::{Outcome, network, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("the_attacker_resends_byte_for_byte", resends_byte_for_byte),
        trial("the_attacker_reports_how_connections_end", reports_how_connections_end),
        trial("the_attacker_resends_datagrams_from_new_ports", resends_datagrams),
    ]
}

fn resends_byte_for_byte() -> Outcome {
    let network = network([200_000, 2_000]);
    let flight: Vec<u8> = (0..14_000u32).map(|n| (n * 7 % 256) as u8).collect();
    let length = flight.len();
    let received = serve(&network, move |mut stream| {
        let mut bytes = vec![0; length];
        stream.read_exact(&mut bytes).unwrap();
        stream.write_all(b"executed").unwrap();
        bytes
    })?;
    for (path, attempts, concurrent) in [(0, 25, 10), (1, 2, 2), (0, 3, 0)] {
        let server = SocketAddr::from((network.path(path)?.server, PORT));
        let resend =
            Resend { server, flight: &flight, attempts, concurrent, idle_timeout: IDLE_TIMEOUT };
        let results = network.attacker().resend(&resend)?;
        assert_eq!(
            results,
            vec![Attempt { bytes_received: 8, end: ConnectionEnd::Closed }; attempts]
        );
        for (bytes, from) in received.iter().take(attempts) {
            assert!(bytes == flight, "byte for byte");
            assert_eq!(from, IpAddr::from([10, 77, 200, 1]));
        }
    }
    assert!(network.tap().take().packets.is_empty(), "the attack is not on the link");
    Ok(())
}

fn resends_datagrams() -> Outcome {
    let network = network([200_000, 2_000]);
    let flight: Vec<Vec<u8>> = [(1_200, 3u8), (1_452, 5), (40, 7)]
        .map(|(length, step)| (0..length).map(|n| (n as u8).wrapping_mul(step)).collect())
        .to_vec();
    let server = SocketAddr::from((network.path(0)?.server, PORT));
    let resend = ResendDatagrams {
        server,
        flight: &flight,
        attempts: 25,
        concurrent: 10,
        idle_timeout: Duration::from_millis(100),
    };
    let refused = ConnectionEnd::Failed(ErrorKind::ConnectionRefused);
    let endings = network.attacker().resend_datagrams(&resend)?;
    assert!(endings.iter().all(|attempt| attempt.end == refused), "{endings:?}");

    let socket = network.server().run(|| UdpSocket::bind(server))??;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    let reader = std::thread::spawn(move || {
        let mut received: HashMap<SocketAddr, Vec<Vec<u8>>> = HashMap::new();
        let mut buffer = [0; 2_048];
        for _ in 0..25 * 3 {
            let (length, from) = socket.recv_from(&mut buffer).unwrap();
            let datagrams = received.entry(from).or_default();
            datagrams.push(buffer[..length].to_vec());
            if datagrams.len() == 3 {
                socket.send_to(b"executed", from).unwrap();
            }
        }
        received
    });
    let attempts = network.attacker().resend_datagrams(&resend)?;
    assert_eq!(attempts, vec![Attempt { bytes_received: 8, end: ConnectionEnd::Silent }; 25]);
    let received = reader.join().unwrap();
    assert_eq!(received.len(), 25, "a port for each attempt");
    assert!(received.values().all(|datagrams| *datagrams == flight), "byte for byte, in order");
    assert!(received.keys().all(|from| from.ip() == IpAddr::from([10, 77, 200, 1])));
    assert!(network.tap().take().packets.is_empty(), "the attack is not on the link");
    Ok(())
}

fn reports_how_connections_end() -> Outcome {
    let network = network([2_000]);
    let server = SocketAddr::from((network.path(0)?.server, PORT));
    let resend = Resend {
        server,
        flight: b"flight",
        attempts: 3,
        concurrent: 3,
        idle_timeout: IDLE_TIMEOUT,
    };
    let endings =
        |network: &Network| -> Result<HashSet<ConnectionEnd>, firstflight_emulator::LinkError> {
            Ok(network.attacker().resend(&resend)?.iter().map(|attempt| attempt.end).collect())
        };
    let refused = ConnectionEnd::Failed(ErrorKind::ConnectionRefused);
    assert_eq!(endings(&network)?, [refused].into(), "nobody listens");

    // Keeps the connection open and never responds.
    let held = serve(&network, |stream| stream)?;
    assert_eq!(endings(&network)?, [ConnectionEnd::Silent].into());
    assert_eq!(held.iter().take(3).count(), 3);
    drop(held);

    let network = crate::network([2_000]);
    // Closing with unread data is a reset.
    let _reset = serve(&network, |stream| stream.peek(&mut [0; 6]))?;
    assert_eq!(endings(&network)?, [ConnectionEnd::Reset].into());

    let network = crate::network([2_000]);
    // Responds only after the attacker has closed its side.
    let _late = serve(&network, |mut stream| {
        stream.read_to_end(&mut Vec::new()).unwrap();
        stream.write_all(b"late")
    })?;
    let attempts = network.attacker().resend(&resend)?;
    assert_eq!(attempts, [Attempt { bytes_received: 4, end: ConnectionEnd::Closed }; 3]);
    Ok(())
}

/// Calls `serve` for each connection on a new thread. The channel receives its results.
fn serve<T: Send + 'static>(
    network: &Network,
    serve: impl Fn(TcpStream) -> T + Clone + Send + 'static,
) -> Result<Receiver<(T, IpAddr)>, Box<dyn std::error::Error>> {
    let listener = network.server().run(|| TcpListener::bind(("0.0.0.0", PORT)))??;
    let (sender, receiver) = channel();
    network.server().spawn("served", move || {
        for stream in listener.incoming().flatten() {
            let (serve, sender) = (serve.clone(), sender.clone());
            std::thread::spawn(move || {
                let from = stream.peer_addr().expect("connected").ip();
                // Fails if the test no longer needs the result.
                let _ = sender.send((serve(stream), from));
            });
        }
    })?;
    Ok(receiver)
}

const PORT: u16 = 443;
const IDLE_TIMEOUT: Duration = Duration::from_millis(300);
