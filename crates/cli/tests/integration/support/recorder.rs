//! An attacker on the path, who forwards everything, records first flights, and replays them.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use super::program::{TEST_TIMEOUT, until};

type Gate = Arc<dyn Fn() -> bool + Send + Sync>;

/// A TCP proxy in front of a server. It keeps its port when the server is replaced, because a client's
/// sessions belong to a host and port.
pub(crate) struct Recorder {
    pub(crate) port: u16,
    server: Arc<Mutex<SocketAddr>>,
    /// The first flight of the latest connection. A client sends it in one write.
    flight: Arc<Mutex<Vec<u8>>>,
}

impl Recorder {
    /// Starts a proxy that runs until the test program ends.
    pub(crate) fn start(server: SocketAddr) -> Self {
        Self::holding(server, || true)
    }

    /// The same, but holds what follows a first flight, such as Finished, until `opens` is true.
    pub(crate) fn holding(
        server: SocketAddr,
        opens: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let flight = Arc::<Mutex<Vec<u8>>>::default();
        let recorder = Self { port, server: Arc::new(Mutex::new(server)), flight };
        let (server, flight) = (recorder.server.clone(), recorder.flight.clone());
        let opens: Gate = Arc::new(opens);
        thread::spawn(move || {
            for client in listener.incoming() {
                flight.lock().unwrap().clear();
                let server = TcpStream::connect(*server.lock().unwrap());
                if let (Ok(client), Ok(server)) = (client, server) {
                    let (flight, opens) = (flight.clone(), opens.clone());
                    let up = move |bytes: &[u8]| {
                        let mut flight = flight.lock().unwrap();
                        let first = flight.is_empty();
                        if first {
                            flight.extend_from_slice(bytes);
                        }
                        drop(flight);
                        assert!(first || until(|| opens()), "the rest of the flights may pass");
                    };
                    pass(&client, &server, up);
                    pass(&server, &client, |_| {});
                }
            }
        });
        recorder
    }

    pub(crate) fn url(&self, target: &str) -> String {
        format!("https://localhost:{}{target}", self.port)
    }

    /// Forwards to another server from now on.
    pub(crate) fn forward_to(&self, server: SocketAddr) {
        *self.server.lock().unwrap() = server;
    }

    /// The first flight of the latest connection.
    pub(crate) fn flight(&self) -> Vec<u8> {
        self.flight.lock().unwrap().clone()
    }
}

/// Replays a flight, with `at_once` concurrent connections. Each shuts down its sending side and waits
/// until the server closes, so that the server has read everything. Returns how many got a response.
pub(crate) fn resend(server: SocketAddr, flight: &[u8], times: usize, at_once: usize) -> usize {
    let one = || -> io::Result<usize> {
        let mut tcp = TcpStream::connect(server)?;
        tcp.set_read_timeout(Some(TEST_TIMEOUT))?;
        tcp.write_all(flight)?;
        tcp.shutdown(Shutdown::Write)?;
        tcp.read_to_end(&mut Vec::new())
    };
    let has_response = || matches!(one(), Ok(1..));
    assert_eq!(times % at_once, 0, "each attacker resends equally often");
    thread::scope(|scope| {
        let attackers: Vec<_> = (0..at_once)
            .map(|_| scope.spawn(move || (0..times / at_once).filter(|_| has_response()).count()))
            .collect();
        attackers.into_iter().map(|attacker| attacker.join().unwrap()).sum()
    })
}

/// Forwards bytes in one direction, on a thread that ends with the connection.
fn pass(from: &TcpStream, to: &TcpStream, before: impl Fn(&[u8]) + Send + 'static) {
    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
    thread::spawn(move || {
        let mut bytes = [0; 16384];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            before(&bytes[..count]);
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    });
}
