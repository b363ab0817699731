//! A TUN device as one side of the link: IP packets in and out by `read` and `write`.
//!
//! See the kernel's tuntap document. Frames get an Ethernet header in front, so that the tap shows
//! the same with either backend.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use nix::errno::Errno;

use crate::LinkError;
use crate::cells::ETHERNET;
use crate::port::Port;

/// A TUN device, read and written without waiting.
pub(crate) struct TunPort {
    device: File,
    /// Header and room for a packet.
    buffer: Box<[u8; ETHERNET + MAX_PACKET_BYTES]>,
}

impl TunPort {
    /// Makes a device of this name in the network namespace of the calling thread. Frames that come
    /// from it are shown as sent from the first address to the second.
    pub(crate) fn open(name: &str, from: [u8; 6], to: [u8; 6]) -> Result<Self, LinkError> {
        let device = File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(DEVICE)
            .map_err(|source| LinkError::Tun { mend: mend(&source), source })?;
        name_device(&device, name)
            .map_err(|e| LinkError::system(format!("make the TUN device {name}"), e))?;
        let mut buffer = Box::new([0; ETHERNET + MAX_PACKET_BYTES]);
        buffer[..6].copy_from_slice(&to);
        buffer[6..12].copy_from_slice(&from);
        buffer[12..ETHERNET].copy_from_slice(&IPV4);
        Ok(Self { device, buffer })
    }
}

impl Port for TunPort {
    fn receive<R>(&mut self, take: impl FnOnce(&[u8], Option<u64>) -> R) -> Option<R> {
        loop {
            return match self.device.read(&mut self.buffer[ETHERNET..]) {
                Ok(length @ 1..) => Some(take(&self.buffer[..ETHERNET + length], None)),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // Nothing there, or the device is down: the poll says when to look again.
                Ok(0) | Err(_) => None,
            };
        }
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        self.device.write(frame.get(ETHERNET..).unwrap_or_default()).map(drop)
    }

    /// Counted by the device instead, see [`dropped`].
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
pub(crate) fn dropped(name: &str) -> u64 {
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
    let room = request.ifr_name.len() - 1;
    for (slot, byte) in request.ifr_name[..room].iter_mut().zip(name.bytes()) {
        *slot = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the kernel reads and writes one live ifreq.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    Errno::result(result).map(drop).map_err(io::Error::from)
}

/// What to do where the device cannot be opened.
pub(crate) fn mend(error: &io::Error) -> &'static str {
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

pub(crate) const DEVICE: &str = "/dev/net/tun";
/// More than the MTU of our interfaces.
const MAX_PACKET_BYTES: usize = 2_048 - ETHERNET;
const IPV4: [u8; 2] = [0x08, 0x00];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_has_its_mend() {
        let mend = |errno: Errno| mend(&io::Error::from(errno));
        assert!(mend(Errno::EACCES).contains("chmod"));
        assert!(mend(Errno::ENOENT).contains("--device"));
        assert!(mend(Errno::ENODEV).contains("modprobe"));
    }

    #[test]
    fn a_device_that_is_not_there_has_dropped_nothing() {
        assert_eq!(dropped("no such"), 0);
    }
}
