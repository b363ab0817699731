//! Every visit cell, the effects, and disagreements between browser and packets.

use maud::{Markup, html};

use super::{figures, outcome};
use crate::charts::IntervalStrip;
use crate::format::format_signed_ms;
use crate::html::{Section, folded, table_html};
use crate::tables::{self, Table, ordered_visit_effects, range};
use crate::visits::{as_shipped, browser, class, name, page, path, place, visit, warned};
use crate::{Record, VisitCell, VisitEffect};

/// The figures of browser and packets, cell by cell.
pub(in crate::html) fn cells(record: &Record) -> Option<Section> {
    if record.visit_cells.is_empty() {
        return None;
    }
    let several = record.visit_cells.len() > MAX_UNFOLDED_ROWS;
    let title = "All visits".to_owned();
    let body = html! {
        p { "Medians in ms as reported by the browser, with 95 % intervals and the same figure from the "
            "packets below. TLS setup ends when a request can be sent. The total starts with the "
            "navigation in the browser and with the first packet on the wire, and ends with the last "
            "byte of the page or image. The load event waits for all subresources; the last byte of "
            "theirs on the wire is below it. Round trips are those to the first byte of the response. "
            "Early: visits in which the server accepted early data, by their packets." }
        @for note in as_shipped(record) { p.note { (note) } }
        div.scroll.tall[several] tabindex="0" role="region" aria-label=(title) {
            table.matrix {
                caption.hidden { (title) }
                thead { tr {
                    @for head in ["network", "browser", "page", "visit"] { th scope="col" { (head) } }
                    @for head in
                        ["early", "TLS set-up", "total", "round trips", "load event", "largest paint"]
                    { th.n scope="col" { (head) } }
                } }
                tbody { @for (at, cell) in record.visit_cells.iter().enumerate() {
                    @let begins = at == 0 || place(&record.visit_cells[at - 1]) != place(cell);
                    (row(cell, begins))
                } }
            }
        }
    };
    Some(Section { id: "visits", title, short: "Visits", body })
}

fn row(cell: &VisitCell, begins: bool) -> Markup {
    html! { tr.begins[begins] {
        th scope="row" { @if begins { (path(cell)) } @else { span.hidden { (path(cell)) } } }
        td { @if begins { (browser(&cell.browser)) span.sub { (cell.server) ", HTTP/" (cell.http) } } }
        td { @if begins { (page(&cell.page)) } }
        td.keep { span class=(format!("dot {}", class(&cell.visit))) {} (visit(&cell.visit)) }
        @if let Some(summary) = &cell.summary {
            td.n { (summary.early) " of " (summary.visits) }
            td.n { (figures(summary.tls.as_ref(), summary.wire_tls.as_ref())) }
            @let [page, all] = cell.last_bytes(summary);
            td.n { (figures(Some(&summary.total), page)) }
            td.n { (summary.round_trips.map_or("?".to_owned(), |trips| trips.to_string())) }
            td.n { (figures(summary.load.as_ref(), all)) }
            td.n { (figures(summary.largest_paint.as_ref(), None)) }
        } @else {
            td colspan="6" { span.faint { "no good visit" } }
        }
    } }
}

/// What one kind of visit saves against another.
pub(in crate::html) fn effects(record: &Record) -> Option<Section> {
    if record.visit_effects.is_empty() {
        return None;
    }
    let title = "What a kind of visit saves".to_owned();
    let intervals = record.visit_effects.iter().map(|effect| &effect.total_rtt);
    let strips = IntervalStrip::of(intervals, MAX_STRIP_RTT);
    let row = |effect: &VisitEffect| {
        let cell = &record.visit_cells[effect.to];
        html! { tr {
            th scope="row" { (effect.what) }
            td { (place(cell)) }
            td.n { (format_signed_ms(effect.total_ms.estimate)) }
            td.n { (range(&effect.total_ms)) }
            td.n { @if cell.rtt_ms >= 0.1 { (format_signed_ms(effect.total_rtt.estimate)) } }
            td { @if cell.rtt_ms >= 0.1 {
                (strips.draw(&effect.total_rtt, outcome(effect.significant, &effect.total_rtt)))
            } }
            td.n { @if let Some(load) = &effect.load_ms { (format_signed_ms(load.estimate)) } }
        } }
    };
    let clear = record.visit_effects.iter().filter(|effect| effect.significant).count();
    let body = html! {
        p { "Difference of medians of the total in the browser with its 95 % interval, in ms and in round "
            "trips, and of the load event where there are subresources. Negative values are faster. " (clear) " of " (record.visit_effects.len())
            " intervals exclude 0. The strips show round trips, the vertical line is 0." }
        div.scroll.tall tabindex="0" role="region" aria-label=(title) {
            table {
                caption.hidden { (title) }
                thead { tr {
                    th scope="col" { "what" } th scope="col" { "where" }
                    th.n scope="col" { "ms" } th.n scope="col" { "95 %" }
                    th.n scope="col" { "round trips" } th scope="col" { "interval" }
                    th.n scope="col" { "load ms" }
                } }
                tbody { @for effect in ordered_visit_effects(record) { (row(effect)) } }
            }
        }
    };
    Some(Section { id: "visit-effects", title, short: "Saved", body })
}

/// Where browser and packets disagree.
pub(in crate::html) fn disagreements(record: &Record) -> Option<Section> {
    let table = tables::disagreements(record)?;
    let body = html! {
        p { (table.lead) }
        (table_html(&table))
        (folded("Every warning", &[warnings(record)]))
    };
    Some(Section { id: "disagreements", title: table.title, short: "Warnings", body })
}

fn warnings(record: &Record) -> Table {
    let mut table = Table::new("Every warning", "", &["visit", ">block", ">turn", "warning"]);
    for visit in record.visits.iter().filter(|visit| !visit.warnings.is_empty()).take(MAX_ROWS) {
        table.rows.push(vec![
            name(&record.visit_cells[visit.cell]),
            visit.block.to_string(),
            visit.turn.to_string(),
            visit.warnings.join("; "),
        ]);
    }
    let (all, _) = warned(record);
    if all > MAX_ROWS {
        table.notes.push(format!("and {} more, in the record", all - MAX_ROWS));
    }
    table
}

// In round trips: no handshake can save more.
const MAX_STRIP_RTT: f64 = 4.0;
const MAX_UNFOLDED_ROWS: usize = 24;
const MAX_ROWS: usize = 200;
