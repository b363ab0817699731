//! The page around the sections: head, style, navigation.

use maud::{DOCTYPE, Markup, PreEscaped, html};

/// A section of the page.
pub(crate) struct Section {
    pub id: &'static str,
    pub title: String,
    /// In the navigation.
    pub short: &'static str,
    pub body: Markup,
}

/// The page. `header` holds its main heading.
pub(crate) fn page(title: &str, header: &Markup, sections: &[Section]) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                // Whatever a record holds, the page can ask no host for anything.
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
                    " from the record alone. This page asks no other host for anything."
                }
            }
        }
    }
}

const STYLE: &str = include_str!("style.css");
