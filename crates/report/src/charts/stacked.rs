//! Horizontal bars that are divided into parts, in groups, on one axis from 0.

use maud::{Markup, html};

use super::{Anchor, Scale, line, px, svg_image, text, text_width};
use crate::format::{count, format_ms};

/// One bar.
#[derive(Clone, Debug)]
pub(crate) struct StackedBar {
    pub name: String,
    /// The values of the parts, in the order of [`StackedChart::parts`].
    pub values: Vec<f64>,
}

/// A group of bars with a heading.
#[derive(Clone, Debug)]
pub(crate) struct StackedGroup {
    pub name: String,
    pub bars: Vec<StackedBar>,
}

/// A chart of divided bars. The page's legend names the parts.
#[derive(Clone, Debug)]
pub(crate) struct StackedChart<'a> {
    pub id: &'a str,
    pub title: &'a str,
    pub description: &'a str,
    pub unit: &'a str,
    /// Name and CSS class of each part.
    pub parts: &'a [(&'a str, &'a str)],
    pub groups: &'a [StackedGroup],
}

impl StackedChart<'_> {
    /// The drawing.
    pub(crate) fn draw(&self) -> Markup {
        let bars = || self.groups.iter().flat_map(|group| &group.bars);
        let total = |bar: &StackedBar| bar.values.iter().filter(|value| value.is_finite()).sum();
        let largest = bars().map(total).fold(0.0, f64::max);
        let longest = bars().map(|bar| text_width(&bar.name, TICK_SIZE)).fold(0.0, f64::max);
        let left = longest + 10.0;
        let scale = Scale::linear(0.0, largest, left, WIDTH - RIGHT);
        let (mut top, mut marks) = (4.0, Vec::new());
        for group in self.groups {
            marks.push(text(0.0, top + 13.0, Anchor::Start, "label strong", &group.name));
            top += HEADING_HEIGHT;
            let floor = top + group.bars.len() as f64 * (BAR_HEIGHT + GAP) - GAP;
            marks.push(line((left, top - 2.0), (left, floor + 2.0), "axis"));
            for bar in &group.bars {
                marks.push(self.draw_bar(bar, &scale, (left, top), total(bar)));
                top += BAR_HEIGHT + GAP;
            }
            top += 6.0;
        }
        let marks = html! { @for mark in &marks { (mark) } };
        svg_image(self.id, (WIDTH, top.max(20.0)), self.title, self.description, marks)
    }

    fn draw_bar(
        &self,
        bar: &StackedBar,
        scale: &Scale,
        (left, top): (f64, f64),
        total: f64,
    ) -> Markup {
        let mut from = 0.0;
        let parts = self.parts.iter().zip(&bar.values).map(|((name, class), value)| {
            let (x, end) = (scale.position(from), scale.position(from + value));
            from += value;
            html! {
                rect x=(px(x)) y=(px(top)) width=(px(end - x)) height=(px(BAR_HEIGHT))
                    class=(format!("bar {class}")) {
                    title { (bar.name) ", " (name) ": " (figure(*value)) " " (self.unit) }
                }
            }
        });
        let parts: Vec<Markup> = parts.collect();
        html! {
            (text(left - 6.0, top + 11.0, Anchor::End, "tick", &bar.name))
            @for part in &parts { (part) }
            (text(scale.position(total) + 5.0, top + 11.0, Anchor::Start, "figure", &figure(total)))
        }
    }
}

/// Formats a value, without decimals from 1,000 on.
fn figure(value: f64) -> String {
    if value.abs() >= 1e3 { count(value.round()) } else { format_ms(value) }
}

const WIDTH: f64 = 360.0;
const RIGHT: f64 = 50.0;
const HEADING_HEIGHT: f64 = 20.0;
const BAR_HEIGHT: f64 = 14.0;
const GAP: f64 = 6.0;
/// The font size of the names, as in `style.css`.
const TICK_SIZE: f64 = 11.5;
