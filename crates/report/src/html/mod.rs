//! The report as one HTML file that opens anywhere.
//!
//! A report has to open in ten years, from a mail, on a machine without a network. So styles and
//! drawings are inline, there is no script and no font, and a content security policy forbids every
//! request. Drawings are SVG made by `charts`: charting crates draw pixels or need
//! a script, and none draws packets between two lifelines. Colours are CSS classes, so one drawing
//! serves light, dark and print. Templates are maud's: the compiler checks them, and they escape
//! everything that is inserted, since names of servers and commands are untrusted text.
//!
//! Pictures of filmstrips are files beside the record. [`Pictures`] embeds them, up to 1 MiB, so a
//! report that is mailed is complete. A record from elsewhere can name any file, so only small PNG
//! and JPEG files below its own directory are read.

mod experiments;
mod latency;
mod matrix;
pub(crate) mod setup;
mod summary;
mod trips;
mod visits;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::Record;
use crate::tables::Table;

pub use visits::Pictures;

/// Renders the whole report with the given pictures.
pub fn render(record: &Record, pictures: &Pictures) -> String {
    let sections: Vec<Section> = [
        matrix::claims(record),
        visits::walk_through(record),
        visits::networks(record),
        visits::filmstrips(record, pictures),
        visits::phases(record),
        visits::effects(record),
        visits::cells(record),
        visits::disagreements(record),
        experiments::waterfalls(record),
        trips::trips(record),
        latency::latency(record),
        matrix::access(record),
        matrix::bars(record),
        matrix::page(record),
        matrix::loss(record),
        matrix::ping_pong(record),
        matrix::blueprint(record),
        matrix::clients(record),
        matrix::section(record),
        latency::distributions(record),
        summary::effects(record),
        summary::control(record),
        matrix::bytes(record),
        summary::residuals(record),
        experiments::replays(record),
        experiments::middleboxes(record),
        experiments::stalls(record),
        experiments::cold_starts(record),
        experiments::loads(record),
        experiments::costs(record),
        setup::link(record),
        Some(setup::section(record)),
    ]
    .into_iter()
    .flatten()
    .collect();
    let title = crate::headline::sentences(record);
    let title = title.first().map_or("What a handshake costs here", String::as_str);
    page(title, &summary::header(record), &sections).into_string()
}

/// A grid of panels, each with a caption.
fn panels(panels: &[(String, Markup)]) -> Markup {
    maud::html! {
        div.panels {
            @for (caption, drawing) in panels {
                figure { figcaption { (caption) } (drawing) }
            }
        }
    }
}

/// A section of the page.
pub struct Section {
    /// The anchor.
    pub id: &'static str,
    /// The heading.
    pub title: String,
    /// The title in the navigation.
    pub short: &'static str,
    /// The content.
    pub body: Markup,
}

/// A page in the style of the reports, also for reports of other crates. `header` holds its main
/// heading.
pub fn page(title: &str, header: &Markup, sections: &[Section]) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                // Whatever the record contains, the page cannot send a request.
                meta http-equiv="Content-Security-Policy"
                    content="default-src 'none'; style-src 'unsafe-inline'; img-src data:";
                meta name="generator" content="firstflight";
                title { (title) }
                link rel="icon" href="data:,";
                style { (PreEscaped(STYLE)) }
            }
            body {
                a.skip href="#content" { "Skip to the figures" }
                (header)
                nav aria-label="Sections" {
                    ul {
                        @for section in sections {
                            li { a href=(format!("#{}", section.id)) { (section.short) } }
                        }
                    }
                }
                main id="content" {
                    @for section in sections {
                        section id=(section.id) aria-labelledby=(format!("{}-h", section.id)) {
                            h2 id=(format!("{}-h", section.id)) { (section.title) }
                            (section.body)
                        }
                    }
                }
                footer {
                    "Made by firstflight " (env!("CARGO_PKG_VERSION"))
                    " from the record alone. This page sends no requests."
                }
            }
        }
    }
}

/// A section that is a table.
fn simple_section(id: &'static str, short: &'static str, table: Table) -> Option<Section> {
    let body = html! {
        p { (table.lead) }
        (table_html(&table))
    };
    Some(Section { id, title: table.title, short, body })
}

/// A table that scrolls, also by keyboard, where it is wider than the window.
pub(crate) fn table_html(table: &Table) -> Markup {
    html! {
        div.scroll .tall[table.rows.len() > MAX_UNFOLDED_ROWS] tabindex="0" role="region" aria-label=(table.title) {
            table {
                caption.hidden { (table.title) ". " (table.lead) }
                thead { tr {
                    @for head in &table.head { th scope="col" .n[head.right] { (head.text) } }
                } }
                tbody {
                    @for row in &table.rows { tr {
                        @for (place, field) in row.iter().enumerate() {
                            @let right = table.head.get(place).is_some_and(|head| head.right);
                            @if place == 0 {
                                th scope="row" .n[right] { (field) }
                            } @else {
                                td .n[right] { (field) }
                            }
                        }
                    } }
                }
            }
        }
        @for note in &table.notes { p.note { (note) } }
    }
}

/// Tables that are folded behind a summary line.
pub(crate) fn folded(summary: &str, tables: &[Table]) -> Markup {
    html! {
        details {
            summary { (summary) }
            @for table in tables {
                h4 { (table.title) }
                @if !table.lead.is_empty() { p.note { (table.lead) } }
                (table_html(table))
            }
        }
    }
}

const STYLE: &str = include_str!("style.css");

// Longer tables scroll within the page.
const MAX_UNFOLDED_ROWS: usize = 24;
