//! Measures the claims per second of the local strike register on one core, and its memory.
//!
//! `register [--json FILE]` prints a table and writes the raw data to FILE. It runs five rounds of
//! each kind and prints medians. Seconds are CPU time, so other work on the machine matters less.
//!
//! - *fresh*: new keys, into an empty register, up to 14/16 of its capacity;
//! - *expiring*: new keys in steady state, each replacing one that expires (records live 66 s,
//!   time is simulated);
//! - *copies*: recorded keys, in random order;
//! - *flights*: all that the gate does for a first flight.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use firstflight_replay::{
    ClaimKey, ClaimOutcome, EpochScope, FlightOffer, Gate, GateConfig, StrikeRegister, TicketEpochs,
};

/// The required figures.
const MIN_RATE: f64 = 2e6;
const MAX_BYTES_PER_CLAIM: f64 = 64.0;

const CAPACITY: usize = 1 << 20;
/// Claims per round, few enough that even the fullest shard has room.
const CLAIMS: usize = CAPACITY / 16 * 14;
const LIFETIME: Duration = Duration::from_secs(66);
const ROUNDS: usize = 5;

struct Measured {
    kind: &'static str,
    /// Claims per second, one value per round.
    rates: Vec<f64>,
    /// Durations of single claims in nanoseconds, including the clock read; sorted.
    durations: Vec<u32>,
}

struct Memory {
    claims: usize,
    bytes: usize,
}

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let file = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => None,
        ["--json", file] => Some(file),
        _ => panic!("usage: register [--json FILE]"),
    };
    // Before anything else, while the allocator has no freed memory to reuse.
    let memory: Vec<_> = [1 << 20, 1 << 23].into_iter().map(measure_memory).collect();
    let keys: Vec<_> = (0..2 * CLAIMS as u64).map(key).collect();
    let measured = [fresh(&keys), expiring(&keys), copies(&keys), flights()];
    print_table(&measured, &memory);
    if let Some(file) = file {
        fs::write(file, raw_data(&measured, &memory)).expect("the raw data is written");
    }
}

/// A pseudorandom flight digest, different for each `i`.
fn flight_digest(i: u64) -> [u8; 32] {
    let mut digest = [0; 32];
    for (word, bytes) in (0..).zip(digest.chunks_exact_mut(8)) {
        let mixed = (i ^ (word << 60)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        bytes.copy_from_slice(&(mixed ^ (mixed >> 29)).to_le_bytes());
    }
    digest
}

fn key(i: u64) -> ClaimKey {
    ClaimKey::of_flight(&flight_digest(i))
}

fn fresh(keys: &[ClaimKey]) -> Measured {
    let now = Duration::from_secs(1);
    measure("fresh", || {
        let register = StrikeRegister::new(CAPACITY);
        move |i: usize| assert_won(register.claim(keys[i], now + LIFETIME, now))
    })
}

fn expiring(keys: &[ClaimKey]) -> Measured {
    // A round lasts one lifetime, so each new claim replaces one that expires.
    let step = LIFETIME.as_nanos() as u64 / CLAIMS as u64;
    let at = |i: usize| Duration::from_nanos(1_000_000_000 + i as u64 * step);
    measure("expiring", || {
        let register = StrikeRegister::new(CAPACITY);
        (0..CLAIMS).for_each(|i| assert_won(register.claim(keys[i], at(i) + LIFETIME, at(i))));
        move |i: usize| {
            let i = i + CLAIMS;
            assert_won(register.claim(keys[i], at(i) + LIFETIME, at(i)));
        }
    })
}

fn copies(keys: &[ClaimKey]) -> Measured {
    let now = Duration::from_secs(1);
    measure("copies", || {
        let register = StrikeRegister::new(CAPACITY);
        (0..CLAIMS).for_each(|i| assert_won(register.claim(keys[i], now + LIFETIME, now)));
        move |i: usize| {
            let i = i.wrapping_mul(7_368_787) % CLAIMS;
            assert_eq!(register.claim(keys[i], now + LIFETIME, now), ClaimOutcome::Lost);
        }
    })
}

fn flights() -> Measured {
    let config = GateConfig::default();
    let now = Duration::from_secs(1);
    measure("flights", || {
        let epochs = Arc::new(TicketEpochs::new(EpochScope::Process));
        let epoch = epochs.current();
        let gate = Gate::new(config, epochs);
        move |i: usize| {
            let flight = gate.claim(&FlightOffer::new(key(i as u64), 0, now, epoch), now);
            assert!(flight.is_ok_and(|flight| flight.won()));
        }
    })
}

fn assert_won(claim: ClaimOutcome) {
    assert_eq!(claim, ClaimOutcome::Won);
}

/// Times whole rounds, and then single claims.
fn measure<C: FnMut(usize)>(kind: &'static str, prepare: impl Fn() -> C) -> Measured {
    let round = |_| {
        let mut claim = prepare();
        let started = cpu_time();
        (0..CLAIMS).for_each(&mut claim);
        CLAIMS as f64 / (cpu_time() - started).as_secs_f64()
    };
    let rates = (0..ROUNDS).map(round).collect();
    let mut claim = prepare();
    let mut durations: Vec<_> = (0..CLAIMS)
        .map(|i| {
            let started = Instant::now();
            claim(i);
            u32::try_from(started.elapsed().as_nanos()).unwrap_or(u32::MAX)
        })
        .collect();
    durations.sort_unstable();
    Measured { kind, rates, durations }
}

impl Measured {
    fn rate(&self) -> f64 {
        let mut rates = self.rates.clone();
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    }

    fn percentile(&self, part: f64) -> u32 {
        self.durations[(self.durations.len() as f64 * part) as usize]
    }
}

/// CPU time of this thread, accurate to a few milliseconds.
fn cpu_time() -> Duration {
    let schedstat = fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    let spent = schedstat.split(' ').next().and_then(|word| word.parse().ok());
    Duration::from_nanos(spent.expect("nanoseconds on the processor"))
}

/// Measures the resident memory of a full register with a capacity of `claims`.
fn measure_memory(claims: usize) -> Memory {
    let before = resident_bytes();
    let register = StrikeRegister::new(claims);
    let now = Duration::from_secs(1);
    let mut recorded = 0;
    // Some shards are full before others, so continue until nearly all are.
    for i in 0.. {
        recorded += usize::from(register.claim(key(i), now + LIFETIME, now) == ClaimOutcome::Won);
        if recorded == claims || register.statistics().full > claims as u64 / 64 {
            break;
        }
    }
    let bytes = resident_bytes().saturating_sub(before);
    Memory { claims: recorded, bytes }
}

fn resident_bytes() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = statm.split(' ').nth(1).and_then(|word| word.parse::<usize>().ok());
    pages.expect("resident pages") * 4096
}

fn print_table(measured: &[Measured], memory: &[Memory]) {
    println!("{:<10}{:>12}{:>10}{:>10}   required", "claims", "a second", "p50 ns", "p99 ns");
    for measured in measured {
        let outcome = if measured.rate() >= MIN_RATE { "met" } else { "MISSED" };
        println!(
            "{:<10}{:>12.0}{:>10}{:>10}   at least {MIN_RATE:.0} a second: {outcome}",
            measured.kind,
            measured.rate(),
            measured.percentile(0.5),
            measured.percentile(0.99),
        );
    }
    println!();
    for memory in memory {
        let each = memory.bytes as f64 / memory.claims as f64;
        let outcome = if each <= MAX_BYTES_PER_CLAIM { "met" } else { "MISSED" };
        println!(
            "{} claims: {:.1} resident bytes each; at most {MAX_BYTES_PER_CLAIM:.0} required: {outcome}",
            memory.claims, each
        );
    }
}

fn raw_data(measured: &[Measured], memory: &[Memory]) -> String {
    let rows: Vec<_> = measured
        .iter()
        .map(|measured| {
            format!(
                "{{\"kind\":\"{}\",\"rates\":{:.0?},\"p50_ns\":{},\"p99_ns\":{},\"p999_ns\":{}}}",
                measured.kind,
                measured.rates,
                measured.percentile(0.5),
                measured.percentile(0.99),
                measured.percentile(0.999),
            )
        })
        .collect();
    let sizes: Vec<_> = memory
        .iter()
        .map(|memory| {
            format!("{{\"claims\":{},\"resident_bytes\":{}}}", memory.claims, memory.bytes)
        })
        .collect();
    format!("\"claims\": [{}],\n\"memory\": [{}]\n", rows.join(",\n"), sizes.join(",\n"))
}
