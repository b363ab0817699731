//! Captures this process's connections to one server, at the client's end.

mod filter;
mod segments;
mod timestamps;

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, LinkAddr, MsgFlags, SockFlag, SockType, recvmsg,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeSpec;

use crate::path::Direction;
use crate::port::{bind, set_option, take_dropped};
use crate::{Batch, CapturedPacket, LinkError, Tap, unix_offset_ns};

/// Captures the packets between this network namespace and one server over one protocol, each once
/// and with the kernel's timestamp, until it is dropped.
///
/// It captures the packets between the kernel and its network devices. Where these split and merge
/// TCP segments themselves (TSO, GRO), a packet may be longer than the path's MTU. UDP datagrams that
/// the kernel has merged are split again. Before Linux 6.2 the kernel withholds merged datagrams,
/// which then count as missed. Requires only CAP_NET_RAW.
#[derive(Debug)]
pub struct Sniffer {
    reader: Arc<Mutex<Reader>>,
    tap: Tap,
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Sniffer {
    /// Opens a packet socket in the network namespace of the calling thread. At most `limit_bytes`
    /// are kept between two calls of [`Sniffer::take`].
    ///
    /// # Errors
    /// [`LinkError::CaptureRefused`] if this process may not capture, else [`LinkError::System`].
    pub fn open(
        server: SocketAddr,
        protocol: SniffedProtocol,
        limit_bytes: usize,
    ) -> Result<Self, LinkError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::PermissionDenied => LinkError::CaptureRefused { source },
            _ => LinkError::system("capture packets", source),
        };
        let tap = Tap::new(MAX_FRAME_BYTES, limit_bytes);
        let socket = open_socket(server, protocol).map_err(failed)?;
        timestamps::await_arrival_timestamps();
        let server = server.ip();
        let reader =
            Reader { socket, protocol, server, interface: None, tap: tap.clone(), refused: 0 };
        let reader = Arc::new(Mutex::new(reader));
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let stop = EventFd::from_flags(flags).map_err(|errno| failed(errno.into()))?;
        let stop = Arc::new(stop);
        let thread = {
            let (reader, stop) = (reader.clone(), stop.clone());
            let builder = thread::Builder::new().name("sniffer".to_owned());
            builder.spawn(move || watch(&reader, &stop)).map_err(failed)?
        };
        Ok(Self { reader, tap, stop, thread: Some(thread) })
    }

    /// Takes all packets captured since the last call, in order, including everything that a socket
    /// of this process has received by now. [`Batch::missed`] counts dropped packets, here or in
    /// the kernel.
    ///
    /// All have path 0, and the kernel's timestamp as arrival, due and delivery time.
    pub fn take(&self) -> Batch {
        let mut reader = lock(&self.reader);
        reader.drain();
        let mut batch = self.tap.take();
        batch.missed += take_dropped(&reader.socket) + std::mem::take(&mut reader.refused);
        batch
    }
}

impl Drop for Sniffer {
    fn drop(&mut self) {
        let stopped = self.stop.write(1).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| stopped) {
            let _ = thread.join();
        }
    }
}

/// The protocol of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SniffedProtocol {
    /// TCP.
    Tcp,
    /// UDP, and so QUIC.
    Udp,
}

/// The socket and the state of the capture.
#[derive(Debug)]
struct Reader {
    socket: OwnedFd,
    protocol: SniffedProtocol,
    server: IpAddr,
    /// The interface of the first packet. A packet passes several if one is built on another
    /// (VLANs, bonds), and counts at the uppermost, which sees leaving packets first.
    interface: Option<usize>,
    tap: Tap,
    /// Packets that the kernel withheld.
    refused: u64,
}

impl Reader {
    /// Moves packets from the kernel to the tap.
    fn drain(&mut self) {
        let offset = unix_offset_ns();
        let mut buffer = vec![0; MAX_FRAME_BYTES + segments::HEADER_BYTES];
        while let Some((length, stamp, from)) = self.receive(&mut buffer) {
            let received = &buffer[..length.min(buffer.len())];
            let direction = match from.pkttype() == libc::PACKET_OUTGOING {
                true => Direction::Up,
                false => Direction::Down,
            };
            if direction == Direction::Up {
                self.interface.get_or_insert(from.ifindex());
            }
            if self.interface != Some(from.ifindex()) {
                continue;
            }
            let at = stamp.saturating_sub(offset).max(0) as u64;
            let packets = match self.protocol {
                SniffedProtocol::Tcp => vec![received.to_vec()],
                SniffedProtocol::Udp => segments::datagrams(received, link_header(&from)),
            };
            for packet in packets {
                let frame = self.frame(&packet);
                self.tap.writer().record(CapturedPacket {
                    path: 0,
                    direction,
                    arrival_ns: at,
                    due_ns: at,
                    delivered_ns: at,
                    stalled_ns: 0,
                    dropped_by: None,
                    length: frame.len(),
                    frame: frame.into(),
                    altered: None,
                });
            }
        }
    }

    /// An Ethernet frame with an IP packet. Not all interfaces have such a header, but readers of
    /// the capture expect one.
    fn frame(&self, packet: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; ETHERNET_HEADER];
        frame[12..].copy_from_slice(match self.server {
            IpAddr::V4(_) => &[0x08, 0x00],
            IpAddr::V6(_) => &[0x86, 0xdd],
        });
        frame.extend_from_slice(&packet[..packet.len().min(MAX_FRAME_BYTES - ETHERNET_HEADER)]);
        frame
    }

    /// A packet's length, its timestamp in Unix nanoseconds, and its interface.
    fn receive(&mut self, buffer: &mut [u8]) -> Option<(usize, i64, LinkAddr)> {
        let mut control = cmsg_space!(TimeSpec);
        let mut parts = [IoSliceMut::new(buffer)];
        let socket = self.socket.as_raw_fd();
        for _ in 0..MAX_REFUSED {
            let result =
                recvmsg::<LinkAddr>(socket, &mut parts, Some(&mut control), MsgFlags::MSG_DONTWAIT);
            let received = match result {
                Ok(received) => received,
                // A device that goes down is reported once; the other devices continue.
                Err(Errno::EINTR | Errno::ENETDOWN) => continue,
                // Before Linux 6.2: merged datagrams, which the kernel has removed from the queue.
                Err(Errno::EINVAL) => {
                    self.refused += 1;
                    continue;
                }
                Err(_) => return None,
            };
            let stamp =
                received.cmsgs().ok().into_iter().flatten().find_map(|message| match message {
                    ControlMessageOwned::ScmTimestampns(time) => {
                        Some(time.tv_sec() * 1_000_000_000 + time.tv_nsec())
                    }
                    _ => None,
                });
            if let (Some(stamp), Some(from)) = (stamp, received.address) {
                return Some((received.bytes, stamp, from));
            }
        }
        None
    }
}

/// The length of the header in front of a packet's IP header on its interface.
fn link_header(from: &LinkAddr) -> usize {
    match from.hatype() {
        libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => ETHERNET_HEADER,
        _ => 0,
    }
}

/// Empties the socket whenever it is readable, so that its buffer does not overflow.
fn watch(reader: &Mutex<Reader>, stop: &EventFd) {
    let Ok(socket) = lock(reader).socket.try_clone() else { return };
    loop {
        let mut ready = [
            PollFd::new(socket.as_fd(), PollFlags::POLLIN),
            PollFd::new(stop.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut ready, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return,
        }
        if ready[1].any().unwrap_or(true) {
            return;
        }
        lock(reader).drain();
    }
}

fn lock(reader: &Mutex<Reader>) -> std::sync::MutexGuard<'_, Reader> {
    reader.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open_socket(server: SocketAddr, protocol: SniffedProtocol) -> io::Result<OwnedFd> {
    // No protocol yet: no packet may arrive before the filter is set.
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let kind = match protocol {
        SniffedProtocol::Tcp => SockType::Datagram,
        // The kernel reports the length of merged datagrams only together with the link header.
        SniffedProtocol::Udp => SockType::Raw,
    };
    let socket = socket(AddressFamily::Packet, kind, flags, None)?;
    attach(&socket, &filter::program(server, protocol, MAX_FRAME_BYTES as u32))?;
    if protocol == SniffedProtocol::Udp {
        set_option(&socket, libc::PACKET_VNET_HDR, &1)?;
    }
    setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
    // Beyond the system's limit if permitted (CAP_NET_ADMIN), else up to it.
    if setsockopt(&socket, sockopt::RcvBufForce, &BUFFER_BYTES).is_err() {
        setsockopt(&socket, sockopt::RcvBuf, &BUFFER_BYTES)?;
    }
    bind(&socket, ALL_INTERFACES)?;
    Ok(socket)
}

fn attach(socket: &OwnedFd, program: &[libc::sock_filter]) -> io::Result<()> {
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        // The kernel only reads it.
        filter: program.as_ptr().cast_mut(),
    };
    let length = size_of::<libc::sock_fprog>() as u32;
    // SAFETY: the kernel reads `length` bytes from a live sock_fprog and copies the `len`
    // instructions that it points to, which live until the call returns.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const filter).cast(),
            length,
        )
    };
    Errno::result(result).map(drop).map_err(io::Error::from)
}

const ALL_INTERFACES: u32 = 0;
const ETHERNET_HEADER: usize = 14;
/// Segmentation offload merges at most into an IP packet of 65,535 bytes.
const MAX_FRAME_BYTES: usize = ETHERNET_HEADER + (1 << 16);
const BUFFER_BYTES: usize = 16 << 20;
/// How many packets without a result one call skips.
const MAX_REFUSED: usize = 1 << 14;
