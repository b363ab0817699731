//! Offloads of an interface, by the ethtool ioctl.
//!
//! Between two veth ends the kernel passes 64 KiB segments without checksums; a packet socket in
//! the middle would see packets that no wire carries.

use std::io;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::LinkError;

/// Switches checksum, segmentation and receive offloads of an interface off, in the network
/// namespace of the calling thread.
pub(crate) fn switch_off(interface: &str) -> Result<(), LinkError> {
    let step = || format!("switch the offloads of {interface} off");
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)
        .map_err(|e| LinkError::system(step(), e))?;
    for command in OFFLOADS {
        set(&socket, interface, command, 0).map_err(|e| LinkError::system(step(), e))?;
    }
    Ok(())
}

fn set(socket: &impl AsRawFd, interface: &str, command: u32, data: u32) -> io::Result<()> {
    let mut value = Value { command, data };
    // SAFETY: an all-zero ifreq is valid: plain bytes and a union of plain types.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero; our names are shorter than the field.
    let room = request.ifr_name.len() - 1;
    for (slot, byte) in request.ifr_name[..room].iter_mut().zip(interface.bytes()) {
        *slot = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the kernel reads a terminated name and an `ethtool_value` from memory that outlives
    // the call, and writes nothing beyond it for the "set" commands.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &mut request) };
    Errno::result(result).map(drop).map_err(io::Error::from)
}

/// `struct ethtool_value` of linux/ethtool.h.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// ETHTOOL_STXCSUM, STSO, SGSO, SGRO of linux/ethtool.h. Segmentation goes before checksums, on
/// which it depends.
const OFFLOADS: [u32; 4] = [0x1f, 0x24, 0x2c, 0x17];
