//! Filmstrips: what a page looked like while it was loaded, without and with 0-RTT on one time
//! axis.

use maud::{Markup, html};

use super::super::Section;
use crate::drawing::tick;
use crate::figure::count;
use crate::visits::{class, place, visit};
use crate::{Filmstrip, Frame, Pictures, Record};

pub(in crate::html) fn film(record: &Record, pictures: &Pictures) -> Option<Section> {
    let reels = reels(record);
    if reels.is_empty() {
        return None;
    }
    let body = html! {
        p { "What the browser showed while it loaded the page, a visit of each kind, below each other on "
            "one time axis that begins with the navigation. Below each time stands what was to be seen "
            "then, with the moment at which it had come; a picture holds until the next one." }
        @for reel in &reels { (draw(reel, record, pictures)) }
    };
    Some(Section { id: "film", title: "What they see meanwhile".to_owned(), short: "Film", body })
}

/// Strips that differ in their visit alone.
struct Reel<'a> {
    heading: String,
    strips: Vec<&'a Filmstrip>,
}

fn reels(record: &Record) -> Vec<Reel<'_>> {
    let mut reels: Vec<Reel<'_>> = Vec::new();
    for strip in record.filmstrips.iter().filter(|strip| !strip.frames.is_empty()) {
        let heading = place(&record.visit_cells[strip.cell]);
        match reels.iter_mut().find(|reel| reel.heading == heading) {
            Some(reel) => reel.strips.push(strip),
            None => reels.push(Reel { heading, strips: vec![strip] }),
        }
    }
    let order = |strip: &&Filmstrip| {
        let visit = &record.visit_cells[strip.cell].visit;
        ["first", "off", "on"].iter().position(|name| name == visit)
    };
    reels.iter_mut().for_each(|reel| reel.strips.sort_by_key(order));
    reels
}

fn draw(reel: &Reel<'_>, record: &Record, pictures: &Pictures) -> Markup {
    let ends = reel.strips.iter().filter_map(|strip| last_ms(strip));
    let axis = Axis::until(ends.fold(0.0, f64::max));
    html! {
        h3 { (reel.heading) }
        div.scroll tabindex="0" role="region" aria-label=(reel.heading) {
            div.film style=(format!("--columns:{}", axis.columns)) {
                div.times aria-hidden="true" {
                    @for column in 0..axis.columns { span { (tick(axis.at(column))) " ms" } }
                }
                @for strip in &reel.strips {
                    @let shown = &record.visit_cells[strip.cell].visit;
                    p.strip-name {
                        span class=(format!("dot {}", class(shown))) {} (visit(shown))
                        @if let Some(ms) = last_ms(strip) {
                            span.faint { ", last change after " (whole(ms)) }
                        }
                    }
                    ol class=(format!("frames {}", class(shown))) {
                        @for run in axis.runs(&strip.frames) { (frame(&run, pictures)) }
                    }
                }
            }
        }
    }
}

fn frame(run: &Run<'_>, pictures: &Pictures) -> Markup {
    let place = format!("grid-column:{} / span {}", run.column + 1, run.columns);
    let Some(frame) = run.frame else {
        return html! { li.nothing style=(place) { span.sub { "nothing yet" } } };
    };
    let alternative = format!("the page {} after the navigation began", whole(frame.at_ms));
    html! {
        li style=(place) {
            @match pictures.uri(&frame.file) {
                Some(uri) => img src=(uri) alt=(alternative);,
                None => span.absent { (frame.file) }
            }
            span.sub { (whole(frame.at_ms)) }
        }
    }
}

/// No picture is taken so exactly that decimals say anything.
fn whole(ms: f64) -> String {
    format!("{} ms", count(ms.round()))
}

/// When the last picture of a strip was seen first.
fn last_ms(strip: &Filmstrip) -> Option<f64> {
    strip.frames.last().map(|frame| frame.at_ms).filter(|ms| ms.is_finite())
}

/// A time axis in columns of equal, round lengths.
struct Axis {
    step_ms: f64,
    columns: usize,
}

/// A picture and the columns in which it is to be seen; `None`: nothing was shown yet.
struct Run<'a> {
    column: usize,
    columns: usize,
    frame: Option<&'a Frame>,
}

impl Axis {
    /// One that ends at or after this time.
    fn until(end_ms: f64) -> Self {
        let end_ms = end_ms.clamp(1.0, MAX_MS);
        let rough = end_ms / (MAX_COLUMNS - 1) as f64;
        let power = 10_f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * power);
        let step_ms = steps.into_iter().find(|step| *step >= rough).unwrap_or(10.0 * power);
        Self { step_ms, columns: (end_ms / step_ms).ceil() as usize + 1 }
    }

    fn at(&self, column: usize) -> f64 {
        column as f64 * self.step_ms
    }

    /// What is to be seen at the columns' times, pictures that stay joined.
    fn runs<'a>(&self, frames: &'a [Frame]) -> Vec<Run<'a>> {
        let mut runs: Vec<Run<'a>> = Vec::new();
        for column in 0..self.columns {
            let frame = frames.iter().rev().find(|frame| frame.at_ms <= self.at(column));
            match runs.last_mut() {
                Some(run) if run.frame == frame => run.columns += 1,
                _ => runs.push(Run { column, columns: 1, frame }),
            }
        }
        runs
    }
}

const MAX_COLUMNS: usize = 9;
// An hour; no page is waited for that long.
const MAX_MS: f64 = 3.6e6;

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(at_ms: f64) -> Frame {
        Frame { at_ms, file: at_ms.to_string() }
    }

    #[test]
    fn a_picture_holds_until_the_next_one() {
        let axis = Axis::until(346.0);
        assert_eq!((axis.step_ms, axis.columns), (50.0, 8));
        let frames = [frame(10.0), frame(120.0), frame(130.0), frame(346.0)];
        let runs: Vec<(usize, usize, Option<f64>)> = (axis.runs(&frames).iter())
            .map(|run| (run.column, run.columns, run.frame.map(|frame| frame.at_ms)))
            .collect();
        // What was seen between two columns alone is left out.
        let expected = [(0, 1, None), (1, 2, Some(10.0)), (3, 4, Some(130.0)), (7, 1, Some(346.0))];
        assert_eq!(runs, expected);
    }

    #[test]
    fn any_end_has_few_columns() {
        for end_ms in [0.0, 0.3, 9.0, 100.0, 1234.0, 60_000.0, f64::INFINITY] {
            let axis = Axis::until(end_ms);
            assert!((2..=MAX_COLUMNS).contains(&axis.columns), "{end_ms}: {}", axis.columns);
            assert!(axis.at(axis.columns - 1) >= end_ms.min(MAX_MS));
        }
    }
}
