//! Charts of estimates with their intervals: dumbbell charts, and strips in table rows.

use maud::{Markup, html};

use super::scale::tick;
use super::{Anchor, Scale, line, px, svg_image, text};
use crate::Interval;
use crate::format::format_ms_unit;

/// A value and its interval.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Estimate {
    pub value: f64,
    pub interval: (f64, f64),
}

/// A line from one estimate to another.
#[derive(Clone, Debug)]
pub(crate) struct Dumbbell {
    pub name: String,
    pub from: Estimate,
    pub to: Estimate,
    /// The difference, printed beside the line.
    pub between: String,
    /// The difference in words, as a tooltip.
    pub hint: String,
}

/// A group of dumbbells with a heading.
#[derive(Clone, Debug)]
pub(crate) struct DumbbellGroup {
    pub name: String,
    pub dumbbells: Vec<Dumbbell>,
}

/// A dumbbell chart on a logarithmic axis of milliseconds, where equal lengths are equal ratios.
#[derive(Clone, Debug)]
pub(crate) struct DumbbellChart<'a> {
    pub id: &'a str,
    pub title: &'a str,
    pub description: &'a str,
    pub x: &'a str,
    /// The CSS colour classes of the two estimates.
    pub classes: [&'static str; 2],
    pub groups: &'a [DumbbellGroup],
}

impl DumbbellChart<'_> {
    /// The drawing.
    pub(crate) fn draw(&self) -> Markup {
        let scale = self.scale();
        let lines: usize = self.groups.iter().map(|group| group.dumbbells.len()).sum();
        let floor = TOP + self.groups.len() as f64 * (HEADING + GAP) + lines as f64 * ROW;
        let mut top = TOP;
        let mut marks = Vec::new();
        for value in scale.ticks(6) {
            let at = scale.position(value);
            marks.push(line((at, TOP), (at, floor), "grid"));
            marks.push(text(at, floor + 14.0, Anchor::Middle, "tick", &tick(value)));
        }
        for group in self.groups {
            marks.push(text(0.0, top + 12.0, Anchor::Start, "label strong halo", &group.name));
            top += HEADING;
            for dumbbell in &group.dumbbells {
                marks.push(self.draw_dumbbell(dumbbell, &scale, top + ROW / 2.0));
                top += ROW;
            }
            top += GAP;
        }
        marks.push(line((LEFT, floor), (WIDTH - RIGHT, floor), "axis"));
        let middle = (LEFT + WIDTH - RIGHT) / 2.0;
        marks.push(text(middle, floor + 30.0, Anchor::Middle, "label", self.x));
        let marks = html! { @for mark in &marks { (mark) } };
        svg_image(self.id, (WIDTH, floor + BOTTOM), self.title, self.description, marks)
    }

    fn scale(&self) -> Scale {
        let estimates = self.groups.iter().flat_map(|group| &group.dumbbells);
        let estimates = estimates.flat_map(|dumbbell| [dumbbell.from, dumbbell.to]);
        let values: Vec<f64> = estimates
            .flat_map(|estimate| [estimate.value, estimate.interval.0, estimate.interval.1])
            .filter(|value| value.is_finite() && *value > 0.0)
            .collect();
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(0.0, f64::max);
        Scale::logarithmic(0.92 * low, 1.08 * high, LEFT, WIDTH - RIGHT)
    }

    fn draw_dumbbell(&self, dumbbell: &Dumbbell, scale: &Scale, y: f64) -> Markup {
        let [from, to] =
            [&dumbbell.from, &dumbbell.to].map(|estimate| scale.position(estimate.value));
        html! {
            g {
                title {
                    (dumbbell.name) ": " (format_ms_unit(dumbbell.from.value)) " to "
                    (format_ms_unit(dumbbell.to.value)) ": " (dumbbell.hint)
                }
                (text(LEFT - 8.0, y + 4.0, Anchor::End, "tick", &dumbbell.name))
                (line((from, y), (to, y), &format!("between {}", self.classes[1])))
                @for (estimate, class) in [&dumbbell.from, &dumbbell.to].into_iter().zip(self.classes) {
                    @let (low, high) = (scale.position(estimate.interval.0), scale.position(estimate.interval.1));
                    rect x=(px(low)) y=(px(y - 5.0)) width=(px((high - low).max(1.5))) height="10"
                        rx="1.5" class=(format!("interval {class}")) {}
                }
                circle cx=(px(from)) cy=(px(y)) r="4" class=(format!("mark hollow {}", self.classes[0])) {}
                circle cx=(px(to)) cy=(px(y)) r="4" class=(format!("mark {}", self.classes[1])) {}
                (text(WIDTH, y + 4.0, Anchor::End, "figure", &dumbbell.between))
            }
        }
    }
}

/// The scale that the strips of a table share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IntervalStrip {
    scale: Scale,
}

impl IntervalStrip {
    /// A scale for these intervals that includes 0 and reaches at most `max_distance` from it. Values
    /// beyond are drawn at the border, so one wide interval does not flatten the others.
    pub(crate) fn of<'a>(
        intervals: impl IntoIterator<Item = &'a Interval>,
        max_distance: f64,
    ) -> Self {
        let (mut low, mut high) = (0.0_f64, 0.0_f64);
        for interval in intervals {
            low = low.min(interval.low.max(-max_distance));
            high = high.max(interval.high.min(max_distance));
        }
        let room = 0.03 * (high - low);
        Self { scale: Scale::linear(low - room, high + room, 0.0, STRIP_WIDTH) }
    }

    /// Draws one interval; its values are in the table row.
    pub(crate) fn draw(&self, interval: &Interval, class: &str) -> Markup {
        let place = |value| self.scale.position(value);
        let (low, high) = (place(interval.low), place(interval.high));
        html! {
            svg class="strip" viewBox=(format!("0 0 {} {}", px(STRIP_WIDTH), px(STRIP_HEIGHT)))
                width=(px(STRIP_WIDTH)) height=(px(STRIP_HEIGHT)) aria-hidden="true" {
                (line((place(0.0), 0.0), (place(0.0), STRIP_HEIGHT), "axis"))
                rect x=(px(low)) y=(px(STRIP_HEIGHT / 2.0 - 3.0)) width=(px((high - low).max(1.5)))
                    height="6" rx="1.5" class=(format!("interval {class}")) {}
                circle cx=(px(place(interval.estimate))) cy=(px(STRIP_HEIGHT / 2.0)) r="3.4"
                    class=(format!("mark {class}")) {}
            }
        }
    }
}

const WIDTH: f64 = 360.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 62.0;
const TOP: f64 = 4.0;
const BOTTOM: f64 = 36.0;
const HEADING: f64 = 17.0;
const ROW: f64 = 17.0;
const GAP: f64 = 6.0;

const STRIP_WIDTH: f64 = 170.0;
const STRIP_HEIGHT: f64 = 18.0;
