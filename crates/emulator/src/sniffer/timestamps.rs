//! Waits for the kernel's arrival timestamps.

use std::io::{self, IoSliceMut};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use nix::cmsg_space;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;

use crate::{monotonic_ns, unix_offset_ns};

/// Waits until the kernel timestamps packets on arrival, which a socket has requested.
///
/// The setsockopt call returns before the kernel has enabled timestamps. Until then the timestamp of
/// a packet is the time at which it is read, and a round trip may seem shorter than it is. Packets
/// from this process to itself show which timestamps they get; without a loopback interface, this
/// function only waits for a moment.
pub(super) fn await_arrival_timestamps() {
    let started = Instant::now();
    while started.elapsed() < MAX_SETUP {
        match has_arrival_timestamp() {
            Ok(true) => return,
            Ok(false) => {}
            Err(_) => break,
        }
    }
    thread::sleep(USUAL_SETUP);
}

/// Sends a packet to itself, reads it later, and returns whether its timestamp is the arrival time.
fn has_arrival_timestamp() -> io::Result<bool> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
    socket.set_read_timeout(Some(USUAL_SETUP))?;
    socket.send_to(&[0], socket.local_addr()?)?;
    let sent_ns = monotonic_ns() as i64 + unix_offset_ns();
    thread::sleep(READ_DELAY);
    let mut control = cmsg_space!(TimeSpec);
    let (mut byte, flags) = ([0], MsgFlags::empty());
    let mut parts = [IoSliceMut::new(&mut byte)];
    let got = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags)?;
    let stamp_ns = got.cmsgs()?.find_map(|message| match message {
        ControlMessageOwned::ScmTimestampns(time) => {
            Some(time.tv_sec() * 1_000_000_000 + time.tv_nsec())
        }
        _ => None,
    });
    Ok(stamp_ns.is_some_and(|stamp| stamp <= sent_ns))
}

const MAX_SETUP: Duration = Duration::from_secs(2);
const USUAL_SETUP: Duration = Duration::from_millis(50);
const READ_DELAY: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_that_is_read_late_has_the_timestamp_of_its_arrival() {
        let _timestamping_socket = {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            setsockopt(&socket, sockopt::ReceiveTimestampns, &true).unwrap();
            socket
        };
        await_arrival_timestamps();
        for _ in 0..20 {
            assert!(has_arrival_timestamp().unwrap());
        }
    }
}
