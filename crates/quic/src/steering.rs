use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use quinn_proto::{ConnectionId, ConnectionIdGenerator};

use crate::IdMark;

/// Distributes packets to several sockets on one port, one per worker. The first two bytes of the
/// destination connection id, as a number modulo the number of workers, select the worker. A client's
/// first id is random, so connections are distributed evenly. The ids that a worker issues select
/// itself, so a connection stays with its worker when the client's address changes (RFC 9000 section
/// 9). By default the kernel selects a socket by addresses and ports, and a connection is lost when
/// the client's NAT assigns a new port.
///
/// With one byte instead of two the distribution would be uneven: of 100 workers, 56 would get 50%
/// more connections than the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steering {
    workers: u8,
}

impl Steering {
    /// Creates a rule for 1 to 128 workers.
    pub fn new(workers: u8) -> Self {
        Self { workers: workers.clamp(1, 128) }
    }

    /// The number of workers.
    pub fn workers(self) -> u8 {
        self.workers
    }

    /// Creates the generator of a worker's connection ids: 8 bytes, random except that they select
    /// the worker, which is all that an observer learns from them. Workers count from 0.
    pub fn connection_ids(self, worker: u8) -> Box<dyn ConnectionIdGenerator> {
        Box::new(ConnectionIds { steering: self, worker: worker % self.workers, mark: None })
    }

    /// As [`Steering::connection_ids`], with a mark on each id.
    pub fn marked_ids(self, worker: u8, mark: IdMark) -> Box<dyn ConnectionIdGenerator> {
        Box::new(ConnectionIds { steering: self, worker: worker % self.workers, mark: Some(mark) })
    }

    /// The worker of a datagram, as computed by [`Steering::program`]. Datagrams that are too short
    /// for a connection id go to the first worker.
    pub fn worker(self, datagram: &[u8]) -> u8 {
        let id = from_destination_cid(datagram).and_then(<[u8]>::first_chunk);
        id.map_or(0, |id| self.worker_of(*id))
    }

    /// The rule as a classic BPF program for `SO_ATTACH_REUSEPORT_CBPF`, as tuples of code, jt, jf and
    /// k. Offsets count from the UDP payload. The program returns the index of the socket in the order
    /// in which the sockets were bound.
    pub fn program(self) -> Vec<(u16, u8, u8, u32)> {
        vec![
            // The first byte has the header form (RFC 9000 section 17). A load beyond the end of the
            // datagram ends the program with 0.
            (LOAD_BYTE, 0, 0, 0),
            (JUMP_IF_SET, 0, 2, LONG_HEADER.into()),
            (LOAD_HALF, 0, 0, LONG_CID_OFFSET as u32),
            (JUMP, 0, 0, 1),
            (LOAD_HALF, 0, 0, SHORT_CID_OFFSET as u32),
            (MODULO, 0, 0, self.workers.into()),
            (RETURN_A, 0, 0, 0),
        ]
    }

    /// Attaches [`Steering::program`] to the sockets that are bound to the same address with
    /// `SO_REUSEPORT`. Call it on the first one, before or after it is bound. Bind the sockets in the
    /// order of the workers.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn attach(self, socket: impl AsFd) -> io::Result<()> {
        let mut program = self
            .program()
            .into_iter()
            .map(|(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k })
            .collect::<Vec<_>>();
        // The kernel copies the program within the call.
        let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        setsockopt(&socket, sockopt::AttachReusePortCbpf, &program).map_err(io::Error::from)
    }

    fn worker_of(self, id: [u8; 2]) -> u8 {
        // The remainder is below 128.
        (u16::from_be_bytes(id) % u16::from(self.workers)) as u8
    }
}

/// The bytes of a datagram from its destination connection id on.
pub(crate) fn from_destination_cid(datagram: &[u8]) -> Option<&[u8]> {
    let is_long = datagram.first()? & LONG_HEADER != 0;
    let offset = if is_long { LONG_CID_OFFSET } else { SHORT_CID_OFFSET };
    datagram.get(offset..)
}

struct ConnectionIds {
    steering: Steering,
    worker: u8,
    mark: Option<IdMark>,
}

impl ConnectionIdGenerator for ConnectionIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; CID_LEN];
        boring::rand::rand_bytes(&mut id).expect("the system gives random bytes");
        let random = u16::from_be_bytes([id[0], id[1]]);
        let workers = u16::from(self.steering.workers);
        // A multiple of `workers`. The last one is excluded, as adding the worker could overflow.
        let base = (random / workers).min(u16::MAX / workers - 1) * workers;
        id[..2].copy_from_slice(&(base + u16::from(self.worker)).to_be_bytes());
        if let Some(mark) = &self.mark {
            mark.apply(&mut id);
        }
        ConnectionId::new(&id)
    }

    fn cid_len(&self) -> usize {
        CID_LEN
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// Length of the connection ids that a server issues.
pub(crate) const CID_LEN: usize = 8;
const LONG_HEADER: u8 = 0x80;
/// Where the destination connection id starts: after the first byte in a short header; after the
/// first byte, the version and the id's length in a long header.
const SHORT_CID_OFFSET: usize = 1;
const LONG_CID_OFFSET: usize = 6;

const LOAD_BYTE: u16 = 0x30;
const LOAD_HALF: u16 = 0x28;
const JUMP: u16 = 0x05;
const JUMP_IF_SET: u16 = 0x45;
const MODULO: u16 = 0x94;
const RETURN_A: u16 = 0x16;

#[cfg(test)]
#[path = "steering_tests.rs"]
mod tests;
