//! Measures the memory of outstanding tickets, and the time of evaluating and puncturing.
//!
//! `memory [COUNT...]` issues COUNT indices (by default a million and ten million), uses some of them
//! and prints a row for each order: half of them at random, every second one (the most seeds for each
//! remaining index), all but every 64th. Bytes are counted by the crate and, where it says so, as the
//! growth of the process's resident memory. Times are CPU time, each use an evaluation and a puncture
//! as a server makes them.

use std::fs;
use std::time::Duration;

use firstflight_puncture::{Limits, PuncturableFunction, TicketIndex};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

/// The limits that are checked.
const MAX_RANDOM_BYTES: f64 = 16.0;
const MAX_WORST_BYTES: f64 = 40.0;
const MAX_USE: Duration = Duration::from_micros(2);

/// An order of uses: which indices are used, given all of them.
type Order = (&'static str, f64, fn(&mut Vec<TicketIndex>));

const ORDERS: [Order; 4] = [
    ("half, at random", MAX_RANDOM_BYTES, |indices| {
        indices.shuffle(&mut StdRng::seed_from_u64(1));
        indices.truncate(indices.len() / 2);
    }),
    ("half, in order", MAX_RANDOM_BYTES, |indices| indices.truncate(indices.len() / 2)),
    ("every second, shuffled", MAX_WORST_BYTES, |indices| {
        keep_by_number(indices, |number| number % 2 == 0);
        indices.shuffle(&mut StdRng::seed_from_u64(1));
    }),
    ("all but every 64th", MAX_WORST_BYTES, |indices| {
        keep_by_number(indices, |number| number % 64 != 7);
        indices.shuffle(&mut StdRng::seed_from_u64(1));
    }),
];

fn main() {
    let counts: Vec<usize> =
        std::env::args().skip(1).map(|count| count.parse().expect("a number")).collect();
    let counts = if counts.is_empty() { vec![1_000_000, 10_000_000] } else { counts };
    println!(
        "{:<24} {:>10} {:>11} {:>14} {:>16} {:>9}",
        "used", "issued", "outstanding", "bytes/ticket", "resident/ticket", "us a use"
    );
    let mut is_met = true;
    for count in counts {
        for (name, max_bytes, order) in ORDERS {
            is_met &= measure(name, count, max_bytes, order);
        }
    }
    println!("{}", if is_met { "all figures are met" } else { "NOT all figures are met" });
}

fn measure(name: &str, count: usize, max_bytes: f64, order: fn(&mut Vec<TicketIndex>)) -> bool {
    let limits = Limits { max_bytes: usize::MAX, ..Limits::default() };
    let mut used = Vec::with_capacity(count);
    let before = resident();
    let mut function = PuncturableFunction::new(limits);
    used.extend((0..count).map(|_| function.issue(0).0));
    // The list of indices is not part of what a server keeps.
    let list = count * size_of::<TicketIndex>();
    order(&mut used);
    let started = cpu_time();
    for index in &used {
        assert!(function.evaluate(index).is_some() && function.puncture(index));
    }
    let each = (cpu_time() - started) / used.len() as u32;
    let counts = function.counts();
    let outstanding = counts.outstanding as f64;
    let bytes = counts.bytes as f64 / outstanding;
    let grown = resident().saturating_sub(before + list) as f64 / outstanding;
    println!(
        "{name:<24} {count:>10} {outstanding:>11} {bytes:>14.1} {grown:>16.1} {:>9.2}",
        each.as_secs_f64() * 1e6
    );
    bytes <= max_bytes && each <= MAX_USE
}

fn keep_by_number(indices: &mut Vec<TicketIndex>, keep: fn(u32) -> bool) {
    indices.retain(|index| keep(index.number));
}

/// The time that this thread has spent on a processor.
fn cpu_time() -> Duration {
    let schedstat = fs::read_to_string("/proc/thread-self/schedstat").expect("Linux has it");
    let spent = schedstat.split(' ').next().and_then(|word| word.parse().ok());
    Duration::from_nanos(spent.expect("nanoseconds"))
}

/// The resident memory of this process, in bytes.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages = status.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.expect("the second figure is a number of pages") * 4096
}
