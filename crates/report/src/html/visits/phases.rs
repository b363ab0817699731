//! The phases of return visits as bars, 0-RTT off and on.

use maud::{Markup, html};

use crate::Record;
use crate::charts::{StackedBar, StackedChart, StackedGroup};
use crate::html::{Section, folded, panels};
use crate::tables;
use crate::visits::{PHASES, VisitPair, browser, page, pairs, path, phases_ms};

pub(in crate::html) fn phases(record: &Record) -> Option<Section> {
    let table = tables::visit_phases(record)?;
    let drawings = panels_of(record);
    let body = html! {
        p { (table.lead) }
        ul.legend aria-label="Legend" {
            @for (name, class) in PHASES { li { span class=(format!("dot {class}")) {} (name) } }
        }
        @match drawings.as_slice() {
            [(caption, drawing)] => figure.alone { figcaption { (caption) } (drawing) }
            several => (panels(several))
        }
        @for note in &table.notes { p.note { (note) } }
        (folded("The drawing as a table", std::slice::from_ref(&table)))
    };
    Some(Section { id: "phases", title: table.title, short: "Visit phases", body })
}

/// A drawing for each network and page, with a group for each browser, server and HTTP version.
fn panels_of(record: &Record) -> Vec<(String, Markup)> {
    let mut drawings: Vec<(String, Vec<StackedGroup>)> = Vec::new();
    for pair in pairs(record) {
        let Some(group) = group(record, &pair) else { continue };
        let caption = format!("{} at {}", page(&pair.on.page), path(pair.on));
        match drawings.iter_mut().find(|(other, _)| *other == caption) {
            Some((_, groups)) => groups.push(group),
            None => drawings.push((caption, vec![group])),
        }
    }
    let draw = |(number, (caption, groups)): (usize, (String, Vec<StackedGroup>))| {
        let title = format!("Phases of return visits, {caption}");
        let drawing = StackedChart {
            id: &format!("phases-{number}"),
            title: &title,
            description: "Two bars for each browser, server and version of HTTP: a return visit with \
                          0-RTT off and with it on, divided into its phases.",
            unit: "ms",
            parts: &PHASES,
            groups: &groups,
        };
        let drawing = drawing.draw();
        (caption, drawing)
    };
    drawings.into_iter().take(MAX_PANELS).enumerate().map(draw).collect()
}

fn group(record: &Record, pair: &VisitPair<'_>) -> Option<StackedGroup> {
    let bar = |name: &str, cell| {
        let values = phases_ms(record, cell)?.to_vec();
        Some(StackedBar { name: name.to_owned(), values })
    };
    Some(StackedGroup {
        name: format!("{}, {}, HTTP/{}", browser(&pair.on.browser), pair.on.server, pair.on.http),
        bars: vec![bar("0-RTT off", pair.off)?, bar("0-RTT on", pair.on)?],
    })
}

const MAX_PANELS: usize = 12;
