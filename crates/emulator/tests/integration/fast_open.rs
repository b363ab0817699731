//! A TCP client and a server with Fast Open (RFC 7413), and a parser of their SYNs.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};

use etherparse::{SlicedPacket, TransportSlice};
use firstflight_emulator::{CapturedPacket, Direction, Network};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, connect, setsockopt, socket, sockopt,
};

use crate::Outcome;

/// The data that the client sends and the server echoes.
pub(crate) const REQUEST: &[u8] = b"GET / HTTP/1.1\r\n\r\n";

/// The numbers of a SYN or SYN-ACK, and how many bytes of data it carries.
pub(crate) struct Syn {
    pub(crate) sequence: u32,
    pub(crate) acknowledgment: u32,
    pub(crate) data: usize,
}

/// Whether a packet is a SYN or SYN-ACK.
pub(crate) fn is_syn(packet: &CapturedPacket) -> bool {
    let sliced = SlicedPacket::from_ethernet(&packet.frame).expect("a whole frame");
    matches!(sliced.transport, Some(TransportSlice::Tcp(tcp)) if tcp.syn())
}

/// The only SYN among the packets of one direction.
pub(crate) fn syn(packets: &[CapturedPacket], direction: Direction) -> Syn {
    let mut found = Vec::new();
    for packet in packets.iter().filter(|packet| packet.direction == direction) {
        let sliced = SlicedPacket::from_ethernet(&packet.frame).expect("a whole frame");
        let Some(TransportSlice::Tcp(tcp)) = sliced.transport else { continue };
        if tcp.syn() {
            let (sequence, acknowledgment) = (tcp.sequence_number(), tcp.acknowledgment_number());
            found.push(Syn { sequence, acknowledgment, data: tcp.payload().len() });
        }
    }
    assert_eq!(found.len(), 1, "one SYN {direction:?}");
    found.remove(0)
}

/// Sends the request on a new connection (in the SYN if the client has a cookie), and reads its
/// echo.
pub(crate) fn echo(server: Ipv4Addr) {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None).unwrap();
    setsockopt(&socket, sockopt::TcpFastOpenConnect, &true).unwrap();
    let [a, b, c, d] = server.octets();
    connect(socket.as_raw_fd(), &SockaddrIn::new(a, b, c, d, PORT)).unwrap();
    // SAFETY: the descriptor is a TCP socket that nothing else owns any more.
    let mut stream = unsafe { TcpStream::from_raw_fd(socket.into_raw_fd()) };
    stream.write_all(REQUEST).unwrap();
    stream.read_exact(&mut [0; REQUEST.len()]).unwrap();
}

/// Starts a TCP echo with Fast Open on every address of the server.
pub(crate) fn echo_server(network: &Network) -> Outcome {
    let listener = network.server().run(|| TcpListener::bind(("0.0.0.0", PORT)))??;
    let queue: libc::c_int = 64;
    // SAFETY: the kernel reads one live integer.
    let result = unsafe {
        libc::setsockopt(
            listener.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_FASTOPEN,
            (&raw const queue).cast(),
            size_of::<libc::c_int>() as u32,
        )
    };
    nix::errno::Errno::result(result)?;
    network.server().spawn("echo", move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut buffer = [0; 65_536];
                while let Ok(length @ 1..) = stream.read(&mut buffer) {
                    if stream.write_all(&buffer[..length]).is_err() {
                        break;
                    }
                }
            });
        }
    })?;
    Ok(())
}

const PORT: u16 = 7;
