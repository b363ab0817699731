use quinn_proto::ConnectionIdGenerator;

/// Several sockets on one port, a worker each: every packet goes to the worker `first byte of its
/// destination connection id mod workers`. A client's first id is random, so connections spread;
/// the ids that a worker issues keep to that rule, so a connection stays with its worker, also when
/// the client's address changes (RFC 9000 section 9).
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

    /// Issues connection ids for a worker (0 first).
    pub fn connection_ids(self, _worker: u8) -> Box<dyn ConnectionIdGenerator> {
        unimplemented!()
    }

    /// The worker of a datagram, as [`Steering::program`] reckons it.
    pub fn worker(self, _datagram: &[u8]) -> u8 {
        unimplemented!()
    }

    /// The rule as a classic BPF program for `SO_ATTACH_REUSEPORT_CBPF`: code, jt, jf, k.
    pub fn program(self) -> Vec<(u16, u8, u8, u32)> {
        unimplemented!()
    }
}
