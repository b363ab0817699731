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
/// So many claims a round: the fullest of the register's parts still has room.
const CLAIMS: usize = CAPACITY / 16 * 14;
const LIFE: Duration = Duration::from_secs(66);
const ROUNDS: usize = 5;

struct Measured {
    kind: &'static str,
    /// Claims a second, one figure a round.
    rates: Vec<f64>,
    /// Nanoseconds of single claims, sorted, the clock's reading included.
    single: Vec<u32>,
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
    // First, before the allocator has freed memory to reuse.
    let memory: Vec<_> = [1 << 20, 1 << 23].into_iter().map(resident).collect();
    let keys: Vec<_> = (0..2 * CLAIMS as u64).map(key).collect();
    let measured = [fresh(&keys), expiring(&keys), copies(&keys), flights()];
    print_table(&measured, &memory);
    if let Some(file) = file {
        fs::write(file, raw(&measured, &memory)).expect("the raw data is written");
    }
}

/// A flight's name like any other: no two alike, and no order in them.
fn random(i: u64) -> [u8; 32] {
    let mut random = [0; 32];
    for (word, bytes) in (0..).zip(random.chunks_exact_mut(8)) {
        let mixed = (i ^ (word << 60)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        bytes.copy_from_slice(&(mixed ^ (mixed >> 29)).to_le_bytes());
    }
    random
}

fn key(i: u64) -> ClaimKey {
    ClaimKey::of_flight(&random(i))
}

fn fresh(keys: &[ClaimKey]) -> Measured {
    let now = Duration::from_secs(1);
    measure("fresh", || {
        let register = StrikeRegister::new(CAPACITY);
        move |i: usize| won(register.claim(keys[i], now + LIFE, now))
    })
}

fn expiring(keys: &[ClaimKey]) -> Measured {
    // One life for a round: what was claimed one round ago goes as this one comes.
    let step = LIFE.as_nanos() as u64 / CLAIMS as u64;
    let at = |i: usize| Duration::from_nanos(1_000_000_000 + i as u64 * step);
    measure("expiring", || {
        let register = StrikeRegister::new(CAPACITY);
        (0..CLAIMS).for_each(|i| won(register.claim(keys[i], at(i) + LIFE, at(i))));
        move |i: usize| {
            let i = i + CLAIMS;
            won(register.claim(keys[i], at(i) + LIFE, at(i)));
        }
    })
}

fn copies(keys: &[ClaimKey]) -> Measured {
    let now = Duration::from_secs(1);
    measure("copies", || {
        let register = StrikeRegister::new(CAPACITY);
        (0..CLAIMS).for_each(|i| won(register.claim(keys[i], now + LIFE, now)));
        move |i: usize| {
            let i = i.wrapping_mul(7_368_787) % CLAIMS;
            assert_eq!(register.claim(keys[i], now + LIFE, now), ClaimOutcome::Lost);
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

fn won(claim: ClaimOutcome) {
    assert_eq!(claim, ClaimOutcome::Won);
}

/// Times whole rounds, and then single claims.
fn measure<C: FnMut(usize)>(kind: &'static str, prepare: impl Fn() -> C) -> Measured {
    let round = |_| {
        let mut claim = prepare();
        let started = processor_time();
        (0..CLAIMS).for_each(&mut claim);
        CLAIMS as f64 / (processor_time() - started).as_secs_f64()
    };
    let rates = (0..ROUNDS).map(round).collect();
    let mut claim = prepare();
    let mut single: Vec<_> = (0..CLAIMS)
        .map(|i| {
            let started = Instant::now();
            claim(i);
            u32::try_from(started.elapsed().as_nanos()).unwrap_or(u32::MAX)
        })
        .collect();
    single.sort_unstable();
    Measured { kind, rates, single }
}

impl Measured {
    fn rate(&self) -> f64 {
        let mut rates = self.rates.clone();
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    }

    fn percentile(&self, part: f64) -> u32 {
        self.single[(self.single.len() as f64 * part) as usize]
    }
}

/// What this thread has had of the processor, to a few milliseconds.
fn processor_time() -> Duration {
    let schedstat = fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    let spent = schedstat.split(' ').next().and_then(|word| word.parse().ok());
    Duration::from_nanos(spent.expect("nanoseconds on the processor"))
}

/// What a full register of `claims` adds to the process, records and tables.
fn resident(claims: usize) -> Memory {
    let before = resident_bytes();
    let register = StrikeRegister::new(claims);
    let now = Duration::from_secs(1);
    let mut held = 0;
    // The fullest shard of many is full first: the others are filled by going on.
    for i in 0.. {
        held += usize::from(register.claim(key(i), now + LIFE, now) == ClaimOutcome::Won);
        if held == claims || register.statistics().full > claims as u64 / 64 {
            break;
        }
    }
    let bytes = resident_bytes().saturating_sub(before);
    Memory { claims: held, bytes }
}

fn resident_bytes() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = statm.split(' ').nth(1).and_then(|word| word.parse::<usize>().ok());
    pages.expect("resident pages") * 4096
}

fn print_table(measured: &[Measured], memory: &[Memory]) {
    println!("{:<10}{:>12}{:>10}{:>10}   required", "claims", "a second", "p50 ns", "p99 ns");
    for one in measured {
        let outcome = if one.rate() >= MIN_RATE { "met" } else { "MISSED" };
        println!(
            "{:<10}{:>12.0}{:>10}{:>10}   at least {MIN_RATE:.0} a second: {outcome}",
            one.kind,
            one.rate(),
            one.percentile(0.5),
            one.percentile(0.99),
        );
    }
    println!();
    for one in memory {
        let each = one.bytes as f64 / one.claims as f64;
        let outcome = if each <= MAX_BYTES_PER_CLAIM { "met" } else { "MISSED" };
        println!(
            "{} claims: {:.1} resident bytes each; at most {MAX_BYTES_PER_CLAIM:.0} required: {outcome}",
            one.claims, each
        );
    }
}

fn raw(measured: &[Measured], memory: &[Memory]) -> String {
    let rows: Vec<_> = measured
        .iter()
        .map(|one| {
            format!(
                "{{\"kind\":\"{}\",\"rates\":{:.0?},\"p50_ns\":{},\"p99_ns\":{},\"p999_ns\":{}}}",
                one.kind,
                one.rates,
                one.percentile(0.5),
                one.percentile(0.99),
                one.percentile(0.999),
            )
        })
        .collect();
    let sizes: Vec<_> = memory
        .iter()
        .map(|one| format!("{{\"claims\":{},\"resident_bytes\":{}}}", one.claims, one.bytes))
        .collect();
    format!("\"claims\": [{}],\n\"memory\": [{}]\n", rows.join(",\n"), sizes.join(",\n"))
}
