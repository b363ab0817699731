//! What the link did with the packets that it met.

/// What the link did with the frames that it met, all paths together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Delivered to the other side.
    pub delivered: u64,
    /// Dropped by cells, as paths are asked to; [`PathCounters`] has which.
    pub dropped: u64,
    /// Not IPv4 between the two addresses of a path, hence not forwarded.
    pub foreign: u64,
    /// Lost because the forwarding thread was too slow and a ring, or a TUN device's queue, ran
    /// full.
    pub ring_full: u64,
    /// Lost because too many bytes were under way in the link itself. A rate's own queue counts
    /// among `dropped`.
    pub queue_full: u64,
    /// Refused by the receiving interface.
    pub refused: u64,
}

/// What became of the packets of one path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PathCounters {
    /// From client to server.
    pub up: LaneCounters,
    /// From server to client.
    pub down: LaneCounters,
}

/// What became of the packets of one direction of a path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LaneCounters {
    /// Packets that came in.
    pub arrived: u64,
    /// Their bytes, Ethernet headers included.
    pub arrived_bytes: u64,
    /// Packets handed to the receiver.
    pub delivered: u64,
    /// Their bytes, Ethernet headers included.
    pub delivered_bytes: u64,
    /// Packets that the link itself lost: too many under way, or refused by the receiver.
    pub lost: u64,
    /// Dropped by cells that have been replaced meanwhile.
    pub dropped_before: u64,
    /// The present cells, in their order.
    pub cells: Vec<CellCounters>,
}

impl LaneCounters {
    /// Packets that cells dropped, those that were replaced included.
    pub fn dropped(&self) -> u64 {
        self.dropped_before + self.cells.iter().map(|cell| cell.dropped).sum::<u64>()
    }

    /// Goes on counting where the cells before were left.
    pub(crate) fn continue_from(&mut self, old: &Self) {
        let cells = std::mem::take(&mut self.cells);
        *self = Self { dropped_before: old.dropped(), cells, ..old.clone() };
    }
}

/// What one cell did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CellCounters {
    /// The cell's name, see [`crate::CellSpec::name`].
    pub name: &'static str,
    /// Handed on, altered or not.
    pub passed: u64,
    /// Of these, altered.
    pub altered: u64,
    /// Dropped.
    pub dropped: u64,
}

impl CellCounters {
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, passed: 0, altered: 0, dropped: 0 }
    }
}
