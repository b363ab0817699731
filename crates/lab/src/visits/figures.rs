//! The figures of cells, and the effects between cells (sans-IO).

use std::collections::HashMap;

use firstflight_browser::Installed;
use firstflight_report::statistics::{consensus, paired_difference_of_medians};
use firstflight_report::{
    BrowserTimings, Figures, Interval, Visit, VisitCell, VisitEffect, VisitPackets, VisitSummary,
};

use super::pages;
use super::plan::{Cell, Plan, VisitKind, VisitPage};
use super::validation::browser_tls;
use crate::HttpVersion;

/// The cells of the record with their figures, in the order of the plan.
pub(crate) fn cells(plan: &Plan, browsers: &[Installed], visits: &[Visit]) -> Vec<VisitCell> {
    let mut good: Vec<Vec<&Visit>> = vec![Vec::new(); plan.cells.len()];
    for visit in visits.iter().filter(|visit| visit.fault.is_none()) {
        good[visit.cell].push(visit);
    }
    let names = names(browsers);
    let cell = |(planned, good): (&Cell, &Vec<&Visit>)| {
        let network = &plan.networks[planned.network];
        VisitCell {
            browser: names[planned.browser].clone(),
            server: planned.server.name().to_owned(),
            profile: network.name().to_owned(),
            rtt_ms: network.rtt_ms(),
            http: planned.http.name().to_owned(),
            page: planned.page.name().to_owned(),
            visit: planned.visit_kind.name().to_owned(),
            summary: summary(planned.page, good),
        }
    };
    plan.cells.iter().zip(&good).map(cell).collect()
}

/// The names of browsers in cells: their kind, with a number for the second and later browsers of a
/// kind.
pub(crate) fn names(browsers: &[Installed]) -> Vec<String> {
    let name = |(index, browser): (usize, &Installed)| {
        let before = browsers[..index].iter().filter(|other| other.kind == browser.kind).count();
        match before {
            0 => browser.kind.to_string(),
            _ => format!("{}-{}", browser.kind, before + 1),
        }
    };
    browsers.iter().enumerate().map(name).collect()
}

fn summary(page: VisitPage, good: &[&Visit]) -> Option<VisitSummary> {
    let browser = |value: &dyn Fn(&BrowserTimings) -> Option<f64>| {
        Figures::from_values(good.iter().filter_map(|visit| value(visit.browser.as_ref()?)))
    };
    let wire = |value: fn(&VisitPackets) -> Option<f64>| {
        Figures::from_values(good.iter().filter_map(|visit| value(visit.wire.as_ref()?)))
    };
    let trips = good.iter().map(|visit| visit.wire.as_ref()?.round_trips);
    Some(VisitSummary {
        visits: good.len(),
        early: good.iter().filter(|visit| is_early(visit)).count(),
        tls: browser(&browser_tls),
        wire_tls: wire(|packets| packets.tls_ms),
        total: browser(&|times| Some(times.total_ms(page.name())))?,
        wire_total: wire(|packets| packets.last_byte_ms),
        load: browser(&|times| times.load_event_ms),
        largest_paint: browser(&|times| times.largest_paint_ms),
        round_trips: consensus(trips),
    })
}

/// Whether the page's connection carried early data that the server accepted.
fn is_early(visit: &Visit) -> bool {
    visit.wire.as_ref().is_some_and(|wire| wire.label == "0-RTT")
}

/// The effects between cells that differ in one property, if there are enough visits for a
/// confidence interval. `rounds` holds the round of each block.
pub(crate) fn effects(
    plan: &Plan,
    rounds: &[usize],
    visits: &[Visit],
    seed: u64,
) -> Vec<VisitEffect> {
    let mut effects = Vec::new();
    for (from, a) in plan.cells.iter().enumerate() {
        for (to, b) in plan.cells.iter().enumerate() {
            let Some(what) = comparison(a, b) else { continue };
            let seed = seed.wrapping_add((from as u64) << 32).wrapping_add(to as u64);
            let between = |value: &dyn Fn(&BrowserTimings) -> Option<f64>| {
                difference((from, to), rounds, visits, value, seed)
            };
            let Some(total) = between(&|times| Some(times.total_ms(a.page.name()))) else {
                continue;
            };
            let load = (pages::subresource_count(a.page) > 0)
                .then(|| between(&|times| times.load_event_ms));
            effects.push(VisitEffect {
                what: what.to_owned(),
                from,
                to,
                total_ms: total,
                total_rtt: total.scaled(1.0 / plan.networks[a.network].rtt_ms()),
                load_ms: load.flatten(),
                significant: total.excludes_zero(),
            });
        }
    }
    effects
}

/// The difference of the medians, paired by round. Within a round both cells are visited close
/// together.
fn difference(
    (from, to): (usize, usize),
    rounds: &[usize],
    visits: &[Visit],
    value: &dyn Fn(&BrowserTimings) -> Option<f64>,
    seed: u64,
) -> Option<Interval> {
    let mut blocks: HashMap<usize, (Vec<f64>, Vec<f64>)> = HashMap::new();
    for visit in visits.iter().filter(|visit| visit.fault.is_none()) {
        let Some(time) = visit.browser.as_ref().and_then(value) else { continue };
        let Some(round) = rounds.get(visit.block) else { continue };
        if visit.cell == from {
            blocks.entry(*round).or_default().0.push(time);
        } else if visit.cell == to {
            blocks.entry(*round).or_default().1.push(time);
        }
    }
    let mut blocks: Vec<_> = blocks.into_iter().collect();
    blocks.sort_unstable_by_key(|(round, _)| *round);
    let blocks: Vec<_> = blocks.into_iter().map(|(_, block)| block).collect();
    paired_difference_of_medians(&blocks, seed)
}

/// Describes the difference between two cells, if it is one to report.
fn comparison(a: &Cell, b: &Cell) -> Option<&'static str> {
    let (from, to) = (a.visit_kind, b.visit_kind);
    if *b == (Cell { visit_kind: to, ..a.clone() }) {
        return match (from, to) {
            (VisitKind::ReturnEarlyDataOff, VisitKind::ReturnEarlyDataOn) => {
                Some("0-RTT on instead of off")
            }
            (VisitKind::First, VisitKind::ReturnEarlyDataOn) => {
                Some("a return with 0-RTT instead of a first visit")
            }
            _ => None,
        };
    }
    if *b == (Cell { http: b.http, ..a.clone() }) {
        return match (a.http, b.http) {
            (HttpVersion::Two, HttpVersion::Three) => Some("HTTP/3 instead of HTTP/2"),
            (HttpVersion::One, HttpVersion::Two) => Some("HTTP/2 instead of HTTP/1.1"),
            _ => None,
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use firstflight_browser::BrowserKind;
    use firstflight_emulator::Profile;
    use firstflight_report::Fault;

    use super::*;
    use crate::ServerKind;
    use crate::visits::VisitSet;

    fn browsers() -> Vec<Installed> {
        vec![Installed {
            kind: BrowserKind::Firefox,
            program: PathBuf::new(),
            version: String::new(),
        }]
    }

    fn plan() -> Plan {
        let set = VisitSet {
            profiles: vec![Profile::parse("walkthrough").unwrap()],
            servers: vec![ServerKind::Firstflight],
            http: vec![HttpVersion::One],
            pages: vec![VisitPage::Small],
            rounds: 6,
            returns: 5,
        };
        Plan::new(&browsers(), &[set], 1)
    }

    fn visit(cell: usize, block: usize, total: f64, label: &str) -> Visit {
        Visit {
            cell,
            block,
            browser: Some(BrowserTimings {
                secure_connection_start_ms: Some(112.0),
                connect_end_ms: 113.0,
                response_end_ms: total,
                ..BrowserTimings::default()
            }),
            wire: Some(VisitPackets {
                label: label.to_owned(),
                round_trips: Some(2),
                ..VisitPackets::default()
            }),
            ..Visit::default()
        }
    }

    #[test]
    fn two_browsers_of_a_kind_get_different_names() {
        let installed = |kind| Installed { kind, program: PathBuf::new(), version: String::new() };
        let all =
            [BrowserKind::Firefox, BrowserKind::Chromium, BrowserKind::Firefox].map(installed);
        assert_eq!(names(&all), ["firefox", "chromium", "firefox-2"]);
    }

    #[test]
    fn effects_are_differences_of_medians_over_rounds_of_valid_visits() {
        let plan = plan();
        let at =
            |visit_kind| plan.cells.iter().position(|cell| cell.visit_kind == visit_kind).unwrap();
        let (off, on) = (at(VisitKind::ReturnEarlyDataOff), at(VisitKind::ReturnEarlyDataOn));
        let rounds: Vec<usize> = plan.blocks.iter().map(|block| block.round).collect();
        let mut visits = Vec::new();
        for (index, block) in plan.blocks.iter().enumerate() {
            for turn in 0..5 {
                let drift = block.round as f64 + f64::from(turn);
                visits.push(match block.early {
                    true => visit(on, index, 224.0 + drift, "0-RTT"),
                    false => visit(off, index, 336.0 + drift, "resumed"),
                });
            }
        }
        visits.push(Visit {
            fault: Some(Fault::Spoiled(String::new())),
            ..visit(on, 0, 9e9, "full")
        });
        let effects = effects(&plan, &rounds, &visits, 1);
        assert_eq!(effects.len(), 1, "{effects:?}");
        assert_eq!((effects[0].from, effects[0].to), (off, on));
        assert!((effects[0].total_ms.estimate + 112.0).abs() < 1e-9);
        assert!((effects[0].total_rtt.estimate + 1.0).abs() < 1e-9);
        assert!(effects[0].significant && effects[0].load_ms.is_none());
        let cells = cells(&plan, &browsers(), &visits);
        let summary = cells[on].summary.as_ref().unwrap();
        assert_eq!((summary.visits, summary.early), (30, 30));
        assert_eq!(summary.tls.as_ref().unwrap().p50_ms, 1.0);
        assert_eq!(summary.round_trips, Some(2));
        assert!(cells[at(VisitKind::First)].summary.is_none());
    }
}
