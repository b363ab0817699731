//! The forwarding thread: moves frames from one side's port, through the path's cells, to the
//! other.
//!
//! One thread handles both directions. It sleeps until shortly before the next deadline and spins
//! for the rest. Every deadline is absolute, so one late delivery does not delay the next.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::SigSet;
use nix::sys::time::TimeSpec;

use crate::cells::{CellSpec, MAX_IN_TRANSIT_BYTES};
use crate::chain::{Chains, ProcessedPacket};
use crate::clock::{monotonic_ns, unix_offset_ns};
use crate::path::{Counters, PathCounters};
use crate::path::{Direction, channel_index, classify, path_and_direction};
use crate::port::Port;
use crate::tap::{AlteredFrame, CapturedPacket, LINK_FULL, REFUSED, Tap};
use crate::wake::{Stall, WakeMargin};
use crate::{LinkError, Namespace, wake_promptly};

/// A running forwarding thread. It stops when this is dropped.
#[derive(Debug)]
pub(crate) struct Forwarder {
    commands: Sender<Command>,
    wakeup: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Forwarder {
    /// Starts forwarding between two ports, the client's side and the server's, on a thread in the
    /// link's namespace.
    pub(crate) fn start<P: Port>(
        link: &Namespace,
        ports: [P; 2],
        chains: Chains,
        paths: usize,
        tap: Tap,
    ) -> Result<Self, LinkError> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wakeup =
            EventFd::from_flags(flags).map_err(|e| LinkError::system("wake a thread", e))?;
        let wakeup = Arc::new(wakeup);
        let (commands, received) = channel();
        let engine = ForwardingLoop {
            ports,
            paths,
            chains,
            margin: WakeMargin::new(),
            stall: Stall::default(),
            clock_ns: monotonic_ns(),
            moved_packets: false,
            counters: Counters::default(),
            tap,
            commands: received,
            wakeup: Arc::clone(&wakeup),
        };
        let thread = link.spawn("link forwarder", move || engine.run())?;
        Ok(Self { commands, wakeup, thread: Some(thread) })
    }

    /// Replaces the cells of one path. When it returns, they apply to all packets that arrive.
    pub(crate) fn replace(
        &self,
        path: usize,
        up: Vec<CellSpec>,
        down: Vec<CellSpec>,
    ) -> Result<(), LinkError> {
        self.request(|done| Command::Replace { path, up, down, done })
    }

    pub(crate) fn counters(&self) -> Result<Counters, LinkError> {
        self.request(Command::Count)
    }

    pub(crate) fn path_counters(&self, path: usize) -> Result<PathCounters, LinkError> {
        self.request(|reply| Command::CountPath { path, reply })
    }

    fn request<T>(&self, command: impl FnOnce(SyncSender<T>) -> Command) -> Result<T, LinkError> {
        let (reply, response) = sync_channel(1);
        self.commands.send(command(reply)).map_err(|_| LinkError::ThreadGone("forwarding"))?;
        self.wake();
        response.recv().map_err(|_| LinkError::ThreadGone("forwarding"))
    }

    fn wake(&self) {
        // It fails only if the counter is at its limit, and then the thread wakes anyway.
        let _ = self.wakeup.write(1);
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        // Both fail only if the thread has ended.
        let _ = self.commands.send(Command::Stop);
        self.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

enum Command {
    Replace { path: usize, up: Vec<CellSpec>, down: Vec<CellSpec>, done: SyncSender<()> },
    Count(SyncSender<Counters>),
    CountPath { path: usize, reply: SyncSender<PathCounters> },
    Stop,
}

struct ForwardingLoop<P> {
    /// The client's side, then the server's.
    ports: [P; 2],
    paths: usize,
    chains: Chains,
    margin: WakeMargin,
    stall: Stall,
    /// The time when the clock was last read, and whether packets were moved since then.
    clock_ns: u64,
    moved_packets: bool,
    counters: Counters,
    tap: Tap,
    commands: Receiver<Command>,
    wakeup: Arc<EventFd>,
}

impl<P: Port> ForwardingLoop<P> {
    fn run(mut self) {
        // Signals are for other threads.
        let _ = SigSet::all().thread_block();
        // Refused settings show up in the lateness.
        let _ = wake_promptly();
        while self.run_commands() {
            self.collect();
            self.deliver();
            self.pause();
        }
    }

    /// Executes commands. Returns false to stop.
    fn run_commands(&mut self) -> bool {
        // The sender of a command may be gone, so failed replies are ignored.
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Replace { path, up, down, done } => {
                    // Packets that have already arrived pass the old cells. Bounded by the size of a
                    // ring, because a sender may be faster than this loop.
                    (0..MAX_WAITING / MAX_BATCH).take_while(|_| self.collect()).count();
                    self.chains.replace(path, &up, &down);
                    let _ = done.send(());
                }
                Command::Count(reply) => {
                    self.counters.ring_full +=
                        self.ports.iter().map(Port::take_dropped).sum::<u64>();
                    self.counters.waited_ns = waited_ns();
                    let _ = reply.send(self.counters);
                }
                Command::CountPath { path, reply } => {
                    let counters =
                        |direction| self.chains.counters(channel_index(path, direction)).clone();
                    let (up, down) = (counters(Direction::Up), counters(Direction::Down));
                    let _ = reply.send(PathCounters { up, down });
                }
                Command::Stop => return false,
            }
        }
        true
    }

    /// Moves what has arrived at both ports into the chains. Returns true if there may be more.
    fn collect(&mut self) -> bool {
        let (mut offset, mut more) = (None, false);
        for direction in [Direction::Up, Direction::Down] {
            let port = &mut self.ports[ingress_port(direction)];
            // Bounded, because a sender may be faster than this loop and other packets are due.
            for taken in 1..=MAX_BATCH {
                more |= taken == MAX_BATCH;
                let Some(arrived) = port.receive(|frame, stamp| {
                    let path = classify(frame, direction, self.paths)?;
                    Some((channel_index(path, direction), Box::<[u8]>::from(frame), stamp))
                }) else {
                    break;
                };
                self.moved_packets = true;
                let Some((channel, frame, stamp)) = arrived else {
                    self.counters.unexpected += 1;
                    continue;
                };
                let offset = *offset.get_or_insert_with(unix_offset_ns);
                // Read for each packet, because this thread may have been preempted after the last
                // packet, and this one may have arrived meanwhile.
                let now = monotonic_ns();
                let arrival_ns = stamp.map_or(now, |stamp| arrival(stamp, offset, now));
                if self.chains.bytes() + frame.len() > MAX_IN_TRANSIT_BYTES {
                    self.counters.queue_full += 1;
                    let counted = self.chains.counters_mut(channel);
                    counted.arrived += 1;
                    counted.arrived_bytes += frame.len() as u64;
                    counted.lost += 1;
                    let (due_ns, dropped_by) = (arrival_ns, Some(LINK_FULL));
                    let altered = None;
                    record(
                        &self.tap,
                        ProcessedPacket { channel, arrival_ns, due_ns, frame, altered, dropped_by },
                    );
                    continue;
                }
                self.chains.push(channel, arrival_ns, frame);
            }
        }
        more
    }

    /// Sends what is due, and records what was dropped.
    fn deliver(&mut self) {
        for _ in 0..MAX_BATCH {
            let Some(due) = self.chains.next_due() else {
                return;
            };
            // Read before sending: the receiver's kernel may respond within the call.
            let now = monotonic_ns();
            self.observe_clock(now);
            if due > now {
                return;
            }
            self.moved_packets = true;
            let Some(mut packet) = self.chains.pop(now) else {
                return;
            };
            if packet.dropped_by.is_some() {
                self.counters.dropped += 1;
                record(&self.tap, packet);
                continue;
            }
            let stalled_ns = self.stall.within(packet.due_ns, now);
            let (_, direction) = path_and_direction(packet.channel);
            let frame = packet.altered.as_ref().map_or(&packet.frame, |altered| &altered.1);
            let mut writer = self.tap.writer();
            let sent = self.ports[1 - ingress_port(direction)].send(frame);
            let counted = self.chains.counters_mut(packet.channel);
            if sent.is_ok() {
                self.counters.delivered += 1;
                counted.delivered += 1;
                counted.delivered_bytes += frame.len() as u64;
            } else {
                self.counters.refused += 1;
                counted.lost += 1;
                packet.dropped_by = Some(REFUSED);
            }
            writer.record(CapturedPacket { stalled_ns, ..captured(packet, now) });
        }
    }

    /// Sleeps until shortly before the next deadline, a packet or a command. Returns at once if the
    /// deadline is near, so that the caller's loop spins.
    fn pause(&mut self) {
        let Some(due) = self.chains.next_due() else {
            self.sleep(None);
            self.clock_ns = monotonic_ns();
            return;
        };
        let now = monotonic_ns();
        self.observe_clock(now);
        let remaining = due.saturating_sub(now);
        let margin = self.margin.for_sleep(remaining);
        if remaining <= margin {
            std::hint::spin_loop();
            return;
        }
        let length = remaining - margin;
        let slept = self.sleep(Some(length));
        self.clock_ns = monotonic_ns();
        if slept {
            self.margin.observe(remaining, self.clock_ns.saturating_sub(now + length));
            self.stall.observe(now + length, self.clock_ns);
        }
    }

    /// Records the time. If no packets were moved since the last call, the time in between may be a
    /// stall.
    fn observe_clock(&mut self, now: u64) {
        if !self.moved_packets {
            self.stall.observe(self.clock_ns, now);
        }
        (self.clock_ns, self.moved_packets) = (now, false);
    }

    /// Returns whether the whole time was slept.
    fn sleep(&self, length_ns: Option<u64>) -> bool {
        let mut descriptors = [
            PollFd::new(self.ports[0].as_fd(), PollFlags::POLLIN),
            PollFd::new(self.ports[1].as_fd(), PollFlags::POLLIN),
            PollFd::new(self.wakeup.as_fd(), PollFlags::POLLIN),
        ];
        let limit = length_ns.map(|ns| TimeSpec::from_duration(Duration::from_nanos(ns)));
        match ppoll(&mut descriptors, limit, None) {
            Ok(0) => true,
            Ok(_) => {
                // Resets the event, which usually is not set.
                let _ = self.wakeup.read();
                false
            }
            Err(Errno::EINTR) => false,
            Err(_) => {
                // At worst out of memory: poll again soon instead of spinning on the error.
                std::thread::sleep(Duration::from_micros(100));
                false
            }
        }
    }
}

/// How long this thread has waited for a processor: the second number of its schedstat.
fn waited_ns() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().nth(1)?.parse().ok()
}

/// Records a packet that was not delivered.
fn record(tap: &Tap, packet: ProcessedPacket) {
    tap.writer().record(captured(packet, monotonic_ns()));
}

/// A packet for the tap, delivered or dropped at `now`.
fn captured(packet: ProcessedPacket, now: u64) -> CapturedPacket {
    let (path, direction) = path_and_direction(packet.channel);
    CapturedPacket {
        path,
        direction,
        arrival_ns: packet.arrival_ns,
        due_ns: packet.due_ns,
        delivered_ns: now,
        stalled_ns: 0,
        dropped_by: packet.dropped_by,
        length: packet.frame.len(),
        frame: packet.frame,
        altered: packet.altered.map(|(by, frame)| AlteredFrame { by, frame }),
    }
}

/// The port at which packets of a direction arrive; they leave by the other.
fn ingress_port(direction: Direction) -> usize {
    match direction {
        Direction::Up => 0,
        Direction::Down => 1,
    }
}

/// Converts a kernel timestamp from Unix to monotonic time. An impossible timestamp (the Unix clock
/// was stepped) becomes now.
fn arrival(stamp: u64, offset: i64, now: u64) -> u64 {
    let monotonic = stamp.saturating_add_signed(offset.saturating_neg());
    if (now.saturating_sub(MAX_STALL_NS)..=now).contains(&monotonic) { monotonic } else { now }
}

/// Packets taken from one side, or delivered, before the loop continues.
const MAX_BATCH: usize = 64;
/// The maximum number of packets that wait at a port.
const MAX_WAITING: usize = 4_096;
const MAX_STALL_NS: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::path::{client_address, server_address};

    #[test]
    fn the_waiting_time_of_a_thread_is_read_from_schedstat() {
        assert_eq!(waited_ns().is_some(), std::path::Path::new("/proc/self/schedstat").exists());
    }

    /// Receives two packets, the second of which arrives while the first is handled.
    struct SlowPort {
        fd: EventFd,
        received: u32,
        arrived: Arc<AtomicU64>,
    }

    impl AsFd for SlowPort {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.fd.as_fd()
        }
    }

    impl Port for SlowPort {
        fn receive<R>(&mut self, take: impl FnOnce(&[u8], Option<u64>) -> R) -> Option<R> {
            self.received += 1;
            match self.received {
                1 => {}
                2 => std::thread::sleep(Duration::from_millis(5)),
                _ => return None,
            }
            let arrived = monotonic_ns();
            self.arrived.store(arrived, Ordering::SeqCst);
            let mut frame = vec![0; 34];
            frame[12..14].copy_from_slice(&[0x08, 0x00]);
            frame[26..30].copy_from_slice(&client_address(0).octets());
            frame[30..34].copy_from_slice(&server_address(0).octets());
            Some(take(&frame, Some(arrived.saturating_add_signed(unix_offset_ns()))))
        }

        fn send(&mut self, _: &[u8]) -> std::io::Result<()> {
            Ok(())
        }

        fn take_dropped(&self) -> u64 {
            0
        }
    }

    /// A loop whose first port gets two packets of path 0.
    fn engine(chains: Chains, arrived: &Arc<AtomicU64>) -> ForwardingLoop<SlowPort> {
        let port =
            |received| SlowPort { fd: EventFd::new().unwrap(), received, arrived: arrived.clone() };
        ForwardingLoop {
            ports: [port(0), port(2)],
            paths: 1,
            chains,
            margin: WakeMargin::new(),
            stall: Stall::default(),
            clock_ns: monotonic_ns(),
            moved_packets: false,
            counters: Counters::default(),
            tap: Tap::new(64, 1 << 10),
            commands: channel().1,
            wakeup: Arc::new(EventFd::new().unwrap()),
        }
    }

    #[test]
    fn packets_beyond_the_limit_of_the_link_count_as_arrived_and_lost() {
        let mut chains = Chains::new(&[(&[], &[])], 1);
        chains.push(0, monotonic_ns(), vec![0; MAX_IN_TRANSIT_BYTES].into());
        let mut engine = engine(chains, &Arc::default());
        engine.collect();
        let counted = engine.chains.counters(0);
        assert_eq!((counted.arrived, counted.lost), (3, 2));
        assert_eq!(counted.arrived_bytes, MAX_IN_TRANSIT_BYTES as u64 + 2 * 34);
        assert_eq!(engine.counters.queue_full, 2);
    }

    #[test]
    fn a_packet_that_arrives_during_a_batch_keeps_its_arrival_time() {
        let arrived = Arc::new(AtomicU64::new(0));
        let mut engine = engine(Chains::new(&[(&[], &[])], 1), &arrived);
        engine.collect();
        let packets = [(); 2].map(|()| engine.chains.pop(u64::MAX).unwrap().arrival_ns);
        // The clocks are compared with an error of microseconds.
        assert!(packets[1] + 1_000_000 > arrived.load(Ordering::SeqCst), "{packets:?}");
    }

    #[test]
    fn timestamps_become_monotonic_and_impossible_ones_become_now() {
        let (offset, now) = (1_000_000_000_000, 50_000_000_000);
        assert_eq!(arrival(1_049_999_990_000, offset, now), 49_999_990_000);
        assert_eq!(arrival(1_050_000_000_001, offset, now), now, "from the future");
        assert_eq!(arrival(1_048_000_000_000, offset, now), now, "before the longest stall");
        assert_eq!(arrival(0, offset, now), now);
        assert_eq!(arrival(0, i64::MIN, now), now);
    }
}
