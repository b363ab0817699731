//! The tap: every packet of the link, with its times and its outcome.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hdrhistogram::Histogram;

use crate::path::Direction;

/// A packet of the link. All times are nanoseconds of [`crate::monotonic_ns`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapturedPacket {
    /// The index of its path.
    pub path: usize,
    /// Its direction.
    pub direction: Direction,
    /// When the sender's kernel sent it (the kernel's timestamp). Copies made by a cell have the
    /// same arrival time.
    pub arrival_ns: u64,
    /// When it had to be delivered, or was dropped, according to the path's cells.
    pub due_ns: u64,
    /// When it was delivered to the receiver's kernel; for a dropped packet, when the link recorded
    /// the drop. See [`CapturedPacket::delivered`].
    pub delivered_ns: u64,
    /// The part of its lateness during which the machine did not run the link.
    pub stalled_ns: u64,
    /// What dropped it: a cell by its name ([`crate::CellSpec::name`]), or the link itself:
    /// [`LINK_FULL`] or [`REFUSED`].
    pub dropped_by: Option<&'static str>,
    /// Its length on the wire in bytes, Ethernet header included.
    pub length: usize,
    /// The Ethernet frame as it was sent, cut to the snap length.
    pub frame: Box<[u8]>,
    /// The frame as it was delivered, if a middlebox altered it.
    pub altered: Option<AlteredFrame>,
}

/// A frame altered by a middlebox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlteredFrame {
    /// The cell's name, see [`crate::CellSpec::name`].
    pub by: &'static str,
    /// The Ethernet frame that its receiver got, cut to the snap length.
    pub frame: Box<[u8]>,
}

/// In [`CapturedPacket::dropped_by`]: too many bytes were in transit in the link.
pub const LINK_FULL: &str = "link-full";
/// In [`CapturedPacket::dropped_by`]: the receiving interface refused the packet.
pub const REFUSED: &str = "refused";

impl CapturedPacket {
    /// When it was delivered, or `None` if it was dropped.
    pub fn delivered(&self) -> Option<u64> {
        self.dropped_by.is_none().then_some(self.delivered_ns)
    }

    /// Whether both are copies of a packet that a cell duplicated.
    pub fn is_copy_of(&self, other: &Self) -> bool {
        let header =
            |packet: &Self| (packet.arrival_ns, packet.path, packet.direction, packet.length);
        header(self) == header(other) && self.frame == other.frame
    }

    /// How late it was delivered, in nanoseconds: the error of the link. Zero for a dropped packet.
    pub fn lateness_ns(&self) -> u64 {
        self.delivered().map_or(0, |delivered_ns| delivered_ns.saturating_sub(self.due_ns))
    }

    /// The part of its lateness during which the link ran, in nanoseconds.
    pub fn own_lateness_ns(&self) -> u64 {
        self.lateness_ns().saturating_sub(self.stalled_ns)
    }
}

/// The packets taken from the tap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// The packets in the order in which they were delivered or dropped.
    pub packets: Vec<CapturedPacket>,
    /// The number of packets that were not kept because the tap was full.
    pub missed: u64,
}

/// How late the link delivered its packets, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lateness {
    /// Packets counted.
    pub packets: u64,
    /// The median lateness.
    pub p50_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The maximum.
    pub max_ns: u64,
    /// The 99th percentile of [`CapturedPacket::own_lateness_ns`].
    pub own_p99_ns: u64,
    /// Packets more than a millisecond late: shared machines cause this every second or two.
    pub over_1ms: u64,
}

/// The read end of the tap. Clones read the same tap.
#[derive(Debug, Clone)]
pub struct Tap {
    store: Arc<Mutex<Store>>,
}

impl Tap {
    pub(crate) fn new(snap_length: usize, limit_bytes: usize) -> Self {
        let store = Store {
            recording: true,
            snap_length,
            limit_bytes,
            bytes: 0,
            missed: 0,
            chunks: Vec::new(),
            lateness: empty_histogram(),
            own_lateness: empty_histogram(),
        };
        Self { store: Arc::new(Mutex::new(store)) }
    }

    /// Takes all packets delivered or dropped since the last call, and so empties the tap.
    ///
    /// The batch includes every packet that a receiver has got. Packets in transit follow in a later
    /// batch.
    pub fn take(&self) -> Batch {
        // Only pointers move under the lock, so forwarding never waits for long.
        let (chunks, missed) = {
            let mut store = self.lock();
            store.bytes = 0;
            (std::mem::take(&mut store.chunks), std::mem::take(&mut store.missed))
        };
        let mut packets = Vec::with_capacity(chunks.iter().map(Vec::len).sum());
        packets.extend(chunks.into_iter().flatten());
        Batch { packets, missed }
    }

    /// Starts or stops keeping packets. Lateness is counted either way.
    pub fn set_recording(&self, recording: bool) {
        self.lock().recording = recording;
    }

    /// The lateness since the link was built or [`Tap::reset_lateness`] was called.
    pub fn lateness(&self) -> Lateness {
        let (histogram, own) = {
            let store = self.lock();
            (store.lateness.clone(), store.own_lateness.clone())
        };
        let over = histogram.count_between(1_000_001, u64::MAX);
        Lateness {
            packets: histogram.len(),
            p50_ns: histogram.value_at_quantile(0.5),
            p99_ns: histogram.value_at_quantile(0.99),
            max_ns: histogram.max(),
            own_p99_ns: own.value_at_quantile(0.99),
            over_1ms: over,
        }
    }

    /// Resets the lateness.
    pub fn reset_lateness(&self) {
        let mut store = self.lock();
        store.lateness.reset();
        store.own_lateness.reset();
    }

    /// Locks the write end. Held over a delivery, it ensures that a process that has received a packet
    /// also finds it in the tap.
    pub(crate) fn writer(&self) -> TapWriter<'_> {
        TapWriter(self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Exclusive access of the forwarding thread, for one delivery.
pub(crate) struct TapWriter<'a>(MutexGuard<'a, Store>);

impl TapWriter<'_> {
    /// Keeps a packet that was just delivered or dropped.
    pub(crate) fn record(&mut self, mut packet: CapturedPacket) {
        let store = &mut *self.0;
        if packet.dropped_by.is_none() {
            store.lateness.saturating_record(packet.lateness_ns());
            store.own_lateness.saturating_record(packet.own_lateness_ns());
        }
        if !store.recording {
            return;
        }
        let altered = packet.altered.as_mut().map(|altered| &mut altered.frame);
        let mut size = size_of::<CapturedPacket>();
        for frame in [&mut packet.frame].into_iter().chain(altered) {
            if frame.len() > store.snap_length {
                *frame = frame[..store.snap_length].into();
            }
            size += frame.len();
        }
        if store.bytes + size > store.limit_bytes {
            store.missed += 1;
            return;
        }
        store.bytes += size;
        if store.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK_PACKETS) {
            // Chunks instead of one growing vector, which would be copied when it grows.
            store.chunks.push(Vec::with_capacity(CHUNK_PACKETS));
        }
        if let Some(chunk) = store.chunks.last_mut() {
            chunk.push(packet);
        }
    }
}

#[derive(Debug)]
struct Store {
    recording: bool,
    snap_length: usize,
    limit_bytes: usize,
    bytes: usize,
    missed: u64,
    chunks: Vec<Vec<CapturedPacket>>,
    lateness: Histogram<u64>,
    own_lateness: Histogram<u64>,
}

/// Two significant digits from 1 ns to a minute: a few kilobytes.
fn empty_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 2).expect("constant bounds are valid")
}

const CHUNK_PACKETS: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(due_ns: u64, late_ns: u64, length: usize) -> CapturedPacket {
        CapturedPacket {
            path: 0,
            direction: Direction::Up,
            arrival_ns: 0,
            due_ns,
            delivered_ns: due_ns + late_ns,
            stalled_ns: 0,
            dropped_by: None,
            length,
            frame: vec![7; length].into(),
            altered: None,
        }
    }

    #[test]
    fn batches_follow_each_other_without_loss() {
        let tap = Tap::new(65_535, 1 << 20);
        for n in 0..2 * CHUNK_PACKETS as u64 + 3 {
            tap.writer().record(packet(n, 0, 60));
        }
        let first = tap.take();
        tap.writer().record(packet(9_999, 0, 60));
        assert_eq!(first.packets.len(), 2 * CHUNK_PACKETS + 3);
        assert!(first.packets.is_sorted_by_key(|p| p.due_ns));
        assert_eq!(tap.take().packets, [packet(9_999, 0, 60)]);
        assert_eq!(tap.take(), Batch::default());
    }

    #[test]
    fn memory_is_bounded_and_missed_packets_are_counted() {
        let room = 10 * (size_of::<CapturedPacket>() + 100);
        let tap = Tap::new(100, room);
        for n in 0..25 {
            tap.writer().record(packet(n, 0, 1_500));
        }
        let batch = tap.take();
        assert_eq!((batch.packets.len(), batch.missed), (10, 15));
        assert!(batch.packets.iter().all(|p| p.frame.len() == 100 && p.length == 1_500));
        tap.writer().record(packet(0, 0, 1_500));
        assert_eq!(tap.take().packets.len(), 1, "room again after a batch was taken");
    }

    #[test]
    fn altered_frames_count_towards_the_limit() {
        let tap = Tap::new(100, size_of::<CapturedPacket>() + 150);
        let frame = vec![8; 1_500].into();
        let altered = Some(AlteredFrame { by: "strip-tfo", frame });
        tap.writer().record(CapturedPacket { altered, ..packet(0, 0, 60) });
        assert_eq!(tap.take().missed, 1, "60 and 100 bytes do not fit 150");
        let altered = Some(AlteredFrame { by: "strip-tfo", frame: vec![8; 90].into() });
        tap.writer().record(CapturedPacket { altered, ..packet(0, 0, 60) });
        assert_eq!(tap.take().packets.len(), 1);
    }

    #[test]
    fn dropped_packets_are_neither_delivered_nor_late() {
        let tap = Tap::new(100, 1 << 20);
        let dropped = CapturedPacket { dropped_by: Some("loss"), ..packet(5, 2_000_000, 60) };
        assert_eq!((dropped.delivered(), dropped.lateness_ns()), (None, 0));
        assert_eq!(packet(5, 7, 60).delivered(), Some(12));
        tap.writer().record(dropped);
        assert_eq!((tap.lateness().packets, tap.take().packets.len()), (0, 1));
    }

    #[test]
    fn copies_of_a_packet_are_recognised() {
        let original = packet(5, 7, 60);
        assert!(packet(9, 2, 60).is_copy_of(&original));
        assert!(!CapturedPacket { arrival_ns: 1, ..packet(5, 7, 60) }.is_copy_of(&original));
        assert!(!packet(5, 7, 61).is_copy_of(&original));
    }

    #[test]
    fn a_stall_of_the_machine_is_not_the_links_own_lateness() {
        let tap = Tap::new(100, 1 << 20);
        for n in 0..100 {
            tap.writer()
                .record(CapturedPacket { stalled_ns: 2_990_000, ..packet(n, 3_000_000, 60) });
        }
        let lateness = tap.lateness();
        assert!(lateness.p99_ns > 2_900_000, "{lateness:?}");
        assert!((9_900..10_200).contains(&lateness.own_p99_ns), "{lateness:?}");
    }

    #[test]
    fn lateness_is_counted_also_while_not_recording() {
        let tap = Tap::new(100, 1 << 20);
        tap.set_recording(false);
        for n in 0..98 {
            tap.writer().record(packet(n, 20_000, 60));
        }
        tap.writer().record(packet(98, 2_000_000, 60));
        tap.writer().record(packet(99, 3_000_000, 60));
        let lateness = tap.lateness();
        assert_eq!((lateness.packets, lateness.over_1ms), (100, 2));
        assert!((19_800..20_300).contains(&lateness.p50_ns), "{lateness:?}");
        assert!((1_980_000..2_030_000).contains(&lateness.p99_ns), "{lateness:?}");
        assert!(tap.take().packets.is_empty());
        tap.reset_lateness();
        assert_eq!(tap.lateness().packets, 0);
    }
}
