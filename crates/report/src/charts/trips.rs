//! Round trips as dots, one for each.

use maud::{Markup, html};

use super::{Anchor, px, svg_image, text};

/// A row of dots.
#[derive(Clone, Debug)]
pub(crate) struct TripsRow {
    pub name: String,
    pub class: &'static str,
    pub trips: u32,
}

/// A chart with a row of dots for each kind of handshake.
#[derive(Clone, Debug)]
pub(crate) struct TripsChart<'a> {
    pub id: &'a str,
    pub title: &'a str,
    pub rows: &'a [TripsRow],
}

impl TripsChart<'_> {
    /// The drawing.
    pub(crate) fn draw(&self) -> Markup {
        let marks = html! {
            @for (row, top) in self.rows.iter().zip((0..).map(|at| f64::from(at) * ROW)) {
                g {
                    title { (row.name) ": " (row.trips) " round trips" }
                    (text(LEFT - 10.0, top + 15.0, Anchor::End, "tick", &row.name))
                    @for at in 0..row.trips.min(MAX_DOTS) {
                        circle cx=(px(LEFT + f64::from(at) * STEP)) cy=(px(top + 11.0)) r="6"
                            class=(format!("bar {}", row.class)) {}
                    }
                    (text(LEFT + f64::from(row.trips.min(MAX_DOTS)) * STEP, top + 15.0,
                        Anchor::Start, "figure", &row.trips.to_string()))
                }
            }
        };
        let size = (WIDTH, ROW * self.rows.len() as f64 + 4.0);
        svg_image(self.id, size, self.title, "A dot for each round trip to the first byte.", marks)
    }
}

const WIDTH: f64 = 360.0;
const LEFT: f64 = 140.0;
const ROW: f64 = 22.0;
const STEP: f64 = 18.0;

/// More would not fit.
const MAX_DOTS: u32 = 10;
