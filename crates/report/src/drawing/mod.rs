//! Charts as SVG: from numbers to marks, without a clock, a file or a script.
//!
//! Colours are classes that the page's style gives a colour to, so that one drawing serves light,
//! dark and print. Each drawing has a title and a description for those who do not see it.

mod bars;
mod curves;
mod ladder;
mod scale;
mod strip;
mod thin;
mod waterfall;
mod words;

pub(crate) use bars::{Bar, BarChart, BarGroup};
pub(crate) use curves::{Curve, CurveChart, Shape};
pub(crate) use ladder::{LadderChart, Rung, RungGroup, Spot};
pub(crate) use scale::{Scale, tick};
pub(crate) use strip::Strip;
pub(crate) use thin::distribution;
pub(crate) use waterfall::WaterfallChart;

use maud::{Markup, html};

/// A drawing of this size with what it shows in words.
fn drawing(id: &str, size: (f64, f64), title: &str, description: &str, marks: Markup) -> Markup {
    let (width, height) = size;
    html! {
        svg role="img" viewBox=(format!("0 0 {} {}", px(width), px(height)))
            width=(px(width)) height=(px(height))
            aria-labelledby=(format!("{id}-t {id}-d")) {
            title id=(format!("{id}-t")) { (title) }
            desc id=(format!("{id}-d")) { (description) }
            (marks)
        }
    }
}

/// A coordinate: one decimal is finer than a pixel. What is not a number is drawn at the origin.
fn px(value: f64) -> String {
    let value = if value.is_finite() { value.clamp(-1e5, 1e5) } else { 0.0 };
    let text = format!("{value:.1}");
    match text.strip_suffix(".0") {
        Some("-0") => "0".to_owned(),
        Some(whole) => whole.to_owned(),
        None => text,
    }
}

/// Where a text is anchored.
#[derive(Clone, Copy)]
enum Anchor {
    Start,
    Middle,
    End,
}

fn text(x: f64, y: f64, anchor: Anchor, class: &str, words: &str) -> Markup {
    let anchor = match anchor {
        Anchor::Start => "start",
        Anchor::Middle => "middle",
        Anchor::End => "end",
    };
    html! { text x=(px(x)) y=(px(y)) text-anchor=(anchor) class=(class) { (words) } }
}

fn line(from: (f64, f64), to: (f64, f64), class: &str) -> Markup {
    html! { line x1=(px(from.0)) y1=(px(from.1)) x2=(px(to.0)) y2=(px(to.1)) class=(class) {} }
}

/// A kind's colour class; anything unknown has the ink's.
pub(crate) fn kind_class(kind: &str) -> &'static str {
    match kind {
        "full" => "k-full",
        "resumed" => "k-resumed",
        "0-RTT" => "k-early",
        "refused" => "k-refused",
        _ => "k-other",
    }
}
