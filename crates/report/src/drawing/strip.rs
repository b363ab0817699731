//! An interval on a strip, for a row of a table.

use maud::{Markup, html};

use super::{Scale, line, px};
use crate::Interval;

/// The scale that the strips of a table share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strip {
    scale: Scale,
}

impl Strip {
    /// A scale for these intervals with 0 on it, `furthest` from it at most: what lies beyond is
    /// drawn at the border, so that one wide interval does not flatten all others.
    pub(crate) fn of<'a>(intervals: impl IntoIterator<Item = &'a Interval>, furthest: f64) -> Self {
        let (mut low, mut high) = (0.0_f64, 0.0_f64);
        for interval in intervals {
            low = low.min(interval.low.max(-furthest));
            high = high.max(interval.high.min(furthest));
        }
        let room = 0.03 * (high - low);
        Self { scale: Scale::linear(low - room, high + room, 0.0, WIDTH) }
    }

    /// One interval; the figures stand beside it in the row.
    pub(crate) fn draw(&self, interval: &Interval, class: &str) -> Markup {
        let place = |value| self.scale.place(value);
        let (low, high) = (place(interval.low), place(interval.high));
        html! {
            svg class="strip" viewBox=(format!("0 0 {} {}", px(WIDTH), px(HEIGHT)))
                width=(px(WIDTH)) height=(px(HEIGHT)) aria-hidden="true" {
                (line((place(0.0), 0.0), (place(0.0), HEIGHT), "axis"))
                rect x=(px(low)) y=(px(HEIGHT / 2.0 - 3.0)) width=(px((high - low).max(1.5)))
                    height="6" rx="1.5" class=(format!("interval {class}")) {}
                circle cx=(px(place(interval.estimate))) cy=(px(HEIGHT / 2.0)) r="3.4"
                    class=(format!("mark {class}")) {}
            }
        }
    }
}

const WIDTH: f64 = 170.0;
const HEIGHT: f64 = 18.0;
