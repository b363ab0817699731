//! The head of the report, and its main results: effects, control, residuals.

use maud::{Markup, html};

use super::{Section, folded, table_html};
use crate::axes::{cell_names, kind, path, version};
use crate::charts::{IntervalStrip, kind_class};
use crate::format::{count, format_ms, format_signed_ms};
use crate::headline::{Saving, savings, sentences, typical_visits};
use crate::tables::{self, Table};
use crate::visits::{VisitPair, warned, who};
use crate::{Interval, Record, Witness};

/// The main heading, the savings of each network, and how far to trust them.
pub(super) fn header(record: &Record) -> Markup {
    // Keeps values and units on one line.
    let unbroken = |text: String| text.replace("0-RTT", "0\u{2011}RTT").replace(" ms", "\u{a0}ms");
    let sentences: Vec<String> = sentences(record).into_iter().map(unbroken).collect();
    let savings = savings(record);
    html! {
        header {
            p.kicker { "firstflight \u{b7} " (kicker(record)) }
            h1 { (sentences.first().map_or("What a handshake costs here", String::as_str)) }
            @for sentence in sentences.iter().skip(1) { p.lead { (sentence) } }
            @if !savings.is_empty() { (cards(&savings)) }
            @else { (visit_cards(&typical_visits(record))) }
            (facts(record))
        }
    }
}

fn kicker(record: &Record) -> &'static str {
    match record.cells.is_empty() && !record.visit_cells.is_empty() {
        true => "page loads in browsers",
        false => "what a handshake costs",
    }
}

/// A card for each browser.
fn visit_cards(pairs: &[VisitPair<'_>]) -> Markup {
    html! {
        @if !pairs.is_empty() {
            ul.cards aria-label="Time of a visit, without and with 0-RTT, browser by browser" {
                @for pair in pairs { (visit_card(pair)) }
            }
        }
    }
}

fn visit_card(pair: &VisitPair<'_>) -> Markup {
    let first = pair.first.and_then(|cell| cell.summary.as_ref());
    let Some((off, on)) = pair.medians() else { return html! {} };
    let first = first.map(|summary| match (&summary.load, pair.on.has_subresources()) {
        (Some(load), true) => load.p50_ms,
        _ => summary.total.p50_ms,
    });
    let bars = [
        ("first visit", "k-full", first),
        ("return", "k-resumed", Some(off)),
        ("0-RTT", "k-early", Some(on)),
    ];
    let longest = first.into_iter().chain([off, on]).fold(1e-9, f64::max);
    html! { li {
        span.where { (who(pair.on)) }
        span.saved { (pair.difference_ms().map_or(String::new(), format_signed_ms)) " ms" }
        @for (name, class, ms) in bars {
            @if let Some(ms) = ms { (measure(name, class, ms, longest)) }
        }
    } }
}

/// A bar of a card with its name and figure.
fn measure(name: &str, class: &str, ms: f64, longest: f64) -> Markup {
    let width = 100.0 * ms / longest.max(1e-9);
    html! {
        span.measure {
            span.name { (name) }
            span.track { span class=(format!("fill {class}"))
                style=(format!("width:{:.1}%", width.clamp(0.0, 100.0))) {} }
            span.ms { (format_ms(ms)) }
        }
    }
}

fn cards(savings: &[Saving<'_>]) -> Markup {
    html! {
        ul.cards aria-label="Time to the first byte, full handshake and 0-RTT, network by network" {
            @for saving in savings.iter().take(MAX_CARDS) {
                li {
                    span.where { (path(saving.early)) }
                    span.saved { (format_signed_ms(-saving.saved_ms())) " ms" }
                    @let bars = [
                        ("full", "k-full", Some(saving.full_ms)),
                        ("0-RTT", "k-early", Some(saving.early_ms)),
                        ("0-RTT + TFO", "k-early", saving.early_tfo_ms),
                        ("0-RTT, QUIC", "k-early", saving.early_quic_ms),
                    ];
                    @for (name, class, ms) in bars {
                        @if let Some(ms) = ms {
                            (measure(name, class, ms, saving.full_ms.max(saving.early_ms)))
                        }
                    }
                }
            }
        }
        @if savings.len() > MAX_CARDS {
            p.note { "and " (savings.len() - MAX_CARDS) " more networks in the tables below" }
        }
    }
}

/// How far the figures can be trusted.
fn facts(record: &Record) -> Markup {
    let failures = record.failures().count();
    let good: usize = record.good_samples().iter().sum();
    let spoiled = record.spoiled();
    let witness = match record.witness {
        Witness::Packets => "labelled and counted from its packets",
        Witness::Kernel => "labelled by TCP_INFO and the client's TLS state, without a capture",
    };
    html! {
        ul.facts {
            @if !record.visits.is_empty() { (visit_facts(record)) }
            @if !record.samples.is_empty() || record.visits.is_empty() { li.good[failures == 0].bad[failures > 0] {
                @if failures == 0 {
                    (count(good as f64)) " connections, each " (witness)
                    ", all of the requested kind"
                } @else {
                    (failures) " of " (count(record.samples.len() as f64))
                    " connections failed or were not of the requested kind"
                }
            } }
            @for stage in &record.failed_stages { li.bad { (stage) } }
            @if spoiled > 0 {
                li { (count(spoiled as f64)) " samples spoiled by the machine and left out" }
            }
            @if record.disturbed() > 0 {
                li { (count(record.disturbed() as f64))
                    " samples excluded because of intended packet loss" }
            }
            @if let Some(control) = &record.control {
                @let ok = control.differing <= control.allowed;
                li.good[ok && control.is_decidable()].bad[!ok] {
                    "A/A control: " (control.differing) " of " (control.pairs.len())
                    " equal pairs differ, chance allows " (control.allowed)
                }
            }
            @for replay in &record.replays {
                @let good = replay.executed == 0 && replay.doubt().is_none();
                li.good[good].bad[replay.executed > 0] {
                    (replay.name()) " executed " (count(replay.executed as f64)) " of "
                    (count(replay.tries as f64)) " replayed flights"
                    @if let Some(doubt) = replay.doubt() { "; " (doubt) }
                }
            }
            @if let Some(link) = &record.link {
                li { "link late by " (crate::format::format_us(link.lateness_p50_us))
                    " \u{b5}s at p50, " (crate::format::format_us(link.lateness_p99_us))
                    " \u{b5}s at p99" }
            }
            li { (record.date) ", " (record.machine.processor) }
        }
    }
}

fn visit_facts(record: &Record) -> Markup {
    let failures = record.visit_failures().count();
    let (warned, all) = warned(record);
    let faults = record.visits.iter().filter(|visit| visit.fault.is_some()).count();
    let (good, all) = (record.good_visits().iter().sum::<usize>(), count(all as f64));
    html! {
        li.good[failures == 0].bad[failures > 0] {
            @if failures == 0 { (count(good as f64)) " visits, all of the requested kind" }
            @else { (failures) " of " (all) " visits failed or were not of the requested kind" }
        }
        @if faults > failures { li { (faults - failures) " visits spoiled or disturbed, and left out" } }
        li.good[warned == 0] {
            @if warned == 0 { "browser and packets agree in all of them" }
            @else { "browser and packets disagree in " (count(warned as f64)) " of them" }
        }
    }
}

pub(super) fn effects(record: &Record) -> Option<Section> {
    let table = tables::effects(record)?;
    let strips = IntervalStrip::of(
        record.effects.iter().map(|effect| &effect.difference_rtt),
        MAX_STRIP_RTT,
    );
    let names = cell_names(record);
    let clear = record.effects.iter().filter(|effect| effect.significant).count();
    let row = |effect: &crate::Effect| {
        let class = match (effect.significant, effect.difference_ms.estimate < 0.0) {
            (false, _) => "k-other",
            (true, true) => "k-saves",
            (true, false) => "k-costs",
        };
        html! { tr {
            th scope="row" { (effect.what) }
            td { (names[effect.to]) }
            td.n { (format_signed_ms(effect.difference_ms.estimate)) }
            td.n { (range(&effect.difference_ms)) }
            td.n { (tables::in_round_trips(record, effect)) }
            td { @if record.cells[effect.to].counts_in_round_trips() {
                (strips.draw(&effect.difference_rtt, class))
            } }
        } }
    };
    let body = html! {
        p { (table.lead) " Negative values are faster. " (clear) " of " (record.effects.len())
            " intervals exclude 0. The strips are in round trips, the upright line is 0; beyond four they "
            "end at the border." }
        div.scroll.tall tabindex="0" role="region" aria-label=(table.title) {
            table {
                caption.hidden { (table.title) }
                thead { tr {
                    th scope="col" { "what" } th scope="col" { "where" }
                    th.n scope="col" { "ms" } th.n scope="col" { "95 %" }
                    th.n scope="col" { "round trips" } th scope="col" { "interval" }
                } }
                tbody { @for effect in tables::ordered_effects(record) { (row(effect)) } }
            }
        }
    };
    Some(Section { id: "effects", title: table.title, short: "Savings", body })
}

pub(super) fn control(record: &Record) -> Option<Section> {
    let control = record.control.as_ref()?;
    let table = tables::control(record)?;
    let strips = IntervalStrip::of(control.pairs.iter().map(|pair| &pair.difference_ms), f64::MAX);
    let names = cell_names(record);
    let body = html! {
        p { (table.lead) }
        div.scroll tabindex="0" role="region" aria-label=(table.title) {
            table {
                caption.hidden { (table.title) }
                thead { tr {
                    th scope="col" { "cell" } th.n scope="col" { "ms" } th.n scope="col" { "95 %" }
                    th scope="col" { "interval" } th scope="col" { "differs" }
                } }
                tbody { @for pair in &control.pairs { tr {
                    th scope="row" { (names[pair.cell]) }
                    td.n { (format_signed_ms(pair.difference_ms.estimate)) }
                    td.n { (range(&pair.difference_ms)) }
                    td { (strips.draw(&pair.difference_ms,
                        if pair.differs { "k-costs" } else { kind_class("resumed") })) }
                    td { (if pair.differs { "yes" } else { "no" }) }
                } } }
            }
        }
    };
    Some(Section { id: "control", title: table.title, short: "A/A", body })
}

pub(super) fn residuals(record: &Record) -> Option<Section> {
    let has_residual = |cell: &&crate::Cell| {
        !cell.control && cell.summary.as_ref().is_some_and(|summary| summary.residual.is_some())
    };
    let cells: Vec<&crate::Cell> = record.cells.iter().filter(has_residual).collect();
    if cells.is_empty() {
        return None;
    }
    let flagged = tables::residuals(record);
    let body = html! {
        @if let Some(table) = &flagged {
            p { (table.lead) }
            (table_html(table))
        } @else {
            p { "The model is round trips times RTT, the rates' part, and both sides' processor "
                "time. All " (cells.len()) " cells are within its tolerance." }
        }
        (folded("All cells beside the model", &[all_residuals(&cells)]))
    };
    let title = "Measured and model".to_owned();
    Some(Section { id: "model", title, short: "Model", body })
}

fn all_residuals(cells: &[&crate::Cell]) -> Table {
    let head = ["cell", "network", "TLS", ">model ms", ">measured ms", ">beyond ms", "flagged"];
    let mut table = Table::new("Measured and model", "", &head);
    for cell in cells {
        let Some(summary) = &cell.summary else { continue };
        let Some(residual) = &summary.residual else { continue };
        table.rows.push(vec![
            format!("{} {} {}", cell.server, cell.workload, kind(cell)),
            path(cell),
            version(cell),
            format_ms(residual.model_ms),
            format_ms(summary.first_byte.p50_ms),
            format_signed_ms(residual.residual_ms),
            if residual.flagged { "yes" } else { "" }.to_owned(),
        ]);
    }
    table
}

fn range(interval: &Interval) -> String {
    format!("{} to {}", format_signed_ms(interval.low), format_signed_ms(interval.high))
}

const MAX_CARDS: usize = 8;
// In round trips: no handshake can save more.
const MAX_STRIP_RTT: f64 = 4.0;
