//! Chains driven by a simulated clock.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::cells::{
    BurstyLossSpec, DelaySpec, Distribution, DuplicateSpec, JitterSpec, LossSpec, Middlebox,
    MtuSpec, RateSpec, ReconfigurationSpec, ReorderSpec, TooBig,
};

const MS: u64 = 1_000_000;

fn delay(ms: u64) -> CellSpec {
    CellSpec::Delay(DelaySpec { delay: Duration::from_millis(ms) })
}

fn frame(mark: u64, length: usize) -> Box<[u8]> {
    let mut frame = vec![0; 14 + length];
    frame[14..22].copy_from_slice(&mark.to_be_bytes());
    frame.into()
}

fn mark(exit: &ProcessedPacket) -> u64 {
    u64::from_be_bytes(*exit.frame[14..].first_chunk().expect("marked"))
}

/// Removes all packets that are left.
fn drain(chains: &mut Chains) -> Vec<ProcessedPacket> {
    std::iter::from_fn(|| chains.pop(u64::MAX)).collect()
}

#[test]
fn each_direction_has_its_own_cells() {
    let (slow, fast) = ([delay(100)], [delay(1)]);
    let mut chains = Chains::new(&[(&slow, &fast)], 0);
    chains.push(0, 0, frame(1, 100));
    chains.push(1, 10, frame(2, 100));
    assert_eq!(chains.next_due(), Some(MS + 10));
    assert_eq!(chains.pop(MS + 9), None);
    assert_eq!(chains.pop(MS + 10).map(|e| (e.channel, mark(&e), e.due_ns)), Some((1, 2, MS + 10)));
    assert_eq!(chains.pop(MS + 10), None);
    assert_eq!(chains.pop(100 * MS).map(|e| (e.channel, mark(&e))), Some((0, 1)));
    assert!(chains.is_empty() && chains.bytes() == 0);
}

#[test]
fn late_delivery_does_not_delay_what_follows() {
    let mut chains = Chains::new(&[(&[delay(1)], &[])], 0);
    chains.push(0, 0, frame(1, 100));
    chains.push(0, 10, frame(2, 100));
    // The caller polls 50 ms late: the logical times do not change.
    assert_eq!(chains.pop(50 * MS).map(|e| e.due_ns), Some(MS));
    assert_eq!(chains.pop(50 * MS).map(|e| e.due_ns), Some(MS + 10));
    chains.push(0, 51 * MS, frame(3, 100));
    assert_eq!(chains.next_due(), Some(52 * MS));
}

#[test]
fn packets_pass_the_cells_in_order() {
    let rate = CellSpec::Rate(RateSpec { mbits: 12.0, queue_bytes: 4_500, burst_bytes: 0 });
    let mut chains = Chains::new(&[(&[rate, delay(10)], &[])], 0);
    for number in 0..5 {
        chains.push(0, 0, frame(number, 1_500));
    }
    let exits = drain(&mut chains);
    let outcomes: Vec<_> = exits.iter().map(|e| (mark(e), e.due_ns / MS, e.dropped_by)).collect();
    // A dropped packet is reported at the time of the drop.
    assert_eq!(outcomes[..2], [(3, 0, Some("rate")), (4, 0, Some("rate"))]);
    assert_eq!(outcomes[2..], [(0, 11, None), (1, 12, None), (2, 13, None)]);
    let cells = &chains.counters(0).cells;
    assert_eq!((cells[0].name, cells[0].passed, cells[0].dropped), ("rate", 3, 2));
    assert_eq!((cells[1].name, cells[1].passed, cells[1].dropped), ("delay", 3, 0));
}

#[test]
fn a_queue_behind_reordering_takes_packets_in_their_new_order() {
    // With this seed, the first cell delays only some packets.
    let reorder =
        CellSpec::Reorder(ReorderSpec { probability: 0.3, by: Duration::from_millis(50) });
    let rate = CellSpec::Rate(RateSpec { mbits: 12.0, queue_bytes: 1 << 20, burst_bytes: 0 });
    let mut chains = Chains::new(&[(&[reorder, rate], &[])], 5);
    for number in 0..20 {
        chains.push(0, number * 10 * MS, frame(number, 1_500));
    }
    let exits = drain(&mut chains);
    let order: Vec<_> = exits.iter().map(mark).collect();
    assert!(!order.is_sorted(), "some are overtaken: {order:?}");
    for exit in &exits {
        let waited = exit.due_ns - exit.arrival_ns;
        // Alone in the queue or behind one other packet, never behind one that arrives later.
        assert!(
            (MS..=2 * MS).contains(&waited) || (51 * MS..=52 * MS).contains(&waited),
            "{waited}"
        );
    }
}

#[test]
fn new_cells_do_not_let_packets_overtake() {
    let mut chains = Chains::new(&[(&[delay(100)], &[])], 0);
    chains.push(0, 0, frame(1, 100));
    chains.replace(0, &[delay(1)], &[]);
    chains.push(0, 10 * MS, frame(2, 100));
    assert_eq!(chains.pop(u64::MAX).map(|e| (mark(&e), e.due_ns)), Some((1, 100 * MS)));
    assert_eq!(chains.pop(u64::MAX).map(|e| (mark(&e), e.due_ns)), Some((2, 100 * MS)));
    chains.push(0, 200 * MS, frame(3, 100));
    assert_eq!(chains.next_due(), Some(201 * MS));
    assert_eq!(chains.counters(0).arrived, 3, "counts continue");
}

#[test]
fn packets_in_replaced_cells_keep_their_times() {
    let reorder = CellSpec::Reorder(ReorderSpec { probability: 1.0, by: Duration::from_millis(5) });
    let mut chains = Chains::new(&[(&[reorder, delay(100)], &[])], 0);
    chains.push(0, 0, frame(1, 100));
    chains.replace(0, &[CellSpec::Loss(LossSpec { probability: 1.0 })], &[]);
    assert_eq!(chains.pop(u64::MAX).map(|e| (e.due_ns, e.dropped_by)), Some((5 * MS, None)));
    chains.push(0, 6 * MS, frame(2, 100));
    assert_eq!(chains.pop(6 * MS).and_then(|e| e.dropped_by), Some("loss"));
    assert_eq!(chains.counters(0).dropped(), 1);
    chains.replace(0, &[], &[]);
    assert_eq!(chains.counters(0).dropped(), 1, "not forgotten");
}

#[test]
fn rfc1191_the_message_passes_the_other_direction() {
    let mtu = CellSpec::Mtu(MtuSpec { bytes: 1_000, too_big: TooBig::Icmp });
    let mut chains = Chains::new(&[(&[delay(3), mtu], &[delay(7)])], 0);
    let mut sent = Vec::new();
    let mut header =
        etherparse::Ipv4Header::new(0, 64, etherparse::IpNumber::TCP, [1; 4], [2; 4]).unwrap();
    header.dont_fragment = true;
    etherparse::PacketBuilder::ethernet2([1; 6], [2; 6])
        .ip(etherparse::IpHeaders::Ipv4(header, Default::default()))
        .tcp(1, 2, 3, 4)
        .write(&mut sent, &[0; 1_200])
        .unwrap();
    chains.push(0, 0, sent.into());
    let exits = drain(&mut chains);
    let outcomes: Vec<_> = exits.iter().map(|e| (e.channel, e.due_ns / MS, e.dropped_by)).collect();
    assert_eq!(outcomes, [(0, 3, Some("mtu")), (1, 10, None)]);
    assert_eq!(chains.bytes(), 0);
}

#[test]
fn sent_and_altered_frames_are_both_kept() {
    let cells = [CellSpec::Middlebox(Middlebox::StripSynData)];
    let mut chains = Chains::new(&[(&cells, &[])], 0);
    let mut sent = Vec::new();
    etherparse::PacketBuilder::ethernet2([1; 6], [2; 6])
        .ipv4([1; 4], [2; 4], 64)
        .tcp(1, 2, 3, 4)
        .syn()
        .write(&mut sent, b"data")
        .unwrap();
    chains.push(0, 0, sent.clone().into());
    let exit = chains.pop(0).expect("passes");
    assert_eq!(*exit.frame, *sent);
    let (by, altered) = exit.altered.expect("altered");
    assert_eq!((by, altered.len()), ("strip-syn-data", sent.len() - 4));
    assert_eq!(chains.counters(0).cells[0].altered, 1);
}

#[test]
fn a_duplicated_packet_leaves_twice_and_takes_its_share_of_the_rate() {
    let duplicate = CellSpec::Duplicate(DuplicateSpec { probability: 1.0 });
    let rate = CellSpec::Rate(RateSpec { mbits: 12.0, queue_bytes: 1 << 20, burst_bytes: 0 });
    let mut chains = Chains::new(&[(&[duplicate.clone(), duplicate, rate], &[])], 1);
    chains.push(0, 0, frame(1, 1_500));
    assert_eq!((chains.len(), chains.bytes()), (4, 4 * 1_514));
    let exits = drain(&mut chains);
    assert_eq!(exits.iter().map(mark).collect::<Vec<_>>(), [1, 1, 1, 1]);
    assert_eq!(
        exits.iter().map(|exit| exit.due_ns).collect::<Vec<_>>(),
        [MS, 2 * MS, 3 * MS, 4 * MS]
    );
    assert_eq!((chains.len(), chains.bytes()), (0, 0));
}

/// A frame of UDP or TCP with this payload, in IPv4.
fn packet(udp: bool, payload: usize) -> Box<[u8]> {
    let ip = etherparse::PacketBuilder::ethernet2([1; 6], [2; 6]).ipv4([1; 4], [2; 4], 64);
    let mut frame = Vec::new();
    match udp {
        true => ip.udp(1, 2).write(&mut frame, &vec![0; payload]).unwrap(),
        false => ip.tcp(1, 2, 3, 4).write(&mut frame, &vec![0; payload]).unwrap(),
    }
    frame.into()
}

#[test]
fn tcp_does_not_wait_behind_throttled_udp() {
    let throttle = CellSpec::Middlebox(Middlebox::ThrottleUdp);
    let rate = CellSpec::Rate(RateSpec { mbits: 12.0, queue_bytes: 1 << 20, burst_bytes: 0 });
    let mut chains = Chains::new(&[(&[throttle, rate, delay(10)], &[])], 0);
    // 1,460 and 1,500 bytes of IP: the first takes 46 ms at 256 kbit/s.
    chains.push(0, 0, packet(true, 1_432));
    chains.push(0, MS, packet(false, 1_460));
    let exits = drain(&mut chains);
    let times: Vec<_> = exits.iter().map(|e| (e.arrival_ns / MS, e.due_ns / MS)).collect();
    assert_eq!(times, [(1, 12), (0, 56)]);
}

/// The shortest delay of each direction in each of 20 intervals of 15 s. Packets come every 20 ms.
fn shortest_delays(up: &[CellSpec], down: &[CellSpec]) -> [Vec<u64>; 2] {
    let period = 15_000 * MS;
    let mut chains = Chains::new(&[(up, down)], 3);
    [0, 1].map(|channel| {
        let shortest = |interval: u64| {
            for n in 0..600 {
                chains.push(channel, interval * period + n * 20 * MS, packet(true, 40));
            }
            let exits = drain(&mut chains);
            exits.iter().map(|exit| exit.due_ns - exit.arrival_ns).min().expect("600 packets")
        };
        (1..=20).map(shortest).collect()
    })
}

#[test]
fn both_directions_of_a_satellite_network_change_together() {
    let close = |[up, down]: [Vec<u64>; 2]| {
        let off = up.iter().zip(&down).map(|(up, down)| up.abs_diff(*down));
        off.max().expect("20 intervals") < MS
    };
    let leo = crate::Profile::parse("leo").expect("built in");
    assert!(close(shortest_delays(&leo.up, &leo.down)));
    // Up, jitter is in front of the other cells; down, it is behind them.
    let wifi = crate::Profile::parse("leo+wifi").expect("built in");
    assert!(close(shortest_delays(&wifi.up, &wifi.down)));
    // A cell in one direction only.
    let lossy = [&[CellSpec::Loss(LossSpec { probability: 0.0 })][..], &leo.up].concat();
    assert!(close(shortest_delays(&lossy, &leo.down)));
}

#[test]
fn two_reconfigurations_of_a_path_change_with_their_counterparts() {
    let cell = |period_s, spread_ms| {
        CellSpec::Reconfiguration(ReconfigurationSpec {
            delay: Duration::from_millis(50),
            distribution: Distribution::Uniform { spread_ms },
            period: Duration::from_secs(period_s),
            outage: Duration::ZERO,
        })
    };
    let of = |cells: &[CellSpec]| [0, 1].map(|place| shared_seed_parts(cells, place));
    for second in [cell(15, 10.0), cell(5, 20.0)] {
        let first = cell(15, 20.0);
        let (up, down) = ([first.clone(), second.clone()], [second, first]);
        let ([a, b], [c, d]) = (of(&up), of(&down));
        assert_eq!((a, b), (d, c));
        assert_ne!(a, b);
    }
    let with_another = [cell(5, 20.0), cell(15, 20.0)];
    assert_eq!(shared_seed_parts(&[cell(15, 20.0)], 0), shared_seed_parts(&with_another, 1));
}

fn any_cell() -> impl Strategy<Value = CellSpec> {
    let ms = |range: std::ops::Range<u64>| range.prop_map(Duration::from_millis);
    let distribution = prop_oneof![
        (0.0..20.0f64).prop_map(|sd_ms| Distribution::Normal { sd_ms }),
        (0.0..20.0f64).prop_map(|spread_ms| Distribution::Uniform { spread_ms }),
        (0.1..20.0f64).prop_map(|scale_ms| {
            Distribution::Pareto { scale_ms, shape: 1.2, longest_ms: 500.0 }
        }),
    ];
    let distribution = distribution.boxed();
    prop_oneof![
        ms(0..300).prop_map(|delay| CellSpec::Delay(DelaySpec { delay })),
        (ms(0..50), distribution.clone(), ms(0..20), any::<bool>()).prop_map(
            |(delay, distribution, hold, overtakes)| {
                CellSpec::Jitter(JitterSpec { delay, distribution, hold, overtakes })
            }
        ),
        (0.1..100.0f64, 0..100_000u64).prop_map(|(mbits, queue_bytes)| {
            CellSpec::Rate(RateSpec { mbits, queue_bytes, burst_bytes: 0 })
        }),
        (0.0..1.0f64).prop_map(|probability| CellSpec::Loss(LossSpec { probability })),
        (0.0..1.0f64, 0.0..1.0f64).prop_map(|(enter, leave)| {
            CellSpec::BurstyLoss(BurstyLossSpec { enter, leave, good_loss: 0.0, bad_loss: 1.0 })
        }),
        (0.0..1.0f64, ms(0..20))
            .prop_map(|(probability, by)| CellSpec::Reorder(ReorderSpec { probability, by })),
        (576..1_500u16).prop_map(|bytes| CellSpec::Mtu(MtuSpec { bytes, too_big: TooBig::Icmp })),
        (ms(0..50), distribution, ms(1..50)).prop_map(|(delay, distribution, period)| {
            CellSpec::Reconfiguration(ReconfigurationSpec {
                delay,
                distribution,
                period,
                outage: Duration::ZERO,
            })
        }),
    ]
}

proptest! {
    /// For any cells and any polling: each packet leaves once, delivered or dropped, never early,
    /// and in order unless a cell reorders; and the same seed has the same outcome, however late
    /// the caller polls.
    #[test]
    fn each_packet_leaves_once_and_not_early_however_late_the_caller_polls(
        cells in proptest::collection::vec(any_cell(), 0..5),
        steps in proptest::collection::vec((0..5 * MS, 20..1_500usize, any::<bool>()), 1..100),
        seed in any::<u64>(),
    ) {
        let run = |rarely: bool| {
            let mut chains = Chains::new(&[(&cells, &[])], seed);
            let (mut now, mut out) = (0, Vec::new());
            for (number, (step, length, polls)) in steps.iter().enumerate() {
                now += step;
                // A forwarder takes what was due before it accepts later arrivals.
                while let Some(exit) = (!rarely || *polls).then(|| chains.pop(now)).flatten() {
                    assert!(exit.due_ns <= now, "early");
                    out.push(exit);
                }
                chains.push(0, now, frame(number as u64, *length));
            }
            out.extend(drain(&mut chains));
            assert_eq!((chains.bytes(), chains.len()), (0, 0));
            out
        };
        let out = run(false);
        let mut marks: Vec<_> = out.iter().map(mark).collect();
        marks.sort_unstable();
        prop_assert!(marks.iter().copied().eq(0..steps.len() as u64), "each once: {:?}", marks);
        prop_assert!(out.iter().all(|exit| exit.due_ns >= exit.arrival_ns));
        let ordered = cells.iter().all(|cell| cell.build(Seeds { cell: 0, path: 0 }).keeps_order());
        if ordered {
            let delivered = out.iter().filter(|exit| exit.dropped_by.is_none());
            prop_assert!(delivered.map(mark).is_sorted());
            let by_mark = |mut exits: Vec<ProcessedPacket>| {
                exits.sort_by_key(mark);
                exits
            };
            prop_assert_eq!(by_mark(out), by_mark(run(true)));
        }
    }
}
