//! A classic BPF program that accepts the packets of one server, each once (see packet(7), and the
//! kernel's document on socket filters).

use std::net::{IpAddr, SocketAddr};

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_H, BPF_IND, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD,
    BPF_LDX, BPF_MSH, BPF_RET, BPF_W, sock_filter,
};

use super::SniffedProtocol;

/// Accepts the packets of a protocol to and from this server, cut to `snap_length`. On loopback each
/// packet is captured twice, leaving and arriving: only the leaving copy of the client's packets is
/// accepted, and only the arriving copy of the server's. Offsets are from the IP header, whatever is
/// in front of it.
pub(super) fn program(
    server: SocketAddr,
    protocol: SniffedProtocol,
    snap_length: u32,
) -> Vec<sock_filter> {
    let leaving = block(server, protocol, 1, snap_length);
    let arriving = block(server, protocol, 0, snap_length);
    let skip = u8::try_from(leaving.len()).expect("a block has a few dozen instructions");
    let mut program = vec![
        load(BPF_W | BPF_ABS, (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32),
        jump(BPF_JEQ, u32::from(libc::PACKET_OUTGOING), 0, skip),
    ];
    program.extend(leaving);
    program.extend(arriving);
    program
}

/// The checks for one direction: the server is the source (`end` 0) or the destination (1).
fn block(
    server: SocketAddr,
    protocol: SniffedProtocol,
    end: u32,
    snap_length: u32,
) -> Vec<sock_filter> {
    let port = u32::from(server.port());
    let number = match protocol {
        SniffedProtocol::Tcp => libc::IPPROTO_TCP as u32,
        SniffedProtocol::Udp => libc::IPPROTO_UDP as u32,
    };
    // Each instruction with the outcome that a test must have, or `None` if it is not a test.
    let mut checks = vec![(load(BPF_B | BPF_ABS, ip(0)), None), (and(0xf0), None)];
    match server.ip() {
        IpAddr::V4(address) => checks.extend([
            (equal(0x40), Some(true)),
            (load(BPF_B | BPF_ABS, ip(9)), None),
            (equal(number), Some(true)),
            (load(BPF_H | BPF_ABS, ip(6)), None),
            (jump(BPF_JSET, FRAGMENT_OFFSET, 0, 0), Some(false)),
            (load(BPF_W | BPF_ABS, ip(12 + 4 * end)), None),
            (equal(address.to_bits()), Some(true)),
            (instruction(BPF_LDX | BPF_B | BPF_MSH, ip(0)), None),
            (load(BPF_H | BPF_IND, ip(2 * end)), None),
        ]),
        IpAddr::V6(address) => {
            checks.extend([
                (equal(0x60), Some(true)),
                (load(BPF_B | BPF_ABS, ip(6)), None),
                (equal(number), Some(true)),
            ]);
            for (index, bytes) in (0..).zip(address.octets().chunks_exact(4)) {
                let word = bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
                checks.push((load(BPF_W | BPF_ABS, ip(8 + 16 * end + 4 * index)), None));
                checks.push((equal(word), Some(true)));
            }
            checks.push((load(BPF_H | BPF_ABS, ip(40 + 2 * end)), None));
        }
    }
    checks.push((equal(port), Some(true)));
    // After the checks: accept, then reject.
    let reject = checks.len() + 1;
    let resolved = checks.into_iter().enumerate().map(|(index, (instruction, expected))| {
        let distance = (reject - index - 1) as u8;
        match expected {
            None => instruction,
            Some(true) => sock_filter { jf: distance, ..instruction },
            Some(false) => sock_filter { jt: distance, ..instruction },
        }
    });
    resolved.chain([instruction(BPF_RET, snap_length), instruction(BPF_RET, 0)]).collect()
}

fn equal(value: u32) -> sock_filter {
    jump(BPF_JEQ, value, 0, 0)
}

fn load(how: u32, offset: u32) -> sock_filter {
    instruction(BPF_LD | how, offset)
}

fn and(mask: u32) -> sock_filter {
    instruction(BPF_ALU | BPF_AND | BPF_K, mask)
}

fn jump(test: u32, value: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: (BPF_JMP | test | BPF_K) as u16, jt, jf, k: value }
}

fn instruction(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// An offset from the start of the IP header.
fn ip(offset: u32) -> u32 {
    (libc::SKF_NET_OFF as u32).wrapping_add(offset)
}

/// The bits of an IPv4 header's fragment field that are zero in the first fragment.
const FRAGMENT_OFFSET: u32 = 0x1fff;
