//! The console: one page that the server renders from a status.
//!
//! The page could get its figures as JSON and render them with a script. Then two places would have to
//! know what a figure means, and the page would be empty without scripts. So the server renders it with
//! the same template library as the report, again every second for those who follow it. A short script
//! replaces only the elements that changed, so that focus and selection stay. Programs get the same
//! figures as JSON from `/status.json`.
//!
//! The figures come from the metrics alone: the [history](crate::history) keeps samples of the counters
//! for an hour, and computes windows and percentiles from two samples.

mod chart;
mod overview;
mod tables;

use maud::{DOCTYPE, Markup, html};

use crate::status::Status;

pub(crate) const STYLE: &str = include_str!("console.css");
pub(crate) const SCRIPT: &str = include_str!("console.js");
pub(crate) const ICON: &str = include_str!("icon.svg");

/// The whole page, with a button to log out if there is a token.
pub(crate) fn page(status: &Status, log_out: bool) -> Markup {
    let title = format!("{}: firstflight", status.server.host);
    let body = html! {
        a.skip href="#content" { "Skip to the content" }
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
                ". This page loads nothing from other hosts."
            }
        }
    };
    document(&title, true, body)
}

/// The part of the page that changes every second.
pub(crate) fn content(status: &Status) -> Markup {
    html! {
        h1.hidden { "firstflight on " (status.server.host) }
        (overview::answers(&status.answers))
        (overview::notices(status))
        (overview::tiles(status))
        (chart::connections(&status.steps))
        div.pair {
            (tables::refusals(status))
            (tables::kinds(status))
        }
        (tables::requests(status))
        (tables::replays(status))
        div.pair {
            (tables::keys(status))
            (tables::register(status))
        }
        div.pair {
            (tables::server(status))
            (tables::certificates(status))
        }
        (tables::upstreams(status))
    }
}

/// An HTML document with the style of the console, and with its script if `script` is set.
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

/// The time of day of a status.
fn clock(status: &Status) -> String {
    let text = status.at.text();
    text.get(11..19).unwrap_or(&text).to_owned()
}
