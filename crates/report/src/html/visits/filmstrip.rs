//! Filmstrips: what a page looked like while it loaded, with 0-RTT off and on, on one time axis of
//! equal, round steps. Each step shows the picture at that time and how long it stayed.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::{Component, Path};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use maud::{Markup, html};

use crate::charts::tick;
use crate::format::count;
use crate::html::Section;
use crate::visits::{class, place, visit};
use crate::{Filmstrip, Frame, Record};

pub(in crate::html) fn filmstrips(record: &Record, pictures: &Pictures) -> Option<Section> {
    let filmstrip_groups = filmstrip_groups(record);
    if filmstrip_groups.is_empty() {
        return None;
    }
    let body = html! {
        p { "What the browser showed while it loaded the page, one visit of each kind, on one time axis "
            "from the start of the navigation. Each picture has the time at which it appeared and stays "
            "until the next one." }
        @for group in &filmstrip_groups { (draw(group, record, pictures)) }
    };
    Some(Section { id: "film", title: "Filmstrips".to_owned(), short: "Film", body })
}

/// Filmstrips that differ only in the kind of visit.
struct FilmstripGroup<'a> {
    heading: String,
    strips: Vec<&'a Filmstrip>,
}

fn filmstrip_groups(record: &Record) -> Vec<FilmstripGroup<'_>> {
    let mut filmstrip_groups: Vec<FilmstripGroup<'_>> = Vec::new();
    for strip in record.filmstrips.iter().filter(|strip| !strip.frames.is_empty()) {
        let heading = place(&record.visit_cells[strip.cell]);
        match filmstrip_groups.iter_mut().find(|group| group.heading == heading) {
            Some(group) => group.strips.push(strip),
            None => filmstrip_groups.push(FilmstripGroup { heading, strips: vec![strip] }),
        }
    }
    let order = |strip: &&Filmstrip| {
        let visit = &record.visit_cells[strip.cell].visit;
        ["first", "off", "on"].iter().position(|name| name == visit)
    };
    filmstrip_groups.iter_mut().for_each(|group| group.strips.sort_by_key(order));
    filmstrip_groups
}

fn draw(group: &FilmstripGroup<'_>, record: &Record, pictures: &Pictures) -> Markup {
    let ends = group.strips.iter().filter_map(|strip| last_ms(strip));
    let axis = Axis::until(ends.fold(0.0, f64::max));
    html! {
        h3 { (group.heading) }
        div.scroll tabindex="0" role="region" aria-label=(group.heading) {
            div.filmstrips style=(format!("--columns:{}", axis.columns)) {
                div.times aria-hidden="true" {
                    @for column in 0..axis.columns { span { (tick(axis.at(column))) " ms" } }
                }
                @for strip in &group.strips {
                    @let shown = &record.visit_cells[strip.cell].visit;
                    p.strip-name {
                        span class=(format!("dot {}", class(shown))) {} (visit(shown))
                        @if let Some(ms) = last_ms(strip) {
                            span.faint { ", last change after " (whole(ms)) }
                        }
                    }
                    ol class=(format!("frames {}", class(shown))) {
                        @for run in axis.frame_spans(&strip.frames) { (frame(&run, pictures)) }
                    }
                }
            }
        }
    }
}

fn frame(run: &FrameSpan<'_>, pictures: &Pictures) -> Markup {
    let place = format!("grid-column:{} / span {}", run.column + 1, run.columns);
    let Some(frame) = run.frame else {
        return html! { li.nothing style=(place) { span.sub { "blank" } } };
    };
    let alternative = format!("the page {} after the start of the navigation", whole(frame.at_ms));
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

/// Whole milliseconds: pictures are not taken more precisely.
fn whole(ms: f64) -> String {
    format!("{} ms", count(ms.round()))
}

/// When the last picture of a strip first appeared.
fn last_ms(strip: &Filmstrip) -> Option<f64> {
    strip.frames.last().map(|frame| frame.at_ms).filter(|ms| ms.is_finite())
}

/// A time axis in columns of equal, round lengths.
struct Axis {
    step_ms: f64,
    columns: usize,
}

/// A picture and the columns in which it is visible; `frame` is `None` before the first picture.
struct FrameSpan<'a> {
    column: usize,
    columns: usize,
    frame: Option<&'a Frame>,
}

impl Axis {
    /// An axis that ends at or after this time.
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

    /// The visible pictures at the columns' times; columns with the same picture are joined.
    fn frame_spans<'a>(&self, frames: &'a [Frame]) -> Vec<FrameSpan<'a>> {
        let mut frame_spans: Vec<FrameSpan<'a>> = Vec::new();
        for column in 0..self.columns {
            let frame = frames.iter().rev().find(|frame| frame.at_ms <= self.at(column));
            match frame_spans.last_mut() {
                Some(run) if run.frame == frame => run.columns += 1,
                _ => frame_spans.push(FrameSpan { column, columns: 1, frame }),
            }
        }
        frame_spans
    }
}

/// The pictures of a record's filmstrips that were found beside it.
#[derive(Clone, Debug, Default)]
pub struct Pictures {
    /// `data:` URIs by the file's path in the record.
    found: HashMap<String, String>,
}

impl Pictures {
    /// Reads the pictures that a record names, relative to its directory. Skips files that are not
    /// PNG or JPEG, outside of the directory or larger than 96 KiB, and everything beyond 1 MiB in
    /// total; the report names skipped files instead.
    pub fn load(record: &Record, directory: &Path) -> Self {
        let mut pictures = Self::default();
        let mut room = MAX_TOTAL_BYTES;
        for frame in record.filmstrips.iter().flat_map(|strip| &strip.frames) {
            if pictures.found.contains_key(&frame.file) {
                continue;
            }
            let Some(bytes) = picture(directory, &frame.file) else { continue };
            let Some(remaining) = room.checked_sub(bytes.len()) else { continue };
            let Some(kind) = kind(&bytes) else { continue };
            room = remaining;
            let uri = format!("data:image/{kind};base64,{}", BASE64_STANDARD.encode(bytes));
            pictures.found.insert(frame.file.clone(), uri);
        }
        pictures
    }

    /// The picture as a `data:` URI.
    pub(crate) fn uri(&self, file: &str) -> Option<&str> {
        self.found.get(file).map(String::as_str)
    }
}

/// Reads a file. The record is untrusted: only files below its directory are read.
fn picture(directory: &Path, file: &str) -> Option<Vec<u8>> {
    let file = Path::new(file);
    let is_relative = file.components().all(|part| matches!(part, Component::Normal(_)));
    let path = directory.join(file);
    // Reading a pipe would block.
    if !is_relative || !path.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MAX_PICTURE_BYTES as u64 + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() <= MAX_PICTURE_BYTES).then_some(bytes)
}

fn kind(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, ..] => Some("png"),
        [0xff, 0xd8, 0xff, ..] => Some("jpeg"),
        _ => None,
    }
}

const MAX_COLUMNS: usize = 9;
// One hour: longer than any page load.
const MAX_MS: f64 = 3.6e6;

const MAX_PICTURE_BYTES: usize = 96 << 10;
const MAX_TOTAL_BYTES: usize = 1 << 20;

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
        let frame_spans: Vec<(usize, usize, Option<f64>)> = (axis.frame_spans(&frames).iter())
            .map(|run| (run.column, run.columns, run.frame.map(|frame| frame.at_ms)))
            .collect();
        // A picture that is visible only between two columns is omitted.
        let expected = [(0, 1, None), (1, 2, Some(10.0)), (3, 4, Some(130.0)), (7, 1, Some(346.0))];
        assert_eq!(frame_spans, expected);
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
