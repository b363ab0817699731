//! A packet socket on one interface: frames in by a memory-mapped ring, frames out by `send`.
//!
//! See packet(7) and the kernel's packet_mmap document. Version 2 of the ring, since version 3
//! hands frames over in blocks, after a timeout.

use std::ffi::c_int;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, send, socket};

use crate::LinkError;
use crate::port::Port;

/// The ring of one interface.
pub(crate) struct PacketRing {
    socket: OwnedFd,
    map: NonNull<u8>,
    next: usize,
}

// SAFETY: the mapping belongs to this value alone and is not tied to the thread that made it.
unsafe impl Send for PacketRing {}

impl PacketRing {
    /// Opens a ring on an interface in the network namespace of the calling thread.
    pub(crate) fn open(interface: &str) -> Result<Self, LinkError> {
        Self::open_on(interface)
            .map_err(|e| LinkError::system(format!("open a packet ring on {interface}"), e))
    }

    fn open_on(interface: &str) -> io::Result<Self> {
        let index = if_nametoindex(interface)?;
        // No protocol yet: nothing arrives before the ring stands and the socket is bound.
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Packet, SockType::Raw, flags, None)?;
        let ring = libc::tpacket_req {
            tp_block_size: BLOCK as u32,
            tp_block_nr: (RING / BLOCK) as u32,
            tp_frame_size: FRAME as u32,
            tp_frame_nr: FRAMES as u32,
        };
        let version = libc::tpacket_versions::TPACKET_V2 as c_int;
        set_option(&socket, libc::PACKET_VERSION, &version)?;
        set_option(&socket, libc::PACKET_IGNORE_OUTGOING, &1)?;
        set_option(&socket, libc::PACKET_QDISC_BYPASS, &1)?;
        set_option(&socket, libc::PACKET_RX_RING, &ring)?;
        let length = NonZeroUsize::new(RING).expect("a ring has a size");
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new shared mapping of the ring that was just made, of exactly its size; it is
        // reached through this value only and unmapped when it is dropped.
        let map = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, &socket, 0)? };
        let ring = Self { socket, map: map.cast(), next: 0 };
        bind(&ring.socket, index)?;
        Ok(ring)
    }

    fn slot(&self) -> NonNull<u8> {
        debug_assert!(self.next < FRAMES);
        // SAFETY: `next` is below FRAMES and blocks hold whole frames, so this is in the mapping.
        unsafe { self.map.add(self.next * FRAME) }
    }

    fn status(&self) -> &AtomicU32 {
        // SAFETY: `tp_status` is the first field of the slot's header, aligned for a u32, and is
        // shared with the kernel, hence atomic.
        unsafe { AtomicU32::from_ptr(self.slot().as_ptr().cast()) }
    }
}

impl Port for PacketRing {
    fn receive<R>(&mut self, take: impl FnOnce(&[u8], Option<u64>) -> R) -> Option<R> {
        let status = self.status();
        if status.load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return None;
        }
        let start = self.slot();
        // SAFETY: the kernel gave this slot to us (the acquiring load above) and writes nothing to
        // it until the releasing store below; a slot starts with a header, suitably aligned.
        let header = unsafe { start.cast::<libc::tpacket2_hdr>().as_ref() };
        let stamp = u64::from(header.tp_sec) * 1_000_000_000 + u64::from(header.tp_nsec);
        let from = usize::from(header.tp_mac).min(FRAME);
        let length = (header.tp_snaplen as usize).min(FRAME - from);
        // SAFETY: `from + length` is at most FRAME, so the bytes lie inside the slot, see above.
        let frame = unsafe { slice::from_raw_parts(start.as_ptr().add(from), length) };
        // A frame that did not fit its slot cannot be forwarded as it was: an empty one is told
        // apart by the caller as any other that is no path's.
        let whole = header.tp_len == header.tp_snaplen;
        let result = take(if whole { frame } else { &[] }, Some(stamp));
        // Its place goes back to the kernel.
        self.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % FRAMES;
        Some(result)
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        send(self.socket.as_raw_fd(), frame, MsgFlags::MSG_DONTWAIT)?;
        Ok(())
    }

    /// Those that found the ring full.
    fn take_dropped(&self) -> u64 {
        take_dropped(&self.socket)
    }
}

impl AsFd for PacketRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for PacketRing {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `open_on`, not used after this. Failure leaves it mapped
        // until the process ends, which harms nobody.
        let _ = unsafe { munmap(self.map.cast(), RING) };
    }
}

/// Lets a packet socket receive whatever passes an interface, by its index; 0 is all of them.
pub(crate) fn bind(socket: &OwnedFd, index: u32) -> io::Result<()> {
    // SAFETY: an all-zero sockaddr_ll is valid: integers and bytes.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index as i32;
    let length = size_of::<libc::sockaddr_ll>() as u32;
    // SAFETY: the kernel reads `length` bytes from a live sockaddr_ll.
    let result = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    Errno::result(result).map(drop).map_err(io::Error::from)
}

/// Packets that found no room in a packet socket since the last call.
pub(crate) fn take_dropped(socket: &OwnedFd) -> u64 {
    let mut counts = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let mut length = size_of::<libc::tpacket_stats>() as u32;
    // SAFETY: the kernel writes at most `length` bytes into a live tpacket_stats.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            (&raw mut counts).cast(),
            &mut length,
        )
    };
    if result == 0 { u64::from(counts.tp_drops) } else { 0 }
}

fn set_option<T>(socket: &OwnedFd, name: c_int, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as u32;
    // SAFETY: the kernel reads `length` bytes from a live value of plain integers.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            name,
            std::ptr::from_ref(value).cast(),
            length,
        )
    };
    Errno::result(result).map(drop).map_err(io::Error::from)
}

/// Room for one frame of an interface with an MTU of 1,500 and its header.
const FRAME: usize = 2_048;
/// 8 MiB: 30 ms of frames at 1.7 Gbit/s.
const FRAMES: usize = 4_096;
const RING: usize = FRAME * FRAMES;
const BLOCK: usize = 1 << 16;
