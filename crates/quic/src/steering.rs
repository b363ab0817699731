use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use quinn_proto::{ConnectionId, ConnectionIdGenerator};

use crate::IdMark;

/// Several sockets on one port, a worker each: every packet goes to the worker `the first two bytes
/// of its destination connection id, as a number, mod workers`. A client's first id is random, so
/// connections spread; the ids that a worker issues keep to that rule, so a connection stays with
/// its worker, also when the client's address changes (RFC 9000 section 9).
///
/// Left to itself, the kernel picks a socket by a hash over addresses and ports. A client that
/// comes from another port, because its NAT has forgotten it, would reach a worker that knows
/// nothing of its connection.
///
/// Two bytes, because with one the shares would be uneven: of 100 workers, 56 would get half as
/// much again as the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steering {
    workers: u8,
}

impl Steering {
    /// For so many workers, 1 to 128.
    pub fn new(workers: u8) -> Self {
        Self { workers: workers.clamp(1, 128) }
    }

    /// How many workers there are.
    pub fn workers(self) -> u8 {
        self.workers
    }

    /// Issues connection ids for a worker (0 first): 8 bytes, random but for the rule. Who sees an
    /// id learns the worker, which its address does not give away, and nothing more.
    pub fn connection_ids(self, worker: u8) -> Box<dyn ConnectionIdGenerator> {
        Box::new(ConnectionIds { steering: self, worker: worker % self.workers, mark: None })
    }

    /// The same with a mark on each.
    pub fn marked_ids(self, worker: u8, mark: IdMark) -> Box<dyn ConnectionIdGenerator> {
        Box::new(ConnectionIds { steering: self, worker: worker % self.workers, mark: Some(mark) })
    }

    /// The worker of a datagram, as [`Steering::program`] reckons it. Datagrams that are too short
    /// to have a connection id are the first worker's.
    pub fn worker(self, datagram: &[u8]) -> u8 {
        let id = id_of(datagram).and_then(<[u8]>::first_chunk);
        id.map_or(0, |id| self.worker_of(*id))
    }

    /// The rule as a classic BPF program for `SO_ATTACH_REUSEPORT_CBPF`, whose data starts at the
    /// UDP payload: code, jt, jf, k. It answers with the number of the socket in the order in which
    /// they were bound.
    pub fn program(self) -> Vec<(u16, u8, u8, u32)> {
        vec![
            // The first byte tells the header's form (RFC 9000 section 17). A load from beyond
            // the datagram's end ends the program with 0.
            (LOAD_BYTE, 0, 0, 0),
            (JUMP_IF_SET, 0, 2, LONG_HEADER.into()),
            (LOAD_HALF, 0, 0, LONG_ID as u32),
            (JUMP, 0, 0, 1),
            (LOAD_HALF, 0, 0, SHORT_ID as u32),
            (MODULO, 0, 0, self.workers.into()),
            (RETURN_A, 0, 0, 0),
        ]
    }

    /// Makes the kernel steer by [`Steering::program`] between the sockets that are bound to this
    /// one's address with `SO_REUSEPORT`. On the first of them, before or after it is bound; the
    /// workers' sockets have to be bound in their order.
    ///
    /// # Errors
    /// What the kernel says.
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

/// A datagram from where its destination connection id starts.
pub(crate) fn id_of(datagram: &[u8]) -> Option<&[u8]> {
    let at = if datagram.first()? & LONG_HEADER == 0 { SHORT_ID } else { LONG_ID };
    datagram.get(at..)
}

struct ConnectionIds {
    steering: Steering,
    worker: u8,
    mark: Option<IdMark>,
}

impl ConnectionIdGenerator for ConnectionIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; ID];
        boring::rand::rand_bytes(&mut id).expect("the system gives random bytes");
        let random = u16::from_be_bytes([id[0], id[1]]);
        let workers = u16::from(self.steering.workers);
        // Rounded down to a multiple; the last, incomplete round would run over the end.
        let round = (random / workers).min(u16::MAX / workers - 1) * workers;
        id[..2].copy_from_slice(&(round + u16::from(self.worker)).to_be_bytes());
        if let Some(mark) = &self.mark {
            mark.put(&mut id);
        }
        ConnectionId::new(&id)
    }

    fn cid_len(&self) -> usize {
        ID
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// Bytes of the ids that we issue.
pub(crate) const ID: usize = 8;
const LONG_HEADER: u8 = 0x80;
/// Where the destination connection id starts: after the first byte, or after first byte, version
/// and its length.
const SHORT_ID: usize = 1;
const LONG_ID: usize = 6;

const LOAD_BYTE: u16 = 0x30;
const LOAD_HALF: u16 = 0x28;
const JUMP: u16 = 0x05;
const JUMP_IF_SET: u16 = 0x45;
const MODULO: u16 = 0x94;
const RETURN_A: u16 = 0x16;

#[cfg(test)]
#[path = "steering_tests.rs"]
mod tests;
