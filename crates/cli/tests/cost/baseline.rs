//! The committed costs, and what may differ from them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// Costs by scenario.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Baseline(BTreeMap<String, Cost>);

/// What one connection or request costs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cost {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) instructions: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) allocations: Option<f64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) system_calls: BTreeMap<String, f64>,
}

impl Baseline {
    /// Compares with the committed baseline. With `INSTA_UPDATE=always`, as `make bless` sets it,
    /// writes the measured costs as the new baseline.
    ///
    /// # Panics
    /// If something differs; the message names it.
    pub(crate) fn check(measured: &BTreeMap<String, Cost>) {
        // Both tests of this program may write the file.
        static FILE: Mutex<()> = Mutex::new(());
        let _guard = FILE.lock().unwrap_or_else(PoisonError::into_inner);
        let file = file();
        let mut committed: Self =
            toml::from_str(&fs::read_to_string(&file).unwrap_or_default()).unwrap();
        if std::env::var("INSTA_UPDATE").is_ok_and(|value| value == "always") {
            committed.accept(measured);
            let text = toml::to_string(&committed).unwrap();
            return fs::write(file, format!("{HEAD}{text}")).unwrap();
        }
        let differences = committed.differences(measured);
        assert!(
            differences.is_empty(),
            "a connection or request does not cost what it did:\n{differences}\
             If that is meant, `make bless` accepts it; say in the commit what it buys."
        );
    }

    /// Takes over the measured costs.
    fn accept(&mut self, measured: &BTreeMap<String, Cost>) {
        for (scenario, cost) in measured {
            let known = self.0.entry(scenario.clone()).or_default();
            if cost.instructions.is_some() {
                known.instructions = cost.instructions;
                known.allocations = cost.allocations.map(rounded);
            } else {
                let calls = cost.system_calls.iter();
                known.system_calls =
                    calls.map(|(name, count)| (name.clone(), rounded(*count))).collect();
            }
        }
    }

    /// A line for each cost that differs.
    fn differences(&self, measured: &BTreeMap<String, Cost>) -> String {
        let mut lines = String::new();
        for (scenario, cost) in measured {
            let known = self.0.get(scenario).cloned().unwrap_or_default();
            let mut compare = |what: &str, before: f64, now: f64, tolerance: f64| {
                if (now - before).abs() > tolerance {
                    let verb = if now > before { "grew" } else { "shrank" };
                    let percent = 100.0 * (now - before) / before;
                    let _ = writeln!(
                        lines,
                        "  {scenario}: {what} {verb} from {before} to {now} ({percent:+.1} %)"
                    );
                }
            };
            if let Some(instructions) = cost.instructions {
                let before = known.instructions.unwrap_or_default() as f64;
                let tolerance = before * share(scenario, INSTRUCTIONS_TOLERANCE);
                compare("instructions", before, instructions as f64, tolerance);
            }
            if let Some(allocations) = cost.allocations {
                let before = known.allocations.unwrap_or_default();
                let tolerance = before * share(scenario, ALLOCATIONS_TOLERANCE_SHARE);
                let tolerance = ALLOCATIONS_TOLERANCE.max(tolerance);
                compare("allocations", before, rounded(allocations), tolerance);
            }
            // An instrument measures either instructions and allocations, or system calls.
            if cost.system_calls.is_empty() {
                continue;
            }
            let names: BTreeSet<&String> =
                known.system_calls.keys().chain(cost.system_calls.keys()).collect();
            for name in names {
                let count = |calls: &BTreeMap<String, f64>| calls.get(name).copied().unwrap_or(0.0);
                let (before, now) =
                    (count(&known.system_calls), rounded(count(&cost.system_calls)));
                let tolerance = match PACKETS.contains(&name.as_str()) {
                    true => PACKETS_TOLERANCE.max(before * PACKETS_TOLERANCE_SHARE),
                    false => SYSTEM_CALLS_TOLERANCE,
                };
                compare(name, before, now, tolerance);
            }
        }
        lines
    }
}

/// The tolerance for a scenario. QUIC has a greater one: on a busy machine it retransmits packets
/// whose acknowledgements are late.
fn share(scenario: &str, share: f64) -> f64 {
    let over_quic = scenario.starts_with("quic") || scenario.ends_with("http3");
    if over_quic { QUIC_TOLERANCE } else { share }
}

const QUIC_TOLERANCE: f64 = 0.15;
/// As a share. A thread that wakes a moment earlier polls once more.
const INSTRUCTIONS_TOLERANCE: f64 = 0.05;
/// Absolute, per connection or request.
const ALLOCATIONS_TOLERANCE: f64 = 1.5;
/// As a share. Depends on whether Finished and request arrive together: 160 to 167 with one build.
const ALLOCATIONS_TOLERANCE_SHARE: f64 = 0.06;
const SYSTEM_CALLS_TOLERANCE: f64 = 0.5;
/// How often these are called depends on how packets arrive.
const PACKETS: [&str; 3] = ["recvfrom", "recvmsg", "sendmsg"];
const PACKETS_TOLERANCE: f64 = 1.5;
const PACKETS_TOLERANCE_SHARE: f64 = 0.6;

const HEAD: &str = "\
# What one connection or one kept request costs the server, as crates/cli/tests/cost measures it in
# the tests' build: Rust unoptimised, BoringSSL optimised. Written by `make bless`.

";

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cost/baseline.toml")
}

fn rounded(value: f64) -> f64 {
    (value * 10.0).round() / 10.0 + 0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(counts: &[(&str, f64)]) -> Cost {
        let system_calls =
            counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        Cost { system_calls, ..Cost::default() }
    }

    fn counts(instructions: u64, allocations: f64) -> Cost {
        Cost { instructions: Some(instructions), allocations: Some(allocations), ..Cost::default() }
    }

    fn of(cost: Cost) -> BTreeMap<String, Cost> {
        [("tcp-full".to_owned(), cost)].into()
    }

    #[test]
    fn differences_are_named_with_their_sizes() {
        let mut baseline = Baseline::default();
        baseline.accept(&of(counts(1_000_000, 100.0)));
        baseline.accept(&of(calls(&[("read", 1.0), ("close", 2.0)])));
        assert_eq!(baseline.differences(&of(counts(1_020_000, 101.0))), "");
        assert_eq!(
            baseline.differences(&of(counts(1_100_000, 130.0))),
            "  tcp-full: instructions grew from 1000000 to 1100000 (+10.0 %)\n  \
             tcp-full: allocations grew from 100 to 130 (+30.0 %)\n"
        );
        assert_eq!(baseline.differences(&of(calls(&[("read", 1.2), ("close", 2.0)]))), "");
        assert_eq!(
            baseline.differences(&of(calls(&[("read", 2.0), ("close", 2.0), ("statx", 1.0)]))),
            "  tcp-full: read grew from 1 to 2 (+100.0 %)\n  \
             tcp-full: statx grew from 0 to 1 (+inf %)\n"
        );
    }

    #[test]
    fn an_improvement_has_to_be_accepted_too() {
        let mut baseline = Baseline::default();
        baseline.accept(&of(calls(&[("read", 1.0)])));
        assert_eq!(
            baseline.differences(&of(calls(&[("close", 1.0)]))),
            "  tcp-full: close grew from 0 to 1 (+inf %)\n  \
             tcp-full: read shrank from 1 to 0 (-100.0 %)\n"
        );
    }

    #[test]
    fn calls_that_depend_on_packet_arrival_have_a_greater_tolerance() {
        let mut baseline = Baseline::default();
        baseline.accept(&of(calls(&[("recvfrom", 4.0), ("read", 4.0)])));
        assert_eq!(baseline.differences(&of(calls(&[("recvfrom", 5.4), ("read", 4.0)]))), "");
        let differences = baseline.differences(&of(calls(&[("recvfrom", 9.0), ("read", 4.0)])));
        assert!(differences.contains("recvfrom grew from 4 to 9"), "{differences}");
    }

    #[test]
    fn an_empty_baseline_differs() {
        assert!(Baseline::default().differences(&of(counts(1, 1.0))).contains("grew from 0"));
    }

    #[test]
    fn one_instrument_keeps_what_the_other_measured() {
        let mut baseline = Baseline::default();
        baseline.accept(&of(counts(10, 1.0)));
        baseline.accept(&of(calls(&[("read", 1.0)])));
        baseline.accept(&of(counts(20, 2.0)));
        let cost = &baseline.0["tcp-full"];
        assert_eq!((cost.instructions, cost.system_calls["read"]), (Some(20), 1.0));
        let text = toml::to_string(&baseline).unwrap();
        assert_eq!(toml::from_str::<Baseline>(&text).unwrap(), baseline);
    }
}
