//! Ports, where frames enter and leave the link: packet-socket rings and TUN devices.

use std::ffi::c_int;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, send, socket};

use crate::LinkError;
use crate::cells::ETHERNET_HEADER;

/// One side of the link.
pub(crate) trait Port: AsFd + Send + 'static {
    /// Passes the next frame to `take`, with the kernel's timestamp of its arrival in nanoseconds
    /// of Unix time, if there is one. Returns `None` if there is no frame.
    fn receive<R>(&mut self, take: impl FnOnce(&[u8], Option<u64>) -> R) -> Option<R>;

    /// Sends a frame to the receiving kernel.
    fn send(&mut self, frame: &[u8]) -> io::Result<()>;

    /// How many frames were dropped since the last call because the port was full; 0 if the port
    /// does not count them.
    fn take_dropped(&self) -> u64;
}

/// A packet socket on one interface: receives frames by a memory-mapped ring, and sends with
/// `send`. See packet(7) and the kernel's packet_mmap document. It uses version 2 of the ring,
/// because version 3 delivers frames in blocks, after a timeout.
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
        // No protocol yet: no packet may arrive before the ring is set up and the socket is bound.
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Packet, SockType::Raw, flags, None)?;
        let ring = libc::tpacket_req {
            tp_block_size: BLOCK_BYTES as u32,
            tp_block_nr: (RING_BYTES / BLOCK_BYTES) as u32,
            tp_frame_size: SLOT_BYTES as u32,
            tp_frame_nr: SLOTS as u32,
        };
        let version = libc::tpacket_versions::TPACKET_V2 as c_int;
        set_option(&socket, libc::PACKET_VERSION, &version)?;
        set_option(&socket, libc::PACKET_IGNORE_OUTGOING, &1)?;
        set_option(&socket, libc::PACKET_QDISC_BYPASS, &1)?;
        set_option(&socket, libc::PACKET_RX_RING, &ring)?;
        let length = NonZeroUsize::new(RING_BYTES).expect("a ring has a size");
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new shared mapping of the ring that was just made, of exactly its size; it is
        // reached through this value only and unmapped when it is dropped.
        let map = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, &socket, 0)? };
        let ring = Self { socket, map: map.cast(), next: 0 };
        bind(&ring.socket, index)?;
        Ok(ring)
    }

    fn slot(&self) -> NonNull<u8> {
        debug_assert!(self.next < SLOTS);
        // SAFETY: `next` is below SLOTS and blocks hold whole frames, so this is in the mapping.
        unsafe { self.map.add(self.next * SLOT_BYTES) }
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
        let from = usize::from(header.tp_mac).min(SLOT_BYTES);
        let length = (header.tp_snaplen as usize).min(SLOT_BYTES - from);
        // SAFETY: `from + length` is at most SLOT_BYTES, so the bytes lie inside the slot, see above.
        let frame = unsafe { slice::from_raw_parts(start.as_ptr().add(from), length) };
        // A frame that did not fit its slot cannot be forwarded. The caller ignores an empty frame
        // like any other that belongs to no path.
        let whole = header.tp_len == header.tp_snaplen;
        let result = take(if whole { frame } else { &[] }, Some(stamp));
        // Returns the slot to the kernel.
        self.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % SLOTS;
        Some(result)
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        send(self.socket.as_raw_fd(), frame, MsgFlags::MSG_DONTWAIT)?;
        Ok(())
    }

    /// Frames dropped because the ring was full.
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
        let _ = unsafe { munmap(self.map.cast(), RING_BYTES) };
    }
}

/// Binds a packet socket to an interface by its index; 0 means all interfaces.
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

/// Packets dropped by a packet socket since the last call.
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

pub(crate) fn set_option<T>(socket: &OwnedFd, name: c_int, value: &T) -> io::Result<()> {
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

/// Fits a frame of an interface with an MTU of 1,500, with the header of its slot.
const SLOT_BYTES: usize = 2_048;
/// 8 MiB: 30 ms of frames at 1.7 Gbit/s.
const SLOTS: usize = 4_096;
const RING_BYTES: usize = SLOT_BYTES * SLOTS;
const BLOCK_BYTES: usize = 1 << 16;

/// A non-blocking TUN device. See the kernel's tuntap document. Frames get an Ethernet header, so
/// that the tap shows the same with both backends.
pub(crate) struct TunPort {
    device: File,
    /// An Ethernet header, followed by the last packet.
    buffer: Box<[u8; ETHERNET_HEADER + MAX_PACKET_BYTES]>,
}

impl TunPort {
    /// Creates a device in the network namespace of the calling thread. Received frames get a header
    /// with these source and destination addresses.
    pub(crate) fn open(name: &str, from: [u8; 6], to: [u8; 6]) -> Result<Self, LinkError> {
        let device = File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(TUN_DEVICE)
            .map_err(|source| LinkError::Tun { fix: fix(&source), source })?;
        name_device(&device, name)
            .map_err(|e| LinkError::system(format!("make the TUN device {name}"), e))?;
        let mut buffer = Box::new([0; ETHERNET_HEADER + MAX_PACKET_BYTES]);
        buffer[..6].copy_from_slice(&to);
        buffer[6..12].copy_from_slice(&from);
        buffer[12..ETHERNET_HEADER].copy_from_slice(&IPV4);
        Ok(Self { device, buffer })
    }
}

impl Port for TunPort {
    fn receive<R>(&mut self, take: impl FnOnce(&[u8], Option<u64>) -> R) -> Option<R> {
        loop {
            return match self.device.read(&mut self.buffer[ETHERNET_HEADER..]) {
                Ok(length @ 1..) => Some(take(&self.buffer[..ETHERNET_HEADER + length], None)),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // No packet, or the device is down: the poll reports when to read again.
                Ok(0) | Err(_) => None,
            };
        }
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        self.device.write(frame.get(ETHERNET_HEADER..).unwrap_or_default()).map(drop)
    }

    /// Counted by the device instead, see [`tun_dropped`].
    fn take_dropped(&self) -> u64 {
        0
    }
}

impl AsFd for TunPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

/// How many packets a device in the calling thread's network namespace has dropped because its
/// queue towards the link was full.
pub(crate) fn tun_dropped(name: &str) -> u64 {
    let devices = fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    let line = devices.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'));
    // Eight columns of what was received, then bytes, packets, errors and drops of what was sent.
    let column = line.and_then(|line| line.split_whitespace().nth(11));
    column.and_then(|count| count.parse().ok()).unwrap_or(0)
}

fn name_device(device: &File, name: &str) -> io::Result<()> {
    // SAFETY: an all-zero ifreq is valid: plain bytes and a union of plain types.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero; our names are shorter than the field.
    let capacity = request.ifr_name.len() - 1;
    for (slot, byte) in request.ifr_name[..capacity].iter_mut().zip(name.bytes()) {
        *slot = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the kernel reads and writes one live ifreq.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    Errno::result(result).map(drop).map_err(io::Error::from)
}

/// The fix if the device cannot be opened.
pub(crate) fn fix(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::PermissionDenied => {
            "let this user open it (`chmod 0666 /dev/net/tun`, as most distributions have it)"
        }
        ErrorKind::NotFound => {
            "load the driver (`modprobe tun`), or start the container with --device /dev/net/tun"
        }
        _ => "load the driver (`modprobe tun`)",
    }
}

pub(crate) const TUN_DEVICE: &str = "/dev/net/tun";
/// More than the MTU of the interfaces.
const MAX_PACKET_BYTES: usize = 2_048 - ETHERNET_HEADER;
const IPV4: [u8; 2] = [0x08, 0x00];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_open_error_has_a_fix() {
        let fix = |errno: Errno| fix(&io::Error::from(errno));
        assert!(fix(Errno::EACCES).contains("chmod"));
        assert!(fix(Errno::ENOENT).contains("--device"));
        assert!(fix(Errno::ENODEV).contains("modprobe"));
    }

    #[test]
    fn a_missing_device_has_dropped_nothing() {
        assert_eq!(tun_dropped("no such"), 0);
    }
}
