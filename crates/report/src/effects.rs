//! Effects: differences between cells that differ in one axis, and the A/A control.

use std::collections::HashMap;

use crate::statistics::{allowed_by_chance, paired_difference_of_medians};
use crate::{Cell, Control, ControlPair, Effect, Interval, Sample};

/// The effects between cells that differ in one respect, if there are enough samples for an
/// interval. Second arms of A/A controls are excluded.
pub fn effects(cells: &[Cell], samples: &[Sample], seed: u64) -> Vec<Effect> {
    let times = Times::new(cells.len(), samples);
    let mut effects = Vec::new();
    for (from, to, what) in pairs(cells) {
        let Some(difference) = times.difference(from, to, seed) else { continue };
        let rtt_ms = cells[from].rtt_ms;
        effects.push(Effect {
            what,
            from,
            to,
            difference_ms: difference,
            // An unknown round-trip time is 0, and JSON has no infinity.
            difference_rtt: match rtt_ms > 0.0 {
                true => difference.scaled(1.0 / rtt_ms),
                false => Interval::default(),
            },
            significant: difference.excludes_zero(),
        });
    }
    effects
}

/// The A/A control: each twin compared with its cell. Returns `None` if there are no twins.
pub fn control(
    twins: impl IntoIterator<Item = (usize, usize)>,
    cells: usize,
    samples: &[Sample],
    seed: u64,
) -> Option<Control> {
    let times = Times::new(cells, samples);
    let pair = |(cell, twin)| {
        let difference = times.difference(cell, twin, seed)?;
        let differs = difference.excludes_zero();
        Some(ControlPair { cell, twin, difference_ms: difference, differs })
    };
    let pairs: Vec<ControlPair> = twins.into_iter().filter_map(pair).collect();
    (!pairs.is_empty()).then(|| Control {
        allowed: allowed_by_chance(pairs.len()),
        differing: pairs.iter().filter(|pair| pair.differs).count(),
        pairs,
    })
}

/// The good first-byte times of each cell, by block.
struct Times(Vec<HashMap<usize, Vec<f64>>>);

impl Times {
    fn new(cells: usize, samples: &[Sample]) -> Self {
        let mut times = vec![HashMap::new(); cells];
        for sample in samples.iter().filter(|sample| sample.fault.is_none()) {
            if let Some(time) = sample.time_ms {
                let block: &mut Vec<f64> = times[sample.cell].entry(sample.block).or_default();
                block.push(time);
            }
        }
        Self(times)
    }

    fn difference(&self, from: usize, to: usize, seed: u64) -> Option<Interval> {
        let (a, b) = (&self.0[from], &self.0[to]);
        let mut numbers: Vec<usize> = a.keys().chain(b.keys()).copied().collect();
        numbers.sort_unstable();
        numbers.dedup();
        let values = |times: &HashMap<usize, Vec<f64>>, number| {
            times.get(number).cloned().unwrap_or_default()
        };
        let blocks: Vec<_> = numbers.iter().map(|n| (values(a, n), values(b, n))).collect();
        let seed = seed.wrapping_add((from as u64) << 32).wrapping_add(to as u64);
        paired_difference_of_medians(&blocks, seed)
    }
}

/// Pairs of cells that differ in one axis, for the steps of interest.
fn pairs(cells: &[Cell]) -> Vec<(usize, usize, String)> {
    let mut found = Vec::new();
    for (from, base) in cells.iter().enumerate().filter(|(_, cell)| !cell.control) {
        for (to, other) in cells.iter().enumerate().filter(|(_, cell)| !cell.control) {
            let (a, b) = (Coordinates::of(base), Coordinates::of(other));
            if from != to
                && let Some(what) = step(&a, &b)
            {
                found.push((from, to, what));
            }
        }
    }
    found
}

/// The values of a cell on the axes of effects; `fixed` has to be equal.
#[derive(Clone, PartialEq)]
struct Coordinates<'a> {
    fixed: (&'a str, &'a str, &'a str, &'a str, u64),
    server: &'a str,
    transport: &'a str,
    tls: &'a str,
    kind: &'a str,
    tfo: bool,
    token: bool,
    http: &'a str,
    group: &'a str,
    cipher: &'a str,
    certificate: &'a str,
}

impl<'a> Coordinates<'a> {
    fn of(cell: &'a Cell) -> Self {
        Self {
            fixed: (
                &cell.experiment,
                &cell.client,
                &cell.workload,
                &cell.profile,
                cell.response_bytes,
            ),
            server: &cell.server,
            transport: &cell.transport,
            tls: &cell.tls,
            kind: &cell.kind,
            tfo: cell.tfo,
            token: cell.token,
            http: &cell.http,
            group: &cell.group,
            cipher: &cell.cipher,
            certificate: &cell.certificate,
        }
    }
}

/// Describes the step from one cell to another. Returns `None` if it is not of interest.
fn step(a: &Coordinates<'_>, b: &Coordinates<'_>) -> Option<String> {
    let by = |moved: Coordinates<'_>, from: &str, to: &str| {
        (moved == *b).then(|| format!("{to} instead of {from}"))
    };
    match () {
        // HTTP version and token change together with the transport.
        () if a.transport != b.transport => {
            let Coordinates { transport, http, token, .. } = *b;
            let moved = Coordinates { transport, http, token, ..a.clone() };
            match http {
                "" => by(moved, "TCP", "QUIC"),
                _ => by(moved, &format!("HTTP/{}", a.http), "HTTP/3"),
            }
            .filter(|_| transport == "quic")
        }
        () if a.kind != b.kind => {
            let rank = |kind| KINDS.iter().position(|known| *known == kind);
            let forwards = rank(a.kind)? < rank(b.kind)?;
            // A full handshake has no token.
            let token = if a.kind == "full" { b.token } else { a.token };
            let moved = Coordinates { kind: b.kind, token, ..a.clone() };
            let with_token = if token && !a.token { " with an address token" } else { "" };
            by(moved, a.kind, &format!("{}{with_token}", b.kind)).filter(|_| forwards)
        }
        () if a.token != b.token => {
            by(Coordinates { token: true, ..a.clone() }, "without", "token")
                .filter(|_| !a.token)
                .map(|_| "with an address token instead of without".to_owned())
        }
        () if a.tfo != b.tfo => {
            by(Coordinates { tfo: true, ..a.clone() }, "without", "TCP Fast Open")
                .filter(|_| !a.tfo)
                .map(|_| "with TCP Fast Open instead of without".to_owned())
        }
        () if a.tls != b.tls => {
            let step = a.tls == "1.2" && b.tls == "1.3";
            by(Coordinates { tls: b.tls, ..a.clone() }, "TLS 1.2", "TLS 1.3").filter(|_| step)
        }
        () if a.http != b.http => {
            by(Coordinates { http: b.http, ..a.clone() }, "HTTP/1.1", "HTTP/2")
                .filter(|_| a.http == "1.1")
        }
        () if a.group != b.group => {
            by(Coordinates { group: b.group, ..a.clone() }, a.group, b.group)
                .filter(|_| a.group == "X25519")
        }
        () if a.cipher != b.cipher => {
            by(Coordinates { cipher: b.cipher, ..a.clone() }, a.cipher, b.cipher)
                .filter(|_| a.cipher == "AES-128-GCM")
        }
        () if a.certificate != b.certificate => by(
            Coordinates { certificate: b.certificate, ..a.clone() },
            a.certificate,
            b.certificate,
        )
        .filter(|_| {
            let compressed = b.certificate.strip_suffix(COMPRESSED_SUFFIX) == Some(a.certificate);
            let both_plain = !b.certificate.ends_with(COMPRESSED_SUFFIX);
            compressed || (a.certificate == "ecdsa-p256" && both_plain)
        }),
        () if a.server != b.server => {
            by(Coordinates { server: b.server, ..a.clone() }, a.server, b.server)
                .filter(|_| a.server == "firstflight")
        }
        () => None,
    }
}

/// The end of the names of compressed certificates.
const COMPRESSED_SUFFIX: &str = " compressed";

/// Each kind is compared with those before it.
const KINDS: [&str; 4] = ["full", "resumed", "0-RTT", "refused"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fault;

    fn cell(kind: &str, tfo: bool) -> Cell {
        Cell {
            server: "firstflight".to_owned(),
            tls: "1.3".to_owned(),
            kind: kind.to_owned(),
            tfo,
            rtt_ms: 20.0,
            ..Cell::default()
        }
    }

    fn sample(cell: usize, block: usize, time_ms: f64) -> Sample {
        Sample { cell, block, time_ms: Some(time_ms), ..Sample::default() }
    }

    #[test]
    fn an_effect_without_a_known_round_trip_time_is_read_back() {
        let cells = ["full", "0-RTT"].map(|kind| Cell { rtt_ms: 0.0, ..cell(kind, false) });
        let samples: Vec<Sample> =
            (0..12).map(|number| sample(number % 2, number / 2, 1.0 + number as f64)).collect();
        let json = serde_json::to_string(&effects(&cells, &samples, 1)).unwrap();
        assert_eq!(serde_json::from_str::<Vec<Effect>>(&json).unwrap().len(), 1, "{json}");
    }

    #[test]
    fn cells_that_differ_in_one_respect_are_compared() {
        let mut cells = vec![cell("full", false), cell("0-RTT", false), cell("0-RTT", true)];
        cells.push(Cell { control: true, ..cell("full", false) });
        cells.push(Cell { server: "nginx".to_owned(), ..cell("full", false) });
        let what: Vec<(usize, usize, String)> = pairs(&cells);
        let expected = [
            (0, 1, "0-RTT instead of full"),
            (0, 4, "nginx instead of firstflight"),
            (1, 2, "with TCP Fast Open instead of without"),
        ];
        let expected: Vec<_> = expected.map(|(a, b, what)| (a, b, what.to_owned())).to_vec();
        assert_eq!(what, expected);
    }

    #[test]
    fn quic_is_compared_with_tcp_and_tokens_with_no_token() {
        let quic = |kind: &str, token: bool| Cell {
            transport: "quic".to_owned(),
            http: "3".to_owned(),
            token,
            ..cell(kind, false)
        };
        let tcp = |kind: &str, tfo: bool| Cell {
            transport: "tcp".to_owned(),
            http: "2".to_owned(),
            ..cell(kind, tfo)
        };
        let cells = [tcp("0-RTT", false), tcp("0-RTT", true), quic("full", false)];
        let cells = [&cells[..], &[quic("0-RTT", false), quic("0-RTT", true)]].concat();
        let found: Vec<(usize, usize, String)> = pairs(&cells);
        let expected = [
            (0, 1, "with TCP Fast Open instead of without"),
            (0, 3, "HTTP/3 instead of HTTP/2"),
            (0, 4, "HTTP/3 instead of HTTP/2"),
            (2, 3, "0-RTT instead of full"),
            (2, 4, "0-RTT with an address token instead of full"),
            (3, 4, "with an address token instead of without"),
        ];
        assert_eq!(found, expected.map(|(a, b, what)| (a, b, what.to_owned())));
    }

    #[test]
    fn an_effect_is_given_in_milliseconds_and_round_trips_over_good_samples() {
        let cells = [cell("full", false), cell("0-RTT", false)];
        let mut samples = Vec::new();
        for block in 0..40 {
            let drift = block as f64;
            samples.push(sample(0, block, 60.0 + drift));
            samples.push(sample(1, block, 40.0 + drift));
        }
        samples.push(Sample { fault: Some(Fault::Spoiled(String::new())), ..sample(1, 3, 1e9) });
        let effects = effects(&cells, &samples, 1);
        assert_eq!(effects.len(), 1);
        assert_eq!(effects[0].difference_ms.estimate, -20.0);
        assert_eq!(effects[0].difference_rtt.estimate, -1.0);
        assert!(effects[0].significant);
    }

    #[test]
    fn a_control_counts_the_differing_pairs_and_those_that_chance_allows() {
        let arms = |shift: f64| -> Vec<Sample> {
            (0..60)
                .flat_map(|block| {
                    let noise = (block * 37 % 60) as f64 / 60.0;
                    let other = (block * 23 % 60) as f64 / 60.0;
                    [sample(0, block, 20.0 + noise), sample(1, block, 20.0 + shift + other)]
                })
                .collect()
        };
        let same = control([(0, 1)], 2, &arms(0.0), 5).unwrap();
        assert_eq!((same.differing, same.allowed), (0, 1));
        let other = control([(0, 1)], 2, &arms(1.0), 5).unwrap();
        assert!(other.pairs[0].differs);
        assert!(control([], 2, &arms(0.0), 5).is_none());
    }
}
