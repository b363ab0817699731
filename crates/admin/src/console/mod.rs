//! The console: one page, drawn here from a status. A script only replaces what has changed, so the
//! page is whole without it.

mod chart;
pub(crate) mod figures;
mod notices;
mod overview;
mod tables;

use maud::{DOCTYPE, Markup, html};

use crate::status::Status;

pub(crate) const STYLE: &str = include_str!("console.css");
pub(crate) const SCRIPT: &str = include_str!("console.js");
pub(crate) const ICON: &str = include_str!("icon.svg");

/// The page. `log_out`: there is something to log out of.
pub(crate) fn page(status: &Status, log_out: bool) -> Markup {
    let title = format!("{}: firstflight", status.server.host);
    let body = html! {
        a.skip href="#content" { "Skip to the figures" }
        header {
            p.name { strong { "firstflight" } " " span.host { (status.server.host) } }
            p #live data-state="snapshot" { "Snapshot of " (clock(status)) " UTC" }
            @if log_out {
                form method="post" action="logout" { button { "Log out" } }
            }
        }
        main #content { (content(status)) }
        footer {
            p {
                "Also here: " a href="status.json" { "status.json" } ", " a href="metrics" { "metrics" }
                ". This page asks no other host for anything."
            }
        }
    };
    document(&title, true, body)
}

/// What changes from second to second.
pub(crate) fn content(status: &Status) -> Markup {
    html! {
        h1.hidden { "firstflight on " (status.server.host) }
        (overview::answers(&status.answers))
        (notices::list(status))
        (overview::tiles(status))
        (chart::connections(&status.steps))
        div.pair {
            (tables::refusals(status))
            (tables::kinds(status))
        }
        (tables::replays(status))
        div.pair {
            (tables::keys(status))
            (tables::memory(status))
        }
        div.pair {
            (tables::server(status))
            (tables::certificates(status))
        }
        (tables::upstreams(status))
    }
}

/// A document with our style. `script`: it keeps itself up to date.
pub(crate) fn document(title: &str, script: bool, body: Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                link rel="icon" href="icon.svg" type="image/svg+xml";
                link rel="stylesheet" href="console.css";
                @if script {
                    script src="console.js" defer {}
                }
            }
            body { (body) }
        }
    }
}

/// The hour of a status.
fn clock(status: &Status) -> String {
    let text = status.at.text();
    text.get(11..19).unwrap_or(&text).to_owned()
}
