//! Two values each on many lines of one axis: before, after, and what lies between.

use maud::{Markup, html};

use super::scale::tick;
use super::{Anchor, Scale, drawing, line, px, text};
use crate::figure::milliseconds;

/// A value and its interval.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    pub value: f64,
    pub interval: (f64, f64),
}

/// One line: from one value to the other.
#[derive(Clone, Debug)]
pub(crate) struct Rung {
    pub name: String,
    pub from: Spot,
    pub to: Spot,
    /// What lies between, in a word beside the line.
    pub between: String,
    /// The same for a reader who hovers over it.
    pub hint: String,
}

/// Lines that belong together.
#[derive(Clone, Debug)]
pub(crate) struct RungGroup {
    pub name: String,
    pub rungs: Vec<Rung>,
}

/// A chart of them on a logarithmic axis of milliseconds, where equal lengths are equal shares.
#[derive(Clone, Debug)]
pub(crate) struct LadderChart<'a> {
    pub id: &'a str,
    pub title: &'a str,
    pub description: &'a str,
    pub x: &'a str,
    /// Colours of the two values.
    pub classes: [&'static str; 2],
    pub groups: &'a [RungGroup],
}

impl LadderChart<'_> {
    /// The drawing.
    pub(crate) fn draw(&self) -> Markup {
        let scale = self.scale();
        let lines: usize = self.groups.iter().map(|group| group.rungs.len()).sum();
        let floor = TOP + self.groups.len() as f64 * (HEADING + GAP) + lines as f64 * ROW;
        let mut top = TOP;
        let mut marks = Vec::new();
        for value in scale.ticks(6) {
            let at = scale.place(value);
            marks.push(line((at, TOP), (at, floor), "grid"));
            marks.push(text(at, floor + 14.0, Anchor::Middle, "tick", &tick(value)));
        }
        for group in self.groups {
            marks.push(text(0.0, top + 12.0, Anchor::Start, "label strong halo", &group.name));
            top += HEADING;
            for rung in &group.rungs {
                marks.push(self.draw_rung(rung, &scale, top + ROW / 2.0));
                top += ROW;
            }
            top += GAP;
        }
        marks.push(line((LEFT, floor), (WIDTH - RIGHT, floor), "axis"));
        let middle = (LEFT + WIDTH - RIGHT) / 2.0;
        marks.push(text(middle, floor + 30.0, Anchor::Middle, "label", self.x));
        let marks = html! { @for mark in &marks { (mark) } };
        drawing(self.id, (WIDTH, floor + BOTTOM), self.title, self.description, marks)
    }

    fn scale(&self) -> Scale {
        let spots = self.groups.iter().flat_map(|group| &group.rungs);
        let spots = spots.flat_map(|rung| [rung.from, rung.to]);
        let ends: Vec<f64> = spots
            .flat_map(|spot| [spot.value, spot.interval.0, spot.interval.1])
            .filter(|value| value.is_finite() && *value > 0.0)
            .collect();
        let low = ends.iter().copied().fold(f64::INFINITY, f64::min);
        let high = ends.iter().copied().fold(0.0, f64::max);
        Scale::logarithmic(0.92 * low, 1.08 * high, LEFT, WIDTH - RIGHT)
    }

    fn draw_rung(&self, rung: &Rung, scale: &Scale, y: f64) -> Markup {
        let [from, to] = [&rung.from, &rung.to].map(|spot| scale.place(spot.value));
        html! {
            g {
                title {
                    (rung.name) ": " (milliseconds(rung.from.value)) " to "
                    (milliseconds(rung.to.value)) ": " (rung.hint)
                }
                (text(LEFT - 8.0, y + 4.0, Anchor::End, "tick", &rung.name))
                (line((from, y), (to, y), &format!("between {}", self.classes[1])))
                @for (spot, class) in [&rung.from, &rung.to].into_iter().zip(self.classes) {
                    @let (low, high) = (scale.place(spot.interval.0), scale.place(spot.interval.1));
                    rect x=(px(low)) y=(px(y - 5.0)) width=(px((high - low).max(1.5))) height="10"
                        rx="1.5" class=(format!("interval {class}")) {}
                }
                circle cx=(px(from)) cy=(px(y)) r="4" class=(format!("mark hollow {}", self.classes[0])) {}
                circle cx=(px(to)) cy=(px(y)) r="4" class=(format!("mark {}", self.classes[1])) {}
                (text(WIDTH, y + 4.0, Anchor::End, "figure", &rung.between))
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
