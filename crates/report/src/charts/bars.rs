//! Horizontal bar charts in groups, with published values below the measured ones.

use maud::{Markup, html};

use super::{Anchor, Scale, line, px, svg_image, text, text_width};
use crate::format::{count, format_ms};

/// One bar.
#[derive(Clone, Debug)]
pub(crate) struct Bar {
    pub name: String,
    pub class: &'static str,
    pub value: f64,
    /// The published value, if there is one.
    pub published: Option<f64>,
}

/// A group of bars with a heading.
#[derive(Clone, Debug)]
pub(crate) struct BarGroup {
    pub name: String,
    pub bars: Vec<Bar>,
}

/// A bar chart whose axis starts at 0.
#[derive(Clone, Debug)]
pub(crate) struct BarChart<'a> {
    pub id: &'a str,
    pub title: &'a str,
    /// Drawn above the bars of a chart that is not part of a page.
    pub heading: Option<&'a str>,
    pub description: &'a str,
    /// The unit of the values, for tooltips.
    pub unit: &'a str,
    pub groups: &'a [BarGroup],
}

impl BarChart<'_> {
    /// The drawing.
    pub(crate) fn draw(&self) -> Markup {
        let bars = || self.groups.iter().flat_map(|group| &group.bars);
        let largest = bars()
            .flat_map(|bar| [Some(bar.value), bar.published])
            .flatten()
            .filter(|value| value.is_finite())
            .fold(0.0, f64::max);
        let widest = bars().map(|bar| text_width(&bar.name, TICK_SIZE)).fold(0.0, f64::max);
        let left = (widest + 8.0).max(MIN_LEFT);
        // Longer names make the drawing wider, not the bars shorter.
        let width = WIDTH + (left - USUAL_LEFT).max(0.0);
        let scale = Scale::linear(0.0, largest, left, width - RIGHT);
        let mut top = 4.0;
        let mut marks = Vec::new();
        if let Some(heading) = self.heading {
            for line in heading_lines(heading, width) {
                marks.push(text(0.0, top + 13.0, Anchor::Start, "label strong", &line));
                top += HEADING_LINE;
            }
            top += 8.0;
        }
        for group in self.groups {
            for line in heading_lines(&group.name, width) {
                marks.push(text(0.0, top + 13.0, Anchor::Start, "label strong", &line));
                top += HEADING_LINE;
            }
            top += 8.0;
            let floor = top + group.bars.iter().map(height).sum::<f64>() - GAP;
            marks.push(line((left, top - 2.0), (left, floor + 2.0), "axis"));
            for bar in &group.bars {
                marks.push(draw_bar(bar, &scale, (left, top), self.unit));
                top += height(bar);
            }
            top += 8.0;
        }
        let marks = html! { @for mark in &marks { (mark) } };
        svg_image(self.id, (width, top.max(20.0)), self.title, self.description, marks)
    }
}

/// Wraps a heading to the width of the drawing.
fn heading_lines(heading: &str, width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in heading.split(' ') {
        match lines.last_mut() {
            Some(line) if text_width(line, LABEL_SIZE) + text_width(word, LABEL_SIZE) < width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn height(bar: &Bar) -> f64 {
    BAR_HEIGHT + GAP + if bar.published.is_some() { PUBLISHED_HEIGHT + 2.0 } else { 0.0 }
}

fn draw_bar(bar: &Bar, scale: &Scale, (left, top): (f64, f64), unit: &str) -> Markup {
    let end = scale.position(bar.value);
    html! {
        g {
            title { (bar.name) ": " (figure(bar.value)) " " (unit) }
            (text(left - 6.0, top + 11.0, Anchor::End, "tick", &bar.name))
            rect x=(px(left)) y=(px(top)) width=(px((end - left).max(1.0))) height=(px(BAR_HEIGHT)) rx="1.5"
                class=(format!("bar {}", bar.class)) {}
            (text(end + 5.0, top + 11.0, Anchor::Start, "figure", &figure(bar.value)))
        }
        @if let Some(published) = bar.published {
            @let end = scale.position(published);
            @let y = top + BAR_HEIGHT + 2.0;
            g {
                title { (bar.name) ", published: " (figure(published)) " " (unit) }
                rect x=(px(left)) y=(px(y + 0.5)) width=(px((end - left).max(1.0)))
                    height=(px(PUBLISHED_HEIGHT - 1.0)) rx="1.5" class=(format!("bar hollow {}", bar.class)) {}
                (text(end + 5.0, y + 8.0, Anchor::Start, "figure faint", &figure(published)))
            }
        }
    }
}

/// Formats a value, without decimals from 1,000 on.
fn figure(value: f64) -> String {
    if value.abs() >= 1e3 { count(value.round()) } else { format_ms(value) }
}

const WIDTH: f64 = 360.0;
/// Minimum room for the names of the bars.
const MIN_LEFT: f64 = 66.0;
/// The room for names that is included in `WIDTH`.
const USUAL_LEFT: f64 = 150.0;
/// Font sizes of names and headings, as in `style.css`.
const TICK_SIZE: f64 = 11.5;
const LABEL_SIZE: f64 = 12.0;
const HEADING_LINE: f64 = 14.0;
const RIGHT: f64 = 50.0;
const BAR_HEIGHT: f64 = 14.0;
const PUBLISHED_HEIGHT: f64 = 9.0;
const GAP: f64 = 6.0;
