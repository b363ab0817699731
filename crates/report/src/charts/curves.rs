//! Line charts: latency against round-trip time, and distributions as steps.

use maud::{Markup, html};

use super::scale::tick;
use super::{Anchor, Scale, line, px, svg_image, text};

/// How a curve connects its points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Straight, with a mark at each point.
    Marks,
    /// In steps, as distributions do.
    Steps,
    /// Straight, thin and without marks: a model.
    Model,
}

/// A curve.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    pub name: String,
    /// The CSS colour class.
    pub class: &'static str,
    pub dashed: bool,
    pub shape: Shape,
    pub points: Vec<(f64, f64)>,
}

/// A chart of curves.
#[derive(Clone, Debug)]
pub(crate) struct CurveChart<'a> {
    pub id: &'a str,
    pub title: &'a str,
    pub description: &'a str,
    /// Labels of the axes.
    pub x: &'a str,
    pub y: &'a str,
    /// Whether the horizontal and the vertical axis are logarithmic.
    pub logarithmic: (bool, bool),
    /// Fixed bounds of the vertical axis.
    pub y_bounds: Option<(f64, f64)>,
    /// Vertical values in percent.
    pub percent: bool,
    pub curves: &'a [Curve],
}

impl CurveChart<'_> {
    /// The drawing.
    pub(crate) fn draw(&self) -> Markup {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let x = bounds(points().map(|point| point.0), self.logarithmic.0);
        let y = self.y_bounds.unwrap_or(bounds(points().map(|p| p.1), self.logarithmic.1));
        let scale = |logarithmic, (low, high), from, to| match logarithmic {
            true => Scale::logarithmic(low, high, from, to),
            false => Scale::linear(low, high, from, to),
        };
        let x = scale(self.logarithmic.0, x, LEFT, WIDTH - RIGHT);
        let y = scale(self.logarithmic.1, y, HEIGHT - BOTTOM, TOP);
        let marks = html! {
            (self.grid(&x, &y))
            @for curve in self.curves.iter().filter(|curve| !curve.points.is_empty()) {
                (draw_curve(curve, &x, &y))
            }
            // Drawn last, so curves do not cross the text.
            @for curve in self.curves.iter().filter(|curve| curve.shape == Shape::Model) {
                @if let Some(end) = curve.points.last() {
                    (text(x.position(end.0) - 2.0, y.position(end.1) - 4.0, Anchor::End, "tick halo",
                        &curve.name))
                }
            }
        };
        svg_image(self.id, (WIDTH, HEIGHT), self.title, self.description, marks)
    }

    fn grid(&self, x: &Scale, y: &Scale) -> Markup {
        let (left, right, floor) = (LEFT, WIDTH - RIGHT, HEIGHT - BOTTOM);
        html! {
            @for value in y.ticks(5) {
                (line((left, y.position(value)), (right, y.position(value)), "grid"))
                @let words = if self.percent { format!("{} %", tick(100.0 * value)) } else { tick(value) };
                (text(left - 6.0, y.position(value) + 4.0, Anchor::End, "tick", &words))
            }
            @for value in x.ticks(6) {
                (line((x.position(value), floor), (x.position(value), floor + 4.0), "axis"))
                (text(x.position(value), floor + 17.0, Anchor::Middle, "tick", &tick(value)))
            }
            (line((left, floor), (right, floor), "axis"))
            (text(right, HEIGHT - 5.0, Anchor::End, "label", self.x))
            (text(2.0, 12.0, Anchor::Start, "label", self.y))
        }
    }
}

fn draw_curve(curve: &Curve, x: &Scale, y: &Scale) -> Markup {
    let positions: Vec<(f64, f64)> =
        curve.points.iter().map(|point| (x.position(point.0), y.position(point.1))).collect();
    let mut path = String::new();
    for (n, (px_, py)) in positions.iter().enumerate() {
        let (to_x, to_y) = (px(*px_), px(*py));
        match (n, curve.shape) {
            (0, Shape::Steps) => {
                path.push_str(&format!("M{to_x} {}V{to_y}", px(y.position(0.0))));
            }
            (0, _) => path.push_str(&format!("M{to_x} {to_y}")),
            (_, Shape::Steps) => path.push_str(&format!("H{to_x}V{to_y}")),
            _ => path.push_str(&format!("L{to_x} {to_y}")),
        }
    }
    let class = match (curve.shape, curve.dashed) {
        (Shape::Model, _) => format!("curve model {}", curve.class),
        (_, true) => format!("curve dashed {}", curve.class),
        (_, false) => format!("curve {}", curve.class),
    };
    html! {
        g {
            title { (curve.name) }
            path d=(path) class=(class) {}
            @if curve.shape == Shape::Marks {
                @for (x, y) in &positions {
                    circle cx=(px(*x)) cy=(px(*y)) r="3.2"
                        class=(format!("mark {}{}", curve.class, if curve.dashed { " hollow" } else { "" })) {}
                }
            }
        }
    }
}

/// Bounds with a margin.
fn bounds(values: impl Iterator<Item = f64>, logarithmic: bool) -> (f64, f64) {
    let usable = |value: &f64| value.is_finite() && (!logarithmic || *value > 0.0);
    let (low, high) = values
        .filter(usable)
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    match logarithmic {
        true => (low / 1.25, high * 1.25),
        false => (low - 0.04 * (high - low), high + 0.04 * (high - low)),
    }
}

/// Reduces ascending values to at most `limit` points of their distribution: (value, share of
/// samples up to it). The smallest and the largest value are always included.
pub(crate) fn distribution(ascending: &[f64], limit: usize) -> Vec<(f64, f64)> {
    let n = ascending.len();
    let limit = limit.max(2);
    let rank = |place: usize| match n <= limit {
        true => place,
        // Both ends get more points than the middle, because tails matter most.
        false => {
            let share = place as f64 / (limit - 1) as f64;
            let warped = 0.5 - 0.5 * (std::f64::consts::PI * share).cos();
            (warped * (n - 1) as f64).round() as usize
        }
    };
    let mut points: Vec<(f64, f64)> = (0..n.min(limit))
        .map(rank)
        .map(|rank| (ascending[rank], (rank + 1) as f64 / n as f64))
        .collect();
    points.dedup();
    points
}

const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 250.0;
const LEFT: f64 = 44.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 40.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_values_are_kept_and_many_are_thinned_out() {
        assert_eq!(distribution(&[1.0, 2.0], 200), [(1.0, 0.5), (2.0, 1.0)]);
        assert_eq!(distribution(&[], 200), []);
        let many: Vec<f64> = (1..=20_000).map(f64::from).collect();
        let points = distribution(&many, 120);
        assert!(points.len() <= 120);
        assert_eq!((points[0].0, points[points.len() - 1]), (1.0, (20_000.0, 1.0)));
        assert!(points.iter().all(|(value, share)| (value / 20_000.0 - share).abs() < 1e-9));
    }
}
