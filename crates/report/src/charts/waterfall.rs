//! Waterfall charts: the packets of a connection, time downwards, client left, server right.

use maud::{Markup, html};

use super::placement::{LabelBox, Placed};
use super::scale::tick;
use super::{Anchor, Scale, line, px, svg_image, text, text_width};
use crate::{Waterfall, WaterfallPacket};

/// The packets of one connection, until `until_ms`.
#[derive(Clone, Debug)]
pub(crate) struct WaterfallChart<'a> {
    pub id: &'a str,
    pub title: &'a str,
    pub waterfall: &'a Waterfall,
    /// The end of the time axis, equal for all charts of a network.
    pub until_ms: f64,
}

impl WaterfallChart<'_> {
    /// The drawing.
    pub(crate) fn draw(&self) -> Markup {
        let end = self.end_ms();
        let floor = TOP + (MAX_DRAWING_HEIGHT - TOP) * (end / self.until_ms.max(end));
        let scale = Scale::linear(0.0, end, TOP, floor);
        let packets: Vec<&WaterfallPacket> = self.shown().collect();
        let first = self.waterfall.first_byte_ms;
        let first_words = format!("first byte {}", crate::format::format_ms_unit(first));
        let first_end = (SERVER_X - 8.0, scale.position(first) + 14.0);
        let mut placed = Placed::default();
        if scale.contains(first) {
            let width = text_width(&first_words, FIGURE_SIZE);
            placed.add([LabelBox::level(
                (first_end.0 - width / 2.0, first_end.1),
                width,
                LINE_HEIGHT,
            )]);
        }
        let marks = html! {
            (text(CLIENT_X - 4.0, 12.0, Anchor::Start, "label strong", "client"))
            (text(SERVER_X, 12.0, Anchor::Middle, "label strong", "server"))
            @for value in scale.ticks(8) {
                (line((CLIENT_X, scale.position(value)), (SERVER_X, scale.position(value)), "grid"))
                (text(CLIENT_X - 8.0, scale.position(value) + 4.0, Anchor::End, "tick",
                    &tick(value)))
            }
            (text(CLIENT_X - 8.0, 12.0, Anchor::End, "tick", "ms"))
            (line((CLIENT_X, TOP - 4.0), (CLIENT_X, floor), "lifeline"))
            (line((SERVER_X, TOP - 4.0), (SERVER_X, floor), "lifeline"))
            @for packet in &packets { (draw_arrow(packet, &scale)) }
            @for group in label_groups(&packets, &scale) {
                (draw_labels(&group, &scale, &mut placed))
            }
            @if scale.contains(first) {
                (line((CLIENT_X, scale.position(first)), (SERVER_X - 6.0, scale.position(first)),
                    "until"))
                circle cx=(px(CLIENT_X)) cy=(px(scale.position(first))) r="5.5"
                    class="first-byte" {}
                (text(first_end.0, first_end.1, Anchor::End, "figure strong halo", &first_words))
            }
        };
        let description = format!(
            "{} packets between client and server; the first byte of the response arrives after {}.",
            packets.len(),
            crate::format::format_ms_unit(first)
        );
        svg_image(self.id, (WIDTH, floor + BOTTOM), self.title, &description, marks)
    }

    /// The end of the time axis: shortly after the last byte of the response.
    fn end_ms(&self) -> f64 {
        let last = self.waterfall.last_byte_ms.max(self.waterfall.first_byte_ms);
        let last = if last.is_finite() && last > 0.0 { last } else { self.until_ms };
        (1.05 * last).min(self.until_ms)
    }

    /// The packets until the response was complete.
    fn shown(&self) -> impl Iterator<Item = &WaterfallPacket> {
        let end = self.waterfall.last_byte_ms.max(self.waterfall.first_byte_ms) + ROUNDING;
        let within = move |packet: &&WaterfallPacket| {
            packet.sent_ms < end && packet.delivered_ms.unwrap_or(packet.sent_ms) <= end
        };
        self.waterfall.packets.iter().filter(within).take(MAX_PACKETS)
    }
}

/// Packets of one side that leave so close together that they share a label.
struct LabelGroup<'a> {
    packets: Vec<&'a WaterfallPacket>,
}

fn label_groups<'a>(packets: &[&'a WaterfallPacket], scale: &Scale) -> Vec<LabelGroup<'a>> {
    let mut label_groups: Vec<LabelGroup<'a>> = Vec::new();
    for packet in packets.iter().filter(|packet| is_notable(packet)) {
        let near = |other: &WaterfallPacket| {
            other.up == packet.up
                && (scale.position(other.sent_ms) - scale.position(packet.sent_ms)).abs()
                    < MAX_GROUP_DISTANCE
        };
        match label_groups.iter_mut().find(|group| near(group.packets[0])) {
            Some(group) => group.packets.push(packet),
            None => label_groups.push(LabelGroup { packets: vec![packet] }),
        }
    }
    label_groups
}

fn ends(packet: &WaterfallPacket, scale: &Scale) -> ((f64, f64), (f64, f64)) {
    let (from, to) = if packet.up { (CLIENT_X, SERVER_X) } else { (SERVER_X, CLIENT_X) };
    let start = scale.position(packet.sent_ms);
    match packet.delivered_ms {
        Some(delivered) => ((from, start), (to, scale.position(delivered))),
        // The arrow of a dropped packet ends halfway.
        None => ((from, start), ((from + to) / 2.0, start + 14.0)),
    }
}

fn draw_arrow(packet: &WaterfallPacket, scale: &Scale) -> Markup {
    let (from, to) = ends(packet, scale);
    let color_class = color_class(packet);
    let words = labels_of(packet).join(", ");
    let (dx, dy) = (to.0 - from.0, to.1 - from.1);
    let length = dx.hypot(dy).max(1.0);
    let (ux, uy) = (dx / length, dy / length);
    let head = |side: f64| {
        let (x, y) = (to.0 - 8.0 * ux - side * 3.2 * uy, to.1 - 8.0 * uy + side * 3.2 * ux);
        format!("{} {}", px(x), px(y))
    };
    html! {
        g class=(color_class) {
            title {
                (words) ", " (packet.payload) " bytes, sent at " (format!("{:.2}", packet.sent_ms))
                " ms" @if packet.again { ", sent again" }
                @if let Some(delivered) = packet.delivered_ms {
                    ", delivered at " (format!("{delivered:.2}")) " ms"
                } @else { ", dropped" }
            }
            (line(from, to, if is_notable(packet) { "arrow" } else { "arrow ack" }))
            @if packet.delivered_ms.is_some() {
                path class="head" d=(format!("M{} {}L{}L{}Z", px(to.0), px(to.1), head(1.0), head(-1.0))) {}
            } @else {
                path class="cross" d=(format!("M{} {}l8 8m0 -8l-8 8", px(to.0 - 4.0), px(to.1 - 4.0))) {}
            }
        }
    }
}

/// Draws the labels of a group along its arrows where they cover no other label: above the first
/// arrow, below the last, or both; in the middle or shifted. If there is no room for all lines, the
/// last ones are left out: the tooltips and the table of the packets have them.
fn draw_labels(group: &LabelGroup<'_>, scale: &Scale, placed: &mut Placed) -> Markup {
    let all = labels(&group.packets);
    for count in (1..=all.len().min(MAX_LINES)).rev() {
        let mut lines = all[..count].to_vec();
        if count < all.len() && count > 1 {
            let more = all.len() - (count - 1);
            lines[count - 1] = vec![(format!("\u{2026} and {more} more lines"), "p-tcp")];
        }
        for shift in SHIFTS {
            for above in splits(count) {
                let lines = arrange(group, scale, &lines, above, shift);
                if placed.add(lines.iter().map(|line| line.place)) {
                    return html! { @for line in &lines { (draw_line(line)) } };
                }
            }
        }
    }
    html! {}
}

/// How many of the lines stand above their arrow, the best choice first.
fn splits(count: usize) -> Vec<usize> {
    let best = if count > 2 { count.div_ceil(2) } else { count };
    let mut splits = vec![best];
    splits.extend((0..=count).rev().filter(|above| *above != best));
    splits
}

/// A line of labels with its place.
struct PlacedLine<'a> {
    words: &'a Line,
    place: LabelBox,
}

/// Places the first `above` lines above the group's first arrow and the others below its last one.
/// `shift` moves them along the arrow, in units of the room beside the longest line, to the sender
/// if negative.
fn arrange<'a>(
    group: &LabelGroup<'_>,
    scale: &Scale,
    lines: &'a [Line],
    above: usize,
    shift: f64,
) -> Vec<PlacedLine<'a>> {
    let widths = lines.iter().map(|line| line_width(line));
    let longest = widths.clone().fold(0.0, f64::max);
    let last = group.packets[group.packets.len() - 1];
    let distances = (0..above)
        .rev()
        .map(|at| (group.packets[0], -5.0 - LINE_HEIGHT * at as f64))
        .chain((0..lines.len() - above).map(|at| (last, LINE_HEIGHT * (at + 1) as f64)));
    let place = |(packet, away): (&WaterfallPacket, f64), width: f64| {
        let (from, to) = ends(packet, scale);
        let (left, right) = if from.0 < to.0 { (from, to) } else { (to, from) };
        let angle = (right.1 - left.1).atan2(right.0 - left.0);
        let length = (right.0 - left.0).hypot(right.1 - left.1);
        let along = shift * ((length - longest) / 2.0 - 4.0).max(0.0);
        let along = if from.0 < to.0 { along } else { -along };
        let (sin, cos) = angle.sin_cos();
        let middle = ((left.0 + right.0) / 2.0, (left.1 + right.1) / 2.0);
        // `away` is the distance of the baseline, towards the bottom if positive.
        let baseline = (middle.0 + along * cos - away * sin, middle.1 + along * sin + away * cos);
        LabelBox { baseline, width, height: LINE_HEIGHT, angle }
    };
    let places = distances.zip(widths).map(|(distance, width)| place(distance, width));
    lines.iter().zip(places).map(|(words, place)| PlacedLine { words, place }).collect()
}

fn line_width(line: &[(String, &'static str)]) -> f64 {
    let words: Vec<&str> = line.iter().map(|(word, _)| word.as_str()).collect();
    text_width(&words.join(", "), PACKET_SIZE)
}

fn draw_line(line: &PlacedLine<'_>) -> Markup {
    let LabelBox { baseline: (x, y), angle, .. } = line.place;
    let turn = format!("rotate({} {} {})", px(angle.to_degrees()), px(x), px(y));
    html! {
        text.packet.halo x=(px(x)) y=(px(y)) text-anchor="middle" transform=(turn) {
            @for (place, (word, color_class)) in line.words.iter().enumerate() {
                @if place > 0 { ", " }
                tspan class=(color_class) { (word) }
            }
        }
    }
}

/// A line of labels, each with its colour class.
type Line = Vec<(String, &'static str)>;

/// The labels of packets in lines that fit between the lifelines.
fn labels(packets: &[&WaterfallPacket]) -> Vec<Line> {
    let words = merged_labels(packets);
    let mut lines: Vec<Line> = Vec::new();
    let mut room = 0;
    for (word, color_class, times) in words {
        let times = if times > 1 { format!(" \u{d7} {times}") } else { String::new() };
        let widest = MAX_LINE_CHARS - times.chars().count();
        let word = match word.chars().count() > widest {
            true => word.chars().take(widest - 1).chain(['\u{2026}']).collect(),
            false => word,
        } + &times;
        let length = word.chars().count() + 2;
        match lines.last_mut() {
            Some(line) if length <= room => {
                line.push((word, color_class));
                room -= length;
            }
            _ => {
                room = (MAX_LINE_CHARS + 2).saturating_sub(length);
                lines.push(vec![(word, color_class)]);
            }
        }
    }
    lines
}

/// A label, its colour class, and how often it is repeated in a row.
pub(super) type Label = (String, &'static str, usize);

/// The labels of several packets, without repetitions.
pub(super) fn merged_labels(packets: &[&WaterfallPacket]) -> Vec<Label> {
    let mut words: Vec<Label> = Vec::new();
    // Sums of the bytes of request streams.
    let mut streams: Vec<(usize, u64)> = Vec::new();
    for packet in packets {
        for word in essential(packet) {
            let color_class = label_class(packet, &word);
            // A message that continues in the next packet gets one label.
            let continued = word.strip_suffix(" (ends)").or(word.strip_suffix(" (goes on)"));
            if continued.is_some_and(|continued| words.iter().any(|(other, ..)| other == continued))
            {
                continue;
            }
            if let Some((what, bytes)) = stream(packet, &word) {
                let known = streams.iter_mut().find(|(place, _)| words[*place].0.starts_with(what));
                match known {
                    Some((_, sum)) => *sum += bytes,
                    None => {
                        streams.push((words.len(), bytes));
                        words.push((what.to_owned(), color_class, 1));
                    }
                }
                continue;
            }
            let word = word.strip_suffix(" (begins)").unwrap_or(&word).to_owned();
            match words.last_mut() {
                Some((last, _, times)) if *last == word => *times += 1,
                _ => words.push((word, color_class, 1)),
            }
        }
    }
    for (place, bytes) in streams {
        words[place].0 = format!("{} {bytes} B", words[place].0);
    }
    words
}

/// What a packet carries, for the tooltip.
pub(super) fn labels_of(packet: &WaterfallPacket) -> Vec<String> {
    let mut words = packet.what.clone();
    if words.is_empty() {
        words.push(if packet.payload > 0 { "data" } else { "ACK" }.to_owned());
    }
    if packet.again {
        words[0].insert_str(0, "again: ");
    }
    words
}

/// Whether a packet carries more than acknowledgements and connection maintenance.
pub(super) fn is_notable(packet: &WaterfallPacket) -> bool {
    let begins = |what: &String| what.starts_with("SYN") || what == "RST";
    match packet.what.iter().any(|what| what.contains(" packet")) {
        true => !essential(packet).is_empty(),
        false => packet.payload > 0 || packet.what.iter().any(begins),
    }
}

/// The labels without connection maintenance; tables have all labels.
fn essential(packet: &WaterfallPacket) -> Vec<String> {
    let mut shown = Vec::new();
    for word in labels_of(packet) {
        // Labels of packet kinds: only Initial and 0-RTT are shown.
        match word.split_once(" packet").map(|(kind, _)| kind) {
            Some("Initial") if shown.is_empty() => shown.push("Initial".to_owned()),
            Some("0-RTT") => shown.push("0-RTT".to_owned()),
            Some(_) => {}
            None if is_maintenance(packet, &word) => {}
            None => shown.push(word),
        }
    }
    // An Initial packet without other content is an acknowledgement.
    if shown == ["Initial"] {
        shown.clear();
    }
    if let Some(first) = shown.first_mut().filter(|word| packet.again && !word.contains("again")) {
        first.insert_str(0, "again: ");
    }
    shown
}

fn is_maintenance(packet: &WaterfallPacket, word: &str) -> bool {
    const MAINTENANCE: [&str; 5] =
        ["PING", "NEW_CONNECTION_ID", "RETIRE_CONNECTION_ID", "HANDSHAKE_DONE", "PADDING"];
    // TLS 1.3 sends ChangeCipherSpec only for middleboxes.
    let many = packet.what.len() > 1;
    MAINTENANCE.contains(&word)
        || word.starts_with("frame 0x")
        || (many && (word == "ACK" || word == "ChangeCipherSpec"))
        || stream_id(word).is_some_and(|(_, id, _)| id % 4 != 0)
}

/// `request` or `response` and its bytes, if the label names a bidirectional stream of the client
/// (RFC 9000 section 2.1).
fn stream(packet: &WaterfallPacket, word: &str) -> Option<(&'static str, u64)> {
    let (early, _, bytes) = stream_id(word).filter(|_| !packet.again)?;
    let what = match (early, packet.up) {
        (true, _) => "early data",
        (false, true) => "request",
        (false, false) => "response",
    };
    Some((what, bytes))
}

/// Parses labels such as `stream 0 1170 B, FIN`: whether it is early data, the stream ID, the
/// bytes.
fn stream_id(word: &str) -> Option<(bool, u64, u64)> {
    let early = word.strip_prefix("early data, ");
    let mut rest = early.unwrap_or(word).strip_prefix("stream ")?.split(' ');
    let (id, bytes) = (rest.next()?.parse().ok()?, rest.next()?.parse().ok()?);
    Some((early.is_some(), id, bytes))
}

/// The colour class of a packet: that of its most important content.
pub(super) fn color_class(packet: &WaterfallPacket) -> &'static str {
    let essential = essential(packet);
    let classes = || essential.iter().map(|word| label_class(packet, word));
    let by_importance = ["p-dropped", "p-early", "p-data", "p-tls"];
    let found =
        by_importance.into_iter().find(|color_class| classes().any(|other| other == *color_class));
    let unlabelled = packet.what.is_empty() && packet.payload > 0;
    found.unwrap_or(if unlabelled { "p-tls" } else { "p-tcp" })
}

fn label_class(packet: &WaterfallPacket, word: &str) -> &'static str {
    const TRANSPORT: [&str; 16] = [
        "SYN",
        "SYN-ACK",
        "SYN, ACK",
        "ACK",
        "FIN",
        "RST",
        "Initial",
        "Handshake",
        "0-RTT",
        "1-RTT",
        "Retry",
        "PING",
        "NEW_CONNECTION_ID",
        "RETIRE_CONNECTION_ID",
        "HANDSHAKE_DONE",
        "PADDING",
    ];
    const DATA: [&str; 5] = ["application data", "response", "request", "HTTP", "stream "];
    let bare_label = word.trim_start_matches("again: ");
    let is_transport = TRANSPORT.contains(&bare_label)
        || ["NEW_TOKEN", "CONNECTION_CLOSE", "frame 0x", "Retry"]
            .iter()
            .any(|w| bare_label.starts_with(w));
    match () {
        () if packet.delivered_ms.is_none() => "p-dropped",
        () if packet.up && word.contains("early data") => "p-early",
        () if DATA.iter().any(|data| word.contains(data)) => "p-data",
        () if is_transport => "p-tcp",
        () => "p-tls",
    }
}

const WIDTH: f64 = 360.0;
const MAX_DRAWING_HEIGHT: f64 = 600.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 16.0;
const CLIENT_X: f64 = 40.0;
const SERVER_X: f64 = 336.0;
const LINE_HEIGHT: f64 = 12.5;
/// Font sizes, as in `style.css`.
const PACKET_SIZE: f64 = 11.0;
const FIGURE_SIZE: f64 = 12.0;
/// Where labels may stand along their arrow: in the middle, or nearer to one end.
const SHIFTS: [f64; 5] = [0.0, -0.6, 0.6, -1.0, 1.0];
/// Tolerance for rounded times, in milliseconds.
const ROUNDING: f64 = 1e-6;
const MAX_GROUP_DISTANCE: f64 = 22.0;
const MAX_LINE_CHARS: usize = 40;
const MAX_LINES: usize = 5;
// More packets cannot be distinguished on a page.
const MAX_PACKETS: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(up: bool, what: &[&str]) -> WaterfallPacket {
        WaterfallPacket {
            up,
            delivered_ms: Some(1.0),
            what: what.iter().map(|&what| what.to_owned()).collect(),
            payload: 1200,
            ..WaterfallPacket::default()
        }
    }

    fn described(packets: &[WaterfallPacket]) -> Vec<(String, &'static str)> {
        let packets: Vec<&WaterfallPacket> = packets.iter().collect();
        merged_labels(&packets)
            .into_iter()
            .map(|(word, color_class, _)| (word, color_class))
            .collect()
    }

    #[test]
    fn a_quic_flight_is_labelled_by_its_content() {
        let first = packet(
            true,
            &[
                "Initial packet 0",
                "ClientHello",
                "0-RTT packet 0",
                "early data, stream 2 22 B",
                "early data, stream 0 35 B, FIN",
            ],
        );
        let expected = [
            ("Initial", "p-tcp"),
            ("ClientHello", "p-tls"),
            ("0-RTT", "p-tcp"),
            ("early data 35 B", "p-early"),
        ];
        let expected = expected.map(|(word, color_class)| (word.to_owned(), color_class));
        assert_eq!(described(std::slice::from_ref(&first)), expected);
        assert_eq!(color_class(&first), "p-early");
        let response = |what: &str| packet(false, &["1-RTT packet 4", "ACK", what]);
        let responses = [response("stream 0 1172 B"), response("stream 0 981 B, FIN")];
        assert_eq!(described(&responses), [("response 2153 B".to_owned(), "p-data")]);
        let upkeep = packet(false, &["1-RTT packet 1", "NEW_CONNECTION_ID", "NEW_CONNECTION_ID"]);
        assert_eq!(color_class(&upkeep), "p-tcp");
        assert!(!is_notable(&upkeep) && is_notable(&first));
    }
}
