use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use proptest::prelude::*;
use socket2::{Domain, Socket, Type};

use super::*;

/// Runs a classic BPF program as the kernel does (linux/filter.h). Supports the instructions of ours,
/// and returns `None` for others.
fn run_bpf(program: &[(u16, u8, u8, u32)], data: &[u8]) -> Option<u32> {
    let (mut a, mut at) = (0u32, 0usize);
    loop {
        let (code, jt, jf, k) = *program.get(at)?;
        at += 1;
        let bytes = |count: usize| data.get(k as usize..k as usize + count);
        match code {
            LOAD_BYTE | LOAD_HALF => {
                let Some(bytes) = bytes(if code == LOAD_BYTE { 1 } else { 2 }) else {
                    return Some(0);
                };
                a = bytes.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
            }
            JUMP_IF_SET => at += usize::from(if a & k != 0 { jt } else { jf }),
            JUMP => at += k as usize,
            MODULO => a %= k,
            RETURN_A => return Some(a),
            _ => return None,
        }
    }
}

/// A packet with a long or short header, and zeros after the connection id.
fn packet(long: bool, id: &[u8]) -> Vec<u8> {
    let mut packet = match long {
        true => vec![0xc0, 0, 0, 0, 1, id.len() as u8],
        false => vec![0x40],
    };
    packet.extend_from_slice(id);
    packet.extend_from_slice(&[0; 20]);
    packet
}

proptest! {
    #[test]
    fn the_bpf_program_and_worker_select_the_same_worker(
        workers in 0u8..=255,
        datagram in prop::collection::vec(any::<u8>(), 0..24),
    ) {
        let steering = Steering::new(workers);
        let selected = run_bpf(&steering.program(), &datagram);
        prop_assert_eq!(selected, Some(steering.worker(&datagram).into()));
    }

    #[test]
    fn rfc9000_9_issued_ids_select_their_worker(workers in 1u8..=128, worker in 0u8..128) {
        let worker = worker % workers;
        let steering = Steering::new(workers);
        let mut ids = steering.connection_ids(worker);
        for _ in 0..20 {
            let id = ids.generate_cid();
            prop_assert_eq!(id.len(), ids.cid_len());
            prop_assert_eq!(steering.worker(&packet(true, &id)), worker);
            prop_assert_eq!(steering.worker(&packet(false, &id)), worker);
        }
    }
}

#[test]
fn the_lowest_and_highest_ids_select_a_worker() {
    for workers in 1..=128 {
        let steering = Steering::new(workers);
        for id in [0u16, 1, 127, 128, 65534, 65535] {
            let packet = packet(false, &id.to_be_bytes());
            assert_eq!(u16::from(steering.worker(&packet)), id % u16::from(workers));
        }
    }
    assert_eq!((Steering::new(0).workers(), Steering::new(255).workers()), (1, 128));
}

#[test]
fn issued_ids_are_random_except_for_the_worker() {
    let steering = Steering::new(4);
    let mut ids = steering.connection_ids(3);
    let issued = (0..1000).map(|_| ids.generate_cid()).collect::<Vec<_>>();
    let mut first_bytes = issued.iter().map(|id| id[0]).collect::<Vec<_>>();
    first_bytes.sort_unstable();
    first_bytes.dedup();
    assert!(first_bytes.len() > 128, "the rule leaves the ids random: {}", first_bytes.len());
}

/// Binds the workers' sockets to one port, in order, and attaches the program.
fn bind_workers(steering: Steering) -> (SocketAddr, Vec<UdpSocket>) {
    let mut address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut sockets = Vec::new();
    for _ in 0..steering.workers() {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).expect("a socket");
        socket.set_reuse_port(true).expect("SO_REUSEPORT");
        if sockets.is_empty() {
            steering.attach(&socket).expect("SO_ATTACH_REUSEPORT_CBPF");
        }
        socket.bind(&address.into()).expect("bound");
        address = socket.local_addr().expect("an address").as_socket().expect("an IP address");
        socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        sockets.push(socket.into());
    }
    (address, sockets)
}

#[test]
fn the_kernel_selects_the_worker_whatever_the_clients_port() {
    let steering = Steering::new(3);
    let (address, workers) = bind_workers(steering);
    let mut sent = HashMap::<u8, Vec<Vec<u8>>>::new();
    for port in 0..4 {
        // Another source port, as after a client's migration.
        let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a client's socket");
        for worker in 0..3 {
            let mut ids = steering.connection_ids(worker);
            for long in [true, false] {
                let mut datagram = packet(long, &ids.generate_cid());
                datagram.push(port);
                client.send_to(&datagram, address).expect("sent");
                sent.entry(worker).or_default().push(datagram);
            }
        }
    }
    for (worker, socket) in workers.iter().enumerate() {
        for expected in &sent[&(worker as u8)] {
            let mut buffer = [0; 100];
            let count = socket.recv(&mut buffer).expect("what was sent to this worker");
            assert_eq!(&buffer[..count], expected, "worker {worker}");
        }
    }
}
