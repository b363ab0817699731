//! Drawings are legible: no text is clipped, and no label of a waterfall covers another.

use firstflight_report::{Cell, Pictures, Record, Waterfall, WaterfallPacket, html, read};
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

/// A text of a drawing.
#[derive(Clone, Debug)]
struct Text {
    words: String,
    class: String,
    x: f64,
    y: f64,
    anchor: String,
    /// In radians.
    angle: f64,
}

impl Text {
    fn size(&self) -> f64 {
        let classes: Vec<&str> = self.class.split(' ').collect();
        let has = |class| classes.contains(&class);
        match () {
            () if has("packet") => 11.0,
            () if has("tick") => 11.5,
            () if has("figure") && has("faint") => 10.5,
            () => 12.0,
        }
    }

    /// The corners. A character of DejaVu Sans, a wide font, takes about 0.6 em.
    fn corners(&self) -> [(f64, f64); 4] {
        let width = 0.6 * self.size() * self.words.chars().count() as f64;
        let left = match self.anchor.as_str() {
            "end" => -width,
            "middle" => -width / 2.0,
            _ => 0.0,
        };
        let (top, bottom) = (-0.7 * self.size(), 0.0);
        let (sin, cos) = self.angle.sin_cos();
        [(left, top), (left + width, top), (left + width, bottom), (left, bottom)]
            .map(|(x, y)| (self.x + x * cos - y * sin, self.y + x * sin + y * cos))
    }

    /// Whether two texts overlap: whether no side of either separates them.
    fn covers(&self, other: &Self) -> bool {
        let extent = |text: &Self, (x, y): (f64, f64)| {
            let along = text.corners().map(|corner| corner.0 * x + corner.1 * y);
            let low = along.iter().copied().fold(f64::INFINITY, f64::min);
            (low, along.iter().copied().fold(f64::NEG_INFINITY, f64::max))
        };
        [self.angle, other.angle].iter().all(|angle| {
            let (sin, cos) = angle.sin_cos();
            [(cos, sin), (-sin, cos)].into_iter().all(|axis| {
                let (a, b) = (extent(self, axis), extent(other, axis));
                a.0 < b.1 && b.0 < a.1
            })
        })
    }
}

/// A drawing of a page.
struct Drawing {
    id: String,
    width: f64,
    texts: Vec<Text>,
}

fn attribute(tag: &BytesStart<'_>, name: &str) -> Option<String> {
    let found = tag.try_get_attribute(name).unwrap()?;
    Some(found.value.into_owned())
}

fn number(tag: &BytesStart<'_>, name: &str) -> f64 {
    attribute(tag, name).and_then(|value| value.parse().ok()).unwrap_or_default()
}

fn drawings(record: &Record) -> Vec<Drawing> {
    let page = html::render(record, &Pictures::default());
    let parts = page.split("<svg ").skip(1);
    parts
        .map(|part| drawing(&format!("<svg {}</svg>", part.split("</svg>").next().unwrap())))
        .collect()
}

fn drawing(svg: &str) -> Drawing {
    let mut reader = Reader::from_str(svg);
    let mut drawing = Drawing { id: String::new(), width: 0.0, texts: Vec::new() };
    let mut open: Option<Text> = None;
    loop {
        match reader.read_event().unwrap() {
            Event::Start(tag) if tag.name().as_ref() == "svg" => {
                drawing.id = attribute(&tag, "aria-labelledby").unwrap_or_default();
                drawing.width = number(&tag, "width");
            }
            Event::Start(tag) if tag.name().as_ref() == "text" => {
                let turn = attribute(&tag, "transform").unwrap_or_default();
                let angle = turn.strip_prefix("rotate(").and_then(|rest| rest.split(' ').next());
                open = Some(Text {
                    words: String::new(),
                    class: attribute(&tag, "class").unwrap_or_default(),
                    x: number(&tag, "x"),
                    y: number(&tag, "y"),
                    anchor: attribute(&tag, "text-anchor").unwrap_or_default(),
                    angle: angle.map_or(0.0, |angle| angle.parse::<f64>().unwrap().to_radians()),
                });
            }
            Event::Text(words) => {
                if let Some(text) = &mut open {
                    text.words.push_str(&words);
                }
            }
            Event::End(tag) if tag.name().as_ref() == "text" => drawing.texts.extend(open.take()),
            Event::Eof => return drawing,
            _ => {}
        }
    }
}

/// The runs whose records are in the repository, and a synthetic one.
fn records() -> Vec<Record> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    let mut records = vec![crate::synthetic::record(7)];
    for file in
        ["crates/report/tests/data/schema-2.json.gz", "results/2026-11-29-vm/quic-page.json.gz"]
    {
        records.push(read(format!("{root}{file}").as_ref()).unwrap());
    }
    records
}

#[test]
fn no_text_of_a_drawing_is_clipped() {
    let mut checked = 0;
    for drawing in records().iter().flat_map(drawings) {
        for text in &drawing.texts {
            let xs = text.corners().map(|corner| corner.0);
            let fits = xs.iter().all(|x| (-1.0..=drawing.width + 1.0).contains(x));
            assert!(fits, "{}: {text:?} in a width of {}", drawing.id, drawing.width);
            checked += 1;
        }
    }
    assert!(checked > 1_000, "{checked}");
}

/// A record with flights of both sides that cross, so that their labels compete for the same room.
fn crossing_flights() -> Record {
    let flight = |up: bool, sent_ms: f64| WaterfallPacket {
        up,
        sent_ms,
        delivered_ms: Some(sent_ms + 10.0),
        what: vec![format!("application data {} B", 1_000 + sent_ms as u32)],
        payload: 1_400,
        ..WaterfallPacket::default()
    };
    let packets = (0..8).map(|at| flight(at % 2 == 0, 2.5 * f64::from(at / 2))).collect();
    let cell = Cell {
        server: "firstflight".to_owned(),
        workload: "get".to_owned(),
        tls: "1.3".to_owned(),
        kind: "0-RTT".to_owned(),
        transport: "tcp".to_owned(),
        profile: "20 ms".to_owned(),
        rtt_ms: 20.0,
        ..Cell::default()
    };
    let waterfall =
        Waterfall { first_byte_ms: 20.0, last_byte_ms: 20.0, packets, ..Waterfall::default() };
    Record { cells: vec![cell], waterfalls: vec![waterfall], ..Record::default() }
}

#[test]
fn no_label_of_a_waterfall_covers_another() {
    let mut labels = 0;
    let crossing = drawings(&crossing_flights());
    assert!(crossing.iter().any(|drawing| drawing.id.starts_with("packets-")));
    let others = records().into_iter().flat_map(|record| drawings(&record));
    for drawing in crossing.into_iter().chain(others).filter(|d| d.id.starts_with("packets-")) {
        for (at, text) in drawing.texts.iter().enumerate() {
            for other in &drawing.texts[..at] {
                assert!(!text.covers(other), "{}: {text:?} and {other:?}", drawing.id);
            }
        }
        labels += drawing.texts.iter().filter(|text| text.class.contains("packet")).count();
    }
    assert!(labels > 30, "{labels}");
}

/// Colours are classes that the style defines.
#[test]
fn every_packet_of_a_waterfall_has_a_colour() {
    let page = html::render(&crate::synthetic::record(7), &Pictures::default());
    let waterfalls = page.split("<section id=\"packets\"").nth(1).unwrap();
    let waterfalls = waterfalls.split("</section>").next().unwrap();
    let arrows = waterfalls.matches("<g class=\"p-").count();
    assert!(arrows > 5, "{arrows}");
    assert_eq!(arrows, waterfalls.matches("class=\"arrow").count(), "each arrow is in its group");
}
