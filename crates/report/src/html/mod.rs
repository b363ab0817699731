//! The report as one HTML file that opens anywhere: no script, no request to any host.
//!
//! Templates are maud's: checked when the program is built, in the same file as what they show, and
//! they escape whatever is put into them, as names of servers and commands are foreign text.

mod distributions;
mod latency;
mod matrix;
mod page;
mod setting;
mod sheet;
mod summary;
mod trials;
mod visits;
mod waterfalls;

use maud::Markup;

use crate::{Pictures, Record};

pub(crate) use page::{Section, page};
pub(crate) use sheet::{folded, table};

/// The whole report, with the pictures that go into it.
pub fn render(record: &Record, pictures: &Pictures) -> String {
    let sections: Vec<Section> = [
        visits::walk_through(record),
        visits::networks(record),
        visits::film(record, pictures),
        visits::effects(record),
        visits::cells(record),
        visits::disagreements(record),
        waterfalls::section(record),
        latency::section(record),
        matrix::bars(record),
        matrix::page(record),
        matrix::loss(record),
        matrix::ping_pong(record),
        matrix::blueprint(record),
        matrix::section(record),
        distributions::section(record),
        summary::effects(record),
        summary::control(record),
        summary::residuals(record),
        trials::replays(record),
        trials::middleboxes(record),
        trials::loads(record),
        trials::costs(record),
        setting::link(record),
        Some(setting::section(record)),
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
