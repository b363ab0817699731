//! A table as HTML.

use maud::{Markup, html};

use crate::sheets::Sheet;

/// A table that can be scrolled by keyboard where it is wider than the window.
pub(crate) fn table(sheet: &Sheet) -> Markup {
    html! {
        div.scroll .tall[sheet.rows.len() > LONG] tabindex="0" role="region" aria-label=(sheet.title) {
            table {
                caption.hidden { (sheet.title) ". " (sheet.lead) }
                thead { tr {
                    @for head in &sheet.head { th scope="col" .n[head.right] { (head.text) } }
                } }
                tbody {
                    @for row in &sheet.rows { tr {
                        @for (place, field) in row.iter().enumerate() {
                            @let right = sheet.head.get(place).is_some_and(|head| head.right);
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
        @for note in &sheet.notes { p.note { (note) } }
    }
}

/// A table behind a line that opens it.
pub(crate) fn folded(summary: &str, sheets: &[Sheet]) -> Markup {
    html! {
        details {
            summary { (summary) }
            @for sheet in sheets {
                h4 { (sheet.title) }
                @if !sheet.lead.is_empty() { p.note { (sheet.lead) } }
                (table(sheet))
            }
        }
    }
}

// Longer tables scroll within the page.
const LONG: usize = 24;
