//! A tap for programs: a relay on loopback through which a client's datagrams go to a server.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use firstflight_packets::Direction;

use crate::path::Captured;
use crate::quic_path::frame;

/// A relay that runs until its capture is taken.
pub(crate) struct Relay {
    pub(crate) port: u16,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Captured>>,
}

impl Relay {
    pub(crate) fn new(server: SocketAddr) -> Self {
        let socket = socket();
        let port = socket.local_addr().unwrap().port();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = spawn(move || run(&socket, server, &stopped));
        Self { port, stop, thread }
    }

    pub(crate) fn capture(self) -> Vec<Captured> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// Each address of the client has a socket of its own towards the server, which so sees it move.
fn run(socket: &UdpSocket, server: SocketAddr, stop: &AtomicBool) -> Vec<Captured> {
    let (began, mut captured, mut clients) = (Instant::now(), Vec::new(), HashMap::new());
    let mut buffer = vec![0; 1 << 16];
    let mut note = |direction, from, to, bytes: &[u8]| {
        let arrived = began.elapsed().as_nanos() as u64;
        let frame = frame(from, to, bytes);
        captured.push(Captured { direction, arrived, delivered: Some(arrived), frame });
    };
    while !stop.load(Ordering::Relaxed) {
        let mut idle = true;
        while let Ok((len, client)) = socket.recv_from(&mut buffer) {
            idle = false;
            let towards: &UdpSocket = clients.entry(client).or_insert_with(self::socket);
            note(Direction::ToServer, client, server, &buffer[..len]);
            pass(towards.send_to(&buffer[..len], server));
        }
        for (client, towards) in &clients {
            while let Ok(len) = towards.recv(&mut buffer) {
                idle = false;
                note(Direction::ToClient, server, *client, &buffer[..len]);
                pass(socket.send_to(&buffer[..len], client));
            }
        }
        if idle {
            sleep(Duration::from_micros(200));
        }
    }
    captured
}

/// Who does not listen any more gets nothing.
fn pass(sent: io::Result<usize>) {
    drop(sent);
}
