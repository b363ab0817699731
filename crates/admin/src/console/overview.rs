//! What is seen at a glance: three responses, and a row of figures.

use maud::{Markup, html};

use super::chart;
use super::figures::{number, percent, rate};
use crate::status::{Answer, Answers, Mood, Status};

/// The three questions, answered.
pub(super) fn answers(answers: &Answers) -> Markup {
    let questions = [
        ("used", "Is 0-RTT used?", &answers.used),
        ("why-not", "Where not, why not?", &answers.why_not),
        ("replayed", "Has anyone tried to replay?", &answers.replayed),
    ];
    html! {
        section.answers aria-label="The three questions" {
            @for (id, question, response) in questions {
                (card(id, question, response))
            }
        }
    }
}

fn card(id: &str, question: &str, response: &Answer) -> Markup {
    let (class, sign) = sign(response.mood);
    html! {
        article.card.(class) id=(id) {
            h2 { (question) }
            // Said aloud when it changes; the sentence, whose figures always do, is not.
            p.word aria-live="polite" {
                span.sign aria-hidden="true" { (sign) } (capital(&response.word))
            }
            p.sentence { (response.sentence) }
        }
    }
}

/// A mood's class, and its sign: colours are not all that tells.
pub(super) fn sign(mood: Mood) -> (&'static str, &'static str) {
    match mood {
        Mood::Good => ("good", "\u{2713}"),
        Mood::Quiet => ("quiet", "\u{2013}"),
        Mood::Look => ("look", "!"),
        Mood::Bad => ("bad", "\u{2715}"),
    }
}

/// A row of figures.
pub(super) fn tiles(status: &Status) -> Markup {
    let (now, minute) = (&status.now, status.windows.first().cloned().unwrap_or_default());
    let connections = now.tcp_connections + now.quic_connections;
    let early = match minute.requests {
        0 => NONE.to_owned(),
        all => percent(minute.ran_early, all),
    };
    html! {
        section.tiles aria-label="Now" {
            (tile("requests", "Requests a second", &rate(minute.requests_per_second),
                chart::spark(&status.steps.requests)))
            (tile("early-requests", "Of them run early", &early, html! {
                (number(minute.ran_early)) " in the last minute"
            }))
            (tile("connections", "Connections open", &number(connections), html! {
                (number(now.tcp_connections)) " TCP, " (number(now.quic_connections)) " QUIC"
            }))
            (tile("held", "Requests held now", &number(now.held), html! {
                (number(now.requests)) " in progress"
            }))
            (tile("too-early", "Answered 425", &number(minute.too_early), html! {
                "in the last minute"
            }))
        }
    }
}

fn tile(id: &str, name: &str, figure: &str, more: Markup) -> Markup {
    html! {
        div.tile id=(id) {
            p.what { (name) }
            p.figure { (figure) }
            div.more { (more) }
        }
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}

/// Where there is nothing to have a figure of.
pub(super) const NONE: &str = "\u{2013}";
