//! The forwarding thread: frames from one side's ring, through the delay cell, to the other side.
//!
//! One thread for both directions. It sleeps until a little before the next deadline and spins the
//! rest; every deadline is absolute, so one late delivery does not shift the next.

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

use crate::clock::{monotonic_ns, unix_offset_ns};
use crate::delay::DelayCell;
use crate::margin::WakeMargin;
use crate::path::{Direction, classify, lane, of_lane};
use crate::ring::PacketRing;
use crate::tap::{CapturedPacket, Tap};
use crate::{LinkError, Namespace};

/// What the link did with the frames that it met.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Delivered to the other side.
    pub delivered: u64,
    /// Not IPv4 between the two addresses of a path, hence not forwarded.
    pub foreign: u64,
    /// Lost because the forwarding thread was too slow and a ring ran full.
    pub ring_full: u64,
    /// Lost because too many bytes were under way.
    pub queue_full: u64,
    /// Refused by the receiving interface.
    pub refused: u64,
}

/// A running forwarding thread; dropped, it stops.
#[derive(Debug)]
pub(crate) struct Forwarder {
    commands: Sender<Command>,
    bell: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Forwarder {
    /// Starts forwarding between two interfaces of the link's namespace.
    ///
    /// `delays_ns` holds one delay for each lane, see [`lane`].
    pub(crate) fn start(
        link: &Namespace,
        client_side: &'static str,
        server_side: &'static str,
        delays_ns: Vec<u64>,
        tap: Tap,
    ) -> Result<Self, LinkError> {
        let rings = link.run(|| -> Result<_, LinkError> {
            Ok([PacketRing::open(client_side)?, PacketRing::open(server_side)?])
        })??;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let bell = EventFd::from_flags(flags).map_err(|e| LinkError::system("wake a thread", e))?;
        let bell = Arc::new(bell);
        let (commands, received) = channel();
        let engine = Engine {
            rings,
            paths: delays_ns.len() / 2,
            cell: DelayCell::new(delays_ns),
            queued_bytes: 0,
            margin: WakeMargin::new(),
            counters: Counters::default(),
            tap,
            commands: received,
            bell: Arc::clone(&bell),
        };
        let thread = link.spawn("link forwarder", move || engine.run())?;
        Ok(Self { commands, bell, thread: Some(thread) })
    }

    /// Changes the delay of one path; on return it holds for all packets that arrive.
    pub(crate) fn set_delay(&self, path: usize, up: u64, down: u64) -> Result<(), LinkError> {
        self.ask(|done| Command::SetDelay { path, up, down, done })
    }

    pub(crate) fn counters(&self) -> Result<Counters, LinkError> {
        self.ask(Command::Count)
    }

    fn ask<T>(&self, command: impl FnOnce(SyncSender<T>) -> Command) -> Result<T, LinkError> {
        let (reply, answer) = sync_channel(1);
        self.commands.send(command(reply)).map_err(|_| LinkError::ThreadGone("forwarding"))?;
        self.ring_bell();
        answer.recv().map_err(|_| LinkError::ThreadGone("forwarding"))
    }

    fn ring_bell(&self) {
        // It fails only when the counter is at its limit, and then it rings already.
        let _ = self.bell.write(1);
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        // Either fails only if the thread has ended already.
        let _ = self.commands.send(Command::Stop);
        self.ring_bell();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

enum Command {
    SetDelay { path: usize, up: u64, down: u64, done: SyncSender<()> },
    Count(SyncSender<Counters>),
    Stop,
}

struct Engine {
    /// The client's side, then the server's.
    rings: [PacketRing; 2],
    paths: usize,
    cell: DelayCell<Underway>,
    queued_bytes: usize,
    margin: WakeMargin,
    counters: Counters,
    tap: Tap,
    commands: Receiver<Command>,
    bell: Arc<EventFd>,
}

struct Underway {
    arrival_ns: u64,
    frame: Box<[u8]>,
}

impl Engine {
    fn run(mut self) {
        prepare_thread();
        while self.obey() {
            self.collect();
            self.deliver();
            self.pause();
        }
    }

    /// Carries out what was asked; false means stop.
    fn obey(&mut self) -> bool {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::SetDelay { path, up, down, done } => {
                    // What has arrived before still gets the delay from before.
                    self.collect();
                    self.cell.set_delay(lane(path, Direction::Up), up);
                    self.cell.set_delay(lane(path, Direction::Down), down);
                    // The asker may have gone, which changes nothing.
                    let _ = done.send(());
                }
                Command::Count(reply) => {
                    self.counters.ring_full +=
                        self.rings.iter().map(PacketRing::take_dropped).sum::<u64>();
                    let _ = reply.send(self.counters);
                }
                Command::Stop => return false,
            }
        }
        true
    }

    /// Empties both rings into the delay cell.
    fn collect(&mut self) {
        let mut clocks = None;
        for direction in [Direction::Up, Direction::Down] {
            let ring = &mut self.rings[entrance(direction)];
            while let Some(arrived) = ring.receive(|frame, stamp| {
                let path = classify(frame, direction, self.paths)?;
                Some((path, Box::<[u8]>::from(frame), stamp))
            }) {
                let Some((path, frame, stamp)) = arrived else {
                    self.counters.foreign += 1;
                    continue;
                };
                if self.queued_bytes + frame.len() > QUEUE_LIMIT {
                    self.counters.queue_full += 1;
                    continue;
                }
                let (now, offset) =
                    *clocks.get_or_insert_with(|| (monotonic_ns(), unix_offset_ns()));
                let arrival_ns = arrival(stamp, offset, now);
                self.queued_bytes += frame.len();
                self.cell.push(lane(path, direction), arrival_ns, Underway { arrival_ns, frame });
            }
        }
    }

    /// Sends all that is due.
    fn deliver(&mut self) {
        while let Some(due) = self.cell.next_due() {
            // Read before sending: the receiver's kernel may answer within the call.
            let now = monotonic_ns();
            if due > now {
                return;
            }
            let Some(departure) = self.cell.pop(now) else {
                return;
            };
            let (path, direction) = of_lane(departure.lane);
            let Underway { arrival_ns, frame } = departure.item;
            self.queued_bytes -= frame.len();
            let mut recorder = self.tap.recorder();
            if self.rings[1 - entrance(direction)].send(&frame).is_err() {
                self.counters.refused += 1;
                continue;
            }
            self.counters.delivered += 1;
            recorder.record(CapturedPacket {
                path,
                direction,
                arrival_ns,
                due_ns: departure.due_ns,
                delivered_ns: now,
                length: frame.len(),
                frame,
            });
        }
    }

    /// Sleeps until shortly before the next deadline, a packet or a command; returns at once when
    /// the deadline is near, so that the caller's loop is the spin.
    fn pause(&mut self) {
        let Some(due) = self.cell.next_due() else {
            self.sleep(None);
            return;
        };
        let now = monotonic_ns();
        let remaining = due.saturating_sub(now);
        let margin = self.margin.for_sleep(remaining);
        if remaining <= margin {
            std::hint::spin_loop();
            return;
        }
        let length = remaining - margin;
        if self.sleep(Some(length)) {
            let late = monotonic_ns().saturating_sub(now + length);
            self.margin.observe(remaining, late);
        }
    }

    /// Whether the whole time was slept.
    fn sleep(&self, length_ns: Option<u64>) -> bool {
        let mut descriptors = [
            PollFd::new(self.rings[0].as_fd(), PollFlags::POLLIN),
            PollFd::new(self.rings[1].as_fd(), PollFlags::POLLIN),
            PollFd::new(self.bell.as_fd(), PollFlags::POLLIN),
        ];
        let limit = length_ns.map(|ns| TimeSpec::from_duration(Duration::from_nanos(ns)));
        match ppoll(&mut descriptors, limit, None) {
            Ok(0) => true,
            Ok(_) => {
                // Not ready is the usual case; the bell only has to be silent again.
                let _ = self.bell.read();
                false
            }
            Err(Errno::EINTR) => false,
            Err(_) => {
                // Out of memory at worst: look again soon instead of spinning on the error.
                std::thread::sleep(Duration::from_micros(100));
                false
            }
        }
    }
}

/// The ring at which packets of a direction enter; they leave by the other.
fn entrance(direction: Direction) -> usize {
    match direction {
        Direction::Up => 0,
        Direction::Down => 1,
    }
}

/// The monotonic time of a kernel stamp in Unix time. A stamp that cannot be (the Unix clock was
/// stepped meanwhile) counts as now.
fn arrival(stamp: u64, offset: i64, now: u64) -> u64 {
    let monotonic = stamp.saturating_add_signed(offset.saturating_neg());
    if (now.saturating_sub(LONGEST_STALL_NS)..=now).contains(&monotonic) { monotonic } else { now }
}

/// Makes the calling thread wake as exactly as the machine allows; what is refused is left.
fn prepare_thread() {
    // Interrupts are for the threads that wait for them.
    let _ = SigSet::all().thread_block();
    // SAFETY: prctl with two plain numbers, for this thread alone.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
    // A short slice gives an early virtual deadline, so that waking preempts others (Linux 6.12).
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 100_000,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel reads `size` bytes from a live sched_attr; pid 0 is this thread.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

/// 200 ms at 2.6 Gbit/s, more than the link forwards.
const QUEUE_LIMIT: usize = 64 << 20;
const LONGEST_STALL_NS: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_become_monotonic_and_impossible_ones_become_now() {
        let (offset, now) = (1_000_000_000_000, 50_000_000_000);
        assert_eq!(arrival(1_049_999_990_000, offset, now), 49_999_990_000);
        assert_eq!(arrival(1_050_000_000_001, offset, now), now, "from the future");
        assert_eq!(arrival(1_048_000_000_000, offset, now), now, "before the longest stall");
        assert_eq!(arrival(0, offset, now), now);
        assert_eq!(arrival(0, i64::MIN, now), now);
    }
}
