//! An attacker who has recorded first flights and sends them again.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use super::initial::{FULL, header};
use crate::support::program::TEST_TIMEOUT;

/// One of the attacker's ports.
pub(crate) struct Attacker {
    socket: UdpSocket,
}

impl Attacker {
    /// Opens a port for sending to a server.
    pub(crate) fn new(server: SocketAddr) -> Self {
        Self::from(Ipv4Addr::LOCALHOST.octets(), server)
    }

    /// Like [`Self::new`], from this address.
    pub(crate) fn from(address: [u8; 4], server: SocketAddr) -> Self {
        let socket = UdpSocket::bind(SocketAddr::from((address, 0))).unwrap();
        socket.connect(server).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        Self { socket }
    }

    pub(crate) fn send(&self, datagram: &[u8]) {
        self.socket.send(datagram).unwrap();
    }

    /// Returns the next datagram, or `None` if none arrives for 200 ms.
    pub(crate) fn receive(&self) -> Option<Vec<u8>> {
        let mut buffer = [0; 65_536];
        let count = self.socket.recv(&mut buffer).ok()?;
        Some(buffer[..count].to_vec())
    }

    /// Waits until the server has read everything that this port has sent to the worker of that
    /// connection id, and returns the datagrams received meanwhile. A server responds at once to an
    /// unknown version, and reads in order.
    pub(crate) fn settle(&self, destination: &[u8]) -> Vec<Vec<u8>> {
        let mut probe = vec![0xc0, 0x1a, 0x2a, 0x3a, 0x4a, destination.len() as u8];
        probe.extend_from_slice(destination);
        probe.extend_from_slice(b"\x08question");
        probe.resize(FULL, 0);
        let mut received = Vec::new();
        for _ in 0..TEST_TIMEOUT.as_millis() / 200 {
            // The probe may be lost, because sockets overflow.
            self.send(&probe);
            while let Some(datagram) = self.receive() {
                if header(&datagram).is_some_and(|header| header.kind.is_none()) {
                    return received;
                }
                received.push(datagram);
            }
        }
        panic!("the server no longer responds");
    }

    /// Like [`Self::settle`], but also waits for delayed responses, until none has arrived for 200
    /// ms.
    pub(crate) fn settle_slowly(&self, destination: &[u8]) -> Vec<Vec<u8>> {
        let mut received = self.settle(destination);
        while let Some(datagram) = self.receive() {
            received.push(datagram);
        }
        received
    }
}

/// Sends each flight `times` times, each copy from a new port, on several threads, and returns when
/// the server has read them. Returns how many copies got any response.
pub(crate) fn resend(server: SocketAddr, flights: &[Vec<Vec<u8>>], times: usize) -> usize {
    let copies = || flights.iter().cycle().take(flights.len() * times);
    thread::scope(|scope| {
        let attackers: Vec<_> = (0..THREADS)
            .map(|mine| {
                let copies = copies().skip(mine).step_by(THREADS);
                scope.spawn(move || copies.filter(|flight| resend_one(server, flight)).count())
            })
            .collect();
        attackers.into_iter().map(|attacker| attacker.join().unwrap()).sum()
    })
}

/// Sends a flight from a new port. Returns whether a response arrived before the server had read
/// all of it.
pub(crate) fn resend_one(server: SocketAddr, flight: &[Vec<u8>]) -> bool {
    let attacker = Attacker::new(server);
    for datagram in flight {
        attacker.send(datagram);
    }
    let destination = header(&flight[0]).unwrap().destination;
    !attacker.settle(&destination).is_empty()
}

/// Few enough that the server's socket buffer holds the copies in transit.
const THREADS: usize = 8;
