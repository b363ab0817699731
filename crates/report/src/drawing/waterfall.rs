//! The packets of a connection: time flows down, client left, server right.

use maud::{Markup, html};

use super::scale::tick;
use super::words::{class, tells, together, words_of};
use super::{Anchor, Scale, drawing, line, px, text};
use crate::{Waterfall, WaterfallPacket};

/// The packets of one connection, until `until_ms`.
#[derive(Clone, Debug)]
pub(crate) struct WaterfallChart<'a> {
    pub id: &'a str,
    pub title: &'a str,
    pub waterfall: &'a Waterfall,
    /// The end of the time axis: the same for all charts that stand side by side.
    pub until_ms: f64,
}

impl WaterfallChart<'_> {
    /// The drawing.
    pub(crate) fn draw(&self) -> Markup {
        let end = self.end_ms();
        let floor = TOP + (LOWEST - TOP) * (end / self.until_ms.max(end));
        let scale = Scale::linear(0.0, end, TOP, floor);
        let packets: Vec<&WaterfallPacket> = self.shown().collect();
        let first = self.waterfall.first_byte_ms;
        let marks = html! {
            (text(CLIENT - 4.0, 12.0, Anchor::Start, "label strong", "client"))
            (text(SERVER, 12.0, Anchor::Middle, "label strong", "server"))
            @for value in scale.ticks(8) {
                (line((CLIENT, scale.place(value)), (SERVER, scale.place(value)), "grid"))
                (text(CLIENT - 8.0, scale.place(value) + 4.0, Anchor::End, "tick", &tick(value)))
            }
            (text(CLIENT - 8.0, 12.0, Anchor::End, "tick", "ms"))
            (line((CLIENT, TOP - 4.0), (CLIENT, floor), "lifeline"))
            (line((SERVER, TOP - 4.0), (SERVER, floor), "lifeline"))
            @for packet in &packets { (draw_arrow(packet, &scale)) }
            @for bundle in bundles(&packets, &scale) { (draw_labels(&bundle, &scale)) }
            @if scale.holds(first) {
                (line((CLIENT, scale.place(first)), (SERVER - 6.0, scale.place(first)), "until"))
                circle cx=(px(CLIENT)) cy=(px(scale.place(first))) r="5.5" class="first-byte" {}
                (text(SERVER - 8.0, scale.place(first) + 14.0, Anchor::End, "figure strong halo",
                    &format!("first byte {}", crate::figure::milliseconds(first))))
            }
        };
        let description = format!(
            "{} packets between client and server; the first byte of the answer arrives after {}.",
            packets.len(),
            crate::figure::milliseconds(first)
        );
        drawing(self.id, (WIDTH, floor + BOTTOM), self.title, &description, marks)
    }

    /// A little after the last byte of the response.
    fn end_ms(&self) -> f64 {
        let last = self.waterfall.last_byte_ms.max(self.waterfall.first_byte_ms);
        let last = if last.is_finite() && last > 0.0 { last } else { self.until_ms };
        (1.05 * last).min(self.until_ms)
    }

    /// Packets until the response was there.
    fn shown(&self) -> impl Iterator<Item = &WaterfallPacket> {
        let end = self.waterfall.last_byte_ms.max(self.waterfall.first_byte_ms) + ROUNDING;
        let within = move |packet: &&WaterfallPacket| {
            packet.sent_ms < end && packet.delivered_ms.unwrap_or(packet.sent_ms) <= end
        };
        self.waterfall.packets.iter().filter(within).take(MAX_PACKETS)
    }
}

/// Packets of one side that leave so close together that their labels have to share a place.
struct Bundle<'a> {
    packets: Vec<&'a WaterfallPacket>,
}

fn bundles<'a>(packets: &[&'a WaterfallPacket], scale: &Scale) -> Vec<Bundle<'a>> {
    let mut bundles: Vec<Bundle<'a>> = Vec::new();
    for packet in packets.iter().filter(|packet| tells(packet)) {
        let near = |other: &WaterfallPacket| {
            other.up == packet.up
                && (scale.place(other.sent_ms) - scale.place(packet.sent_ms)).abs() < NEAR
        };
        match bundles.iter_mut().find(|bundle| near(bundle.packets[0])) {
            Some(bundle) => bundle.packets.push(packet),
            None => bundles.push(Bundle { packets: vec![packet] }),
        }
    }
    bundles
}

/// Acknowledgements say nothing that the arrow does not.
fn ends(packet: &WaterfallPacket, scale: &Scale) -> ((f64, f64), (f64, f64)) {
    let (from, to) = if packet.up { (CLIENT, SERVER) } else { (SERVER, CLIENT) };
    let start = scale.place(packet.sent_ms);
    match packet.delivered_ms {
        Some(delivered) => ((from, start), (to, scale.place(delivered))),
        // A dropped packet ends half-way.
        None => ((from, start), ((from + to) / 2.0, start + 14.0)),
    }
}

fn draw_arrow(packet: &WaterfallPacket, scale: &Scale) -> Markup {
    let (from, to) = ends(packet, scale);
    let class = class(packet);
    let words = words_of(packet).join(", ");
    let (dx, dy) = (to.0 - from.0, to.1 - from.1);
    let length = dx.hypot(dy).max(1.0);
    let (ux, uy) = (dx / length, dy / length);
    let head = |side: f64| {
        let (x, y) = (to.0 - 8.0 * ux - side * 3.2 * uy, to.1 - 8.0 * uy + side * 3.2 * ux);
        format!("{} {}", px(x), px(y))
    };
    html! {
        g class=(class) {
            title {
                (words) ", " (packet.payload) " bytes, sent at " (format!("{:.2}", packet.sent_ms))
                " ms" @if packet.again { ", sent again" }
                @if let Some(delivered) = packet.delivered_ms {
                    ", delivered at " (format!("{delivered:.2}")) " ms"
                } @else { ", dropped" }
            }
            (line(from, to, if tells(packet) { "arrow" } else { "arrow ack" }))
            @if packet.delivered_ms.is_some() {
                path class="head" d=(format!("M{} {}L{}L{}Z", px(to.0), px(to.1), head(1.0), head(-1.0))) {}
            } @else {
                path class="cross" d=(format!("M{} {}l8 8m0 -8l-8 8", px(to.0 - 4.0), px(to.1 - 4.0))) {}
            }
        }
    }
}

/// The labels of a bundle along its arrows: above the first, and if there are many, below the last.
fn draw_labels(bundle: &Bundle<'_>, scale: &Scale) -> Markup {
    let mut lines = labels(&bundle.packets);
    if lines.len() > MAX_LINES {
        let more = lines.len() - (MAX_LINES - 1);
        lines.truncate(MAX_LINES - 1);
        lines.push(vec![(format!("\u{2026} and {more} lines more"), "p-tcp")]);
    }
    let below = if lines.len() > 2 { lines.split_off(lines.len().div_ceil(2)) } else { Vec::new() };
    let last = bundle.packets[bundle.packets.len() - 1];
    let above = (0..lines.len()).rev().map(|place| -5.0 - LINE * place as f64);
    let under = (0..below.len()).map(|place| LINE * (place + 1) as f64);
    html! {
        (along(bundle.packets[0], scale, &lines.iter().zip(above).collect::<Vec<_>>()))
        (along(last, scale, &below.iter().zip(under).collect::<Vec<_>>()))
    }
}

/// Lines along a packet's arrow, each at its distance from it.
fn along(packet: &WaterfallPacket, scale: &Scale, lines: &[(&Line, f64)]) -> Markup {
    let (from, to) = ends(packet, scale);
    let (left, right) = if from.0 < to.0 { (from, to) } else { (to, from) };
    let angle = (right.1 - left.1).atan2(right.0 - left.0).to_degrees();
    let (x, y) = ((left.0 + right.0) / 2.0, (left.1 + right.1) / 2.0);
    html! {
        g transform=(format!("rotate({} {} {})", px(angle), px(x), px(y))) {
            @for (line, away) in lines {
                text.packet.halo x=(px(x)) y=(px(y + away)) text-anchor="middle" {
                    @for (place, (word, class)) in line.iter().enumerate() {
                        @if place > 0 { ", " }
                        tspan class=(class) { (word) }
                    }
                }
            }
        }
    }
}

/// Words with their colours.
type Line = Vec<(String, &'static str)>;

/// What packets carry together, in lines that fit between the lifelines, each with its colour.
fn labels(packets: &[&WaterfallPacket]) -> Vec<Line> {
    let words = together(packets);
    let mut lines: Vec<Line> = Vec::new();
    let mut room = 0;
    for (word, class, times) in words {
        let times = if times > 1 { format!(" \u{d7} {times}") } else { String::new() };
        let widest = WIDEST - times.chars().count();
        let word = match word.chars().count() > widest {
            true => word.chars().take(widest - 1).chain(['\u{2026}']).collect(),
            false => word,
        } + &times;
        let length = word.chars().count() + 2;
        match lines.last_mut() {
            Some(line) if length <= room => {
                line.push((word, class));
                room -= length;
            }
            _ => {
                room = (WIDEST + 2).saturating_sub(length);
                lines.push(vec![(word, class)]);
            }
        }
    }
    lines
}

const WIDTH: f64 = 360.0;
const LOWEST: f64 = 600.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 16.0;
const CLIENT: f64 = 40.0;
const SERVER: f64 = 336.0;
const LINE: f64 = 12.5;
const ROUNDING: f64 = 1e-6;
const NEAR: f64 = 22.0;
const WIDEST: usize = 46;
const MAX_LINES: usize = 5;
// A page of packets; more of them cannot be told apart.
const MAX_PACKETS: usize = 200;
