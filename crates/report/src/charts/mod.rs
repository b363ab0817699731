//! Charts as SVG. Colours are CSS classes that the page's style defines, so one drawing serves
//! light, dark and print. Each drawing has a title and a description for screen readers.

mod bars;
mod curves;
mod intervals;
mod placement;
mod scale;
mod stacked;
mod trips;
mod waterfall;

use maud::{Markup, html};

pub(crate) use bars::{Bar, BarChart, BarGroup};
pub(crate) use curves::{Curve, CurveChart, Shape, distribution};
pub(crate) use intervals::{Dumbbell, DumbbellChart, DumbbellGroup, Estimate, IntervalStrip};
pub(crate) use scale::{Scale, tick};
pub(crate) use stacked::{StackedBar, StackedChart, StackedGroup};
pub(crate) use trips::{TripsChart, TripsRow};
pub(crate) use waterfall::WaterfallChart;

/// An SVG image with a title and a description.
fn svg_image(id: &str, size: (f64, f64), title: &str, description: &str, marks: Markup) -> Markup {
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

/// Formats a coordinate with one decimal. A value that is not finite becomes 0.
fn px(value: f64) -> String {
    let value = if value.is_finite() { value.clamp(-1e5, 1e5) } else { 0.0 };
    let text = format!("{value:.1}");
    match text.strip_suffix(".0") {
        Some("-0") => "0".to_owned(),
        Some(whole) => whole.to_owned(),
        None => text,
    }
}

/// The anchor of a text.
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

/// The width of a text in pixels at a font size: an estimate that wide fonts (DejaVu Sans) stay
/// below.
fn text_width(words: &str, font_size: f64) -> f64 {
    const MEAN_CHARACTER_WIDTH: f64 = 0.64;
    MEAN_CHARACTER_WIDTH * font_size * words.chars().count() as f64
}

fn line(from: (f64, f64), to: (f64, f64), class: &str) -> Markup {
    html! { line x1=(px(from.0)) y1=(px(from.1)) x2=(px(to.0)) y2=(px(to.1)) class=(class) {} }
}

/// The colour class of a kind of handshake.
pub(crate) fn kind_class(kind: &str) -> &'static str {
    match kind {
        "full" => "k-full",
        "resumed" => "k-resumed",
        "0-RTT" => "k-early",
        "refused" => "k-refused",
        _ => "k-other",
    }
}
