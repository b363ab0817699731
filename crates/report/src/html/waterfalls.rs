//! The packets of a typical sample of each kind.

use maud::html;

use super::{Section, folded, panels};
use crate::axes::{kind, path, protocol};
use crate::drawing::WaterfallChart;
use crate::figure::bare;
use crate::sheets::Sheet;
use crate::{Record, Waterfall};

pub(super) fn section(record: &Record) -> Option<Section> {
    if record.waterfalls.is_empty() {
        return None;
    }
    let mut drawings = Vec::new();
    let mut tables = Vec::new();
    for waterfall in &record.waterfalls {
        let cell = &record.cells[waterfall.cell];
        let caption = format!("{}, {} {}, {}", cell.server, protocol(cell), kind(cell), path(cell));
        let chart = WaterfallChart {
            id: &format!("packets-{}", drawings.len()),
            title: &caption,
            waterfall,
            until_ms: until(record, &cell.profile),
        };
        drawings.push((caption.clone(), chart.draw()));
        tables.push(packets(&caption, waterfall));
    }
    let body = html! {
        p { "One sample near the median of each kind, drawn from its capture: time flows down, each "
            "arrow is a packet. Charts of one network share their time axis. Dotted arrows carry no "
            "data. Packets after the last byte of the answer are left out." }
        ul.legend aria-label="Legend" {
            li { span.dot.p-tcp {} "TCP, QUIC" } li { span.dot.p-tls {} "TLS handshake" }
            li { span.dot.p-early {} "early data" } li { span.dot.p-data {} "application data" }
            li { span.dot.p-dropped {} "dropped" }
        }
        (panels(&drawings))
        (folded("The packets as tables", &tables))
    };
    Some(Section { id: "packets", title: "Packets".to_owned(), short: "Packets", body })
}

/// The end of the time axis of all charts of one network.
fn until(record: &Record, profile: &str) -> f64 {
    let same = |waterfall: &&Waterfall| record.cells[waterfall.cell].profile == profile;
    let last = record
        .waterfalls
        .iter()
        .filter(same)
        .map(|waterfall| waterfall.last_byte_ms.max(waterfall.first_byte_ms));
    1.06 * last.filter(|last| last.is_finite()).fold(1e-3, f64::max)
}

fn packets(caption: &str, waterfall: &Waterfall) -> Sheet {
    let capture = waterfall.capture.as_ref().map_or(String::new(), |file| format!("; {file}"));
    let mut sheet = Sheet::new(
        caption,
        &format!("{}{capture}", waterfall.label),
        &[">sent ms", ">delivered ms", "from", "what", ">bytes", ">round trips"],
    );
    for packet in waterfall.packets.iter().take(MAX_WATERFALLS) {
        sheet.rows.push(vec![
            bare(packet.sent_ms),
            packet.delivered_ms.map_or("dropped".to_owned(), bare),
            if packet.up { "client" } else { "server" }.to_owned(),
            format!("{}{}", if packet.again { "again: " } else { "" }, packet.what.join(", ")),
            packet.payload.to_string(),
            packet.depth.map_or(String::new(), |depth| depth.to_string()),
        ]);
    }
    if waterfall.packets.len() > MAX_WATERFALLS {
        sheet.notes.push(format!("and {} more", waterfall.packets.len() - MAX_WATERFALLS));
    }
    sheet
}

const MAX_WATERFALLS: usize = 200;
