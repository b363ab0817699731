//! Charts as SVG: bars, sparklines, percentiles. The SVG contains only shapes, so that it scales to any
//! width; text is beside it.

use std::fmt::Write;

use maud::{Markup, html};

use crate::format::number;
use crate::status::{Percentiles, Steps};

/// New connections of the last five minutes by the outcome of their early data, with the replays.
pub(super) fn connections(steps: &Steps) -> Markup {
    let series = [
        ("early", "0-RTT accepted", &steps.early),
        ("refused", "0-RTT refused", &steps.refused),
        ("without", "without 0-RTT", &steps.without),
    ];
    let count = steps.early.len();
    let sums = (0..count).map(|at| series.iter().map(|(_, _, values)| value(values, at)).sum());
    let top = round_up(sums.max().unwrap_or(0));
    let total = |values: &[u64]| number(values.iter().sum());
    let mut floors = vec![0; count];
    let label = format!(
        "Connections in steps of {} seconds: {} with 0-RTT accepted, {} refused, {} without; {} \
         replays stopped",
        steps.seconds,
        total(&steps.early),
        total(&steps.refused),
        total(&steps.without),
        total(&steps.replays)
    );
    html! {
        section.chart aria-labelledby="connections-h" {
            h2 #connections-h { "New connections in the last 5 minutes" }
            ul.legend {
                @for (class, name, values) in &series {
                    li { span.swatch.(class) {} (name) " " b { (total(values)) } }
                }
                li { span.swatch.replay {} "replays stopped " b { (total(&steps.replays)) } }
            }
            div.plot {
                p.top { (number(top)) " in " (steps.seconds) " s" }
                svg.bars viewBox=(format!("0 0 {count} 100")) preserveAspectRatio="none" role="img"
                    aria-label=(label) {
                    path.rule d=(format!("M0 .5H{count}M0 50H{count}")) {}
                    @for (class, _, values) in &series {
                        path.(class) d=(bars(values, &mut floors, top)) {}
                    }
                }
                svg.lane viewBox=(format!("0 0 {count} 10")) preserveAspectRatio="none"
                    aria-hidden="true" {
                    path.replay d=(marks(&steps.replays)) {}
                }
                p.ends { span { "5 min ago" } span { "now" } }
            }
        }
    }
}

/// A sparkline.
pub(super) fn spark(values: &[u64]) -> Markup {
    let top = values.iter().copied().max().unwrap_or(0).max(1) as f64;
    let mut line = String::new();
    for (at, value) in values.iter().enumerate() {
        let y = 19.0 - 18.0 * *value as f64 / top;
        let _ = write!(line, "{}{at} {y:.1}", if at == 0 { 'M' } else { 'L' });
    }
    let end = values.len().saturating_sub(1);
    html! {
        svg.spark viewBox=(format!("0 0 {end} 20")) preserveAspectRatio="none" aria-hidden="true" {
            path.area d=(format!("{line}V20H0Z")) {}
            path.line d=(line) {}
        }
    }
}

/// Percentiles on a logarithmic scale from 0.5 ms to 10 s: thick from p50 to p90, thin up to p99.
pub(super) fn spread(spread: &Percentiles, class: &str) -> Markup {
    let (from, to) = (MIN_TIME.ln(), MAX_TIME.ln());
    let position = |time: f64| 100.0 * ((time.max(MIN_TIME).ln() - from) / (to - from)).min(1.0);
    let (p50, p90, p99) = (position(spread.p50), position(spread.p90), position(spread.p99));
    html! {
        svg.spread viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true" {
            path.rule d="M0 5H100" {}
            path.thin.(class) d=(format!("M{p50:.1} 5H{p99:.1}")) {}
            path.thick.(class) d=(format!("M{p50:.1} 5H{:.1}", p90.max(p50 + 0.5))) {}
            path.mark.(class) d=(format!("M{p50:.1} 0V10")) {}
        }
    }
}

/// A bar for a share of a whole.
pub(super) fn share(part: u64, whole: u64, class: &str) -> Markup {
    let width = (100.0 * part as f64 / whole.max(1) as f64).min(100.0);
    html! {
        svg.share viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true" {
            path.rule d="M0 5H100" {}
            path.(class) d=(format!("M0 0H{width:.1}V10H0Z")) {}
        }
    }
}

/// One bar per step, stacked on `floors`, which are raised by it.
fn bars(values: &[u64], floors: &mut [u64], top: u64) -> String {
    let mut path = String::new();
    for (at, (value, floor)) in values.iter().zip(floors).enumerate() {
        if *value > 0 {
            let y = |count: u64| 100.0 - 100.0 * count as f64 / top as f64;
            let (low, high) = (y(*floor), y(*floor + value));
            let _ = write!(path, "M{at}.08 {low:.1}V{high:.1}h.84V{low:.1}Z");
            *floor += value;
        }
    }
    path
}

/// A mark at each step with a value above zero.
fn marks(values: &[u64]) -> String {
    let marked = values.iter().enumerate().filter(|(_, value)| **value > 0);
    marked.fold(String::new(), |mut path, (at, _)| {
        let _ = write!(path, "M{at} 10L{at}.5 0L{} 10Z", at + 1);
        path
    })
}

fn value(series: &[u64], at: usize) -> u64 {
    series.get(at).copied().unwrap_or(0)
}

/// Rounds up to 5, 10, 20, 50 and so on, so that the scale changes rarely.
fn round_up(count: u64) -> u64 {
    let mut step = 5_u64;
    loop {
        for factor in [1, 2, 4] {
            if step.checked_mul(factor).is_none_or(|top| count <= top) {
                return step.checked_mul(factor).unwrap_or(count);
            }
        }
        let Some(next) = step.checked_mul(10) else { return count };
        step = next;
    }
}

const MIN_TIME: f64 = 0.000_5;
const MAX_TIME: f64 = 10.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_ends_at_a_round_number() {
        let tops = [0, 5, 6, 10, 11, 21, 51, 4_999, 5_001].map(round_up);
        assert_eq!(tops, [5, 5, 10, 10, 20, 50, 100, 5_000, 10_000]);
        // There is no round number above the largest ones.
        assert_eq!(round_up(u64::MAX), u64::MAX);
    }

    #[test]
    fn bars_are_stacked() {
        let mut floors = vec![0, 0];
        assert_eq!(bars(&[5, 0], &mut floors, 10), "M0.08 100.0V50.0h.84V100.0Z");
        assert_eq!(
            bars(&[5, 10], &mut floors, 10),
            "M0.08 50.0V0.0h.84V50.0ZM1.08 100.0V0.0h.84V100.0Z"
        );
    }
}
