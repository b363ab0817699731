//! Any frames through every middlebox and a smaller MTU: each leaves once, and what was altered is
//! a packet that a kernel takes.
#![no_main]

use std::time::Duration;

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use firstflight_emulator::{CellSpec, Chains, DelaySpec, Middlebox, MtuSpec, TooBig};
use firstflight_fuzz::{Event, Flags};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut cells = vec![
        CellSpec::Mtu(MtuSpec { bytes: 600, too_big: TooBig::Icmp }),
        CellSpec::Delay(DelaySpec { delay: Duration::from_millis(1) }),
    ];
    cells.extend(Middlebox::ALL.map(CellSpec::Middlebox));
    // Those that drop stand behind those that alter, and each alone on a path of its own.
    let mut paths = vec![cells];
    paths.extend(Middlebox::ALL.map(|kind| vec![CellSpec::Middlebox(kind)]));
    let lanes: Vec<_> = paths.iter().map(|cells| (&**cells, &**cells)).collect();
    let mut chains = Chains::new(&lanes, 1);
    let (mut now, mut pushed, mut left) = (0, 0, 0);
    for event in Event::all(bytes) {
        now += 1_000 * u64::from(event.gap);
        let frame = event.frame();
        for path in 0..paths.len() {
            let lane = 2 * path + usize::from(event.flags.has(Flags::TO_CLIENT));
            chains.push(lane, now, frame.clone().into());
            pushed += 1;
        }
    }
    while let Some(exit) = chains.pop(u64::MAX) {
        left += 1;
        assert!(exit.due_ns >= exit.arrival_ns);
        if let Some((_, altered)) = exit.altered {
            check(&altered);
        }
    }
    // An MTU that tells the sender adds a packet for each that it drops.
    let told: u64 = [0, 1].map(|lane| chains.counters(lane).cells[0].dropped).iter().sum();
    assert!((pushed..=pushed + told).contains(&left), "{left} of {pushed}, {told} told");
    assert_eq!((chains.bytes(), chains.len()), (0, 0));
});

fn check(frame: &[u8]) {
    let packet = SlicedPacket::from_ethernet(frame).expect("a packet");
    let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Tcp(tcp))) = (packet.net, packet.transport)
    else {
        panic!("only segments are altered");
    };
    let header = ip.header();
    assert_eq!(header.to_header().calc_header_checksum(), header.header_checksum());
    let sum = tcp.calc_checksum_ipv4(header.source(), header.destination()).expect("short");
    assert_eq!(sum, tcp.checksum());
}
