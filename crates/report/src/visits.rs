//! Cells of browser visits: their names, and pairs that are compared.

use crate::statistics::{ascending, percentile};
use crate::{BrowserTimings, Figures, Interval, Record, VisitCell, VisitEffect, VisitSummary};

/// A return visit with 0-RTT off and one with 0-RTT on, all else equal.
#[derive(Clone, Debug)]
pub(crate) struct VisitPair<'a> {
    pub off: &'a VisitCell,
    pub on: &'a VisitCell,
    /// The corresponding first visit, if measured.
    pub first: Option<&'a VisitCell>,
    /// The saving of `on` with its interval; `None` if there are too few visits.
    pub effect: Option<&'a VisitEffect>,
}

impl<'a> VisitPair<'a> {
    /// The figures of both. Returns `None` if one of them has no good visit.
    pub(crate) fn summaries(&self) -> Option<(&'a VisitSummary, &'a VisitSummary)> {
        self.off.summary.as_ref().zip(self.on.summary.as_ref())
    }

    /// Whether most visits with 0-RTT on had early data. Otherwise their figures do not show its
    /// effect.
    pub(crate) fn is_early(&self) -> bool {
        self.on.summary.as_ref().is_some_and(|on| 2 * on.early > on.visits)
    }

    /// How many visits with 0-RTT on had early data. Returns `None` if all had.
    pub(crate) fn early_data_share(&self) -> Option<String> {
        let on = self.on.summary.as_ref().filter(|on| on.early < on.visits)?;
        Some(format!("early data in {} of {}", on.early, on.visits))
    }

    /// Medians with 0-RTT off and on: of the load event if there are subresources, otherwise of the
    /// total.
    pub(crate) fn medians(&self) -> Option<(f64, f64)> {
        let (off, on) = self.summaries()?;
        let shown_total = |summary: &VisitSummary| match (&summary.load, self.on.has_subresources())
        {
            (Some(load), true) => load.p50_ms,
            _ => summary.total.p50_ms,
        };
        Some((shown_total(off), shown_total(on)))
    }

    /// The difference of these medians with its interval, if there is one.
    pub(crate) fn interval(&self) -> Option<Interval> {
        let effect = self.effect?;
        match (effect.load_ms, self.on.has_subresources()) {
            (Some(load), true) => Some(load),
            _ => Some(effect.total_ms),
        }
    }

    /// The median with 0-RTT on minus that with 0-RTT off.
    pub(crate) fn difference_ms(&self) -> Option<f64> {
        let (off, on) = self.medians()?;
        Some(self.interval().map_or(on - off, |interval| interval.estimate))
    }

    /// The difference in round trips. Returns `None` if the round-trip time is too short.
    pub(crate) fn round_trips(&self) -> Option<f64> {
        let ms = self.difference_ms()?;
        (self.on.rtt_ms >= 0.1).then(|| ms / self.on.rtt_ms)
    }

    /// The difference in percent of the time with 0-RTT off.
    pub(crate) fn percent(&self) -> Option<f64> {
        let (off, _) = self.medians()?;
        Some(100.0 * self.difference_ms()? / off.max(f64::MIN_POSITIVE))
    }
}

impl VisitCell {
    /// Whether the page is one with subresources.
    pub(crate) fn has_subresources(&self) -> bool {
        self.page == "resources"
    }

    /// The last byte by the packets, as counterpart of the total or of the load event. Packets do
    /// not distinguish a page's last byte from that of its subresources.
    pub(crate) fn last_bytes<'a>(&self, summary: &'a VisitSummary) -> [Option<&'a Figures>; 2] {
        match (summary.wire_total.as_ref(), self.has_subresources()) {
            (last, false) => [last, None],
            (last, true) => [None, last],
        }
    }

    /// Whether two cells differ only in the kind of visit.
    pub(crate) fn same_except_visit(&self, other: &Self) -> bool {
        (&self.browser, &self.server, &self.profile, &self.http, &self.page)
            == (&other.browser, &other.server, &other.profile, &other.http, &other.page)
            && self.rtt_ms.total_cmp(&other.rtt_ms).is_eq()
    }
}

/// The pairs of a record, in the order of its cells.
pub(crate) fn pairs(record: &Record) -> Vec<VisitPair<'_>> {
    let cells = &record.visit_cells;
    let position = |visit: &'static str, like: &VisitCell| {
        cells.iter().position(|cell| cell.visit == visit && cell.same_except_visit(like))
    };
    let mut pairs = Vec::new();
    for (off_index, off) in cells.iter().enumerate().filter(|(_, cell)| cell.visit == "off") {
        let Some(on_index) = position("on", off) else { continue };
        let effect = (record.visit_effects.iter())
            .find(|effect| (effect.from, effect.to) == (off_index, on_index));
        let first = position("first", off).map(|place| &cells[place]);
        pairs.push(VisitPair { off, on: &cells[on_index], first, effect });
    }
    pairs
}

/// The phases of a visit, with the CSS class of each.
pub(crate) const PHASES: [(&str, &str); 4] =
    [("connecting", "p-tcp"), ("TLS", "p-tls"), ("waiting", "p-waiting"), ("receiving", "p-data")];

/// Medians of the phases over a cell's good visits, as the browser reports them. Over HTTP/3
/// connecting is part of TLS.
pub(crate) fn phases_ms(record: &Record, cell: &VisitCell) -> Option<[f64; 4]> {
    let place = record.visit_cells.iter().position(|other| std::ptr::eq(other, cell))?;
    let good = record.visits.iter().filter(|visit| visit.cell == place && visit.fault.is_none());
    let visits: Vec<[f64; 4]> =
        good.filter_map(|visit| phases_of(cell, visit.browser.as_ref()?)).collect();
    let median =
        |phase: usize| percentile(&ascending(visits.iter().map(|phases| phases[phase])), 0.5);
    Some([median(0)?, median(1)?, median(2)?, median(3)?])
}

/// The phases of one visit. Returns `None` for a reused connection.
fn phases_of(cell: &VisitCell, times: &BrowserTimings) -> Option<[f64; 4]> {
    // Over HTTP/3 QUIC and TLS share one handshake, and early data does not wait for its end.
    let (secure, ready) = match cell.http.as_str() {
        "3" => (times.connect_start_ms, times.request_start_ms.min(times.connect_end_ms)),
        _ => (times.secure_connection_start_ms?, times.connect_end_ms),
    };
    let request = ready.max(secure);
    let between = |from: f64, to: f64| (to - from).max(0.0);
    Some([
        between(times.connect_start_ms, secure),
        between(secure, request),
        between(request, times.response_start_ms),
        between(times.response_start_ms, times.total_ms(&cell.page)),
    ])
}

/// Whether the record's browsers send early data with default settings, a sentence each.
pub(crate) fn as_shipped(record: &Record) -> Vec<&'static str> {
    let visited = |make: &str| {
        record.visit_cells.iter().any(|cell| cell.browser.split('-').next() == Some(make))
    };
    let sentences = [
        ("firefox", "Firefox sends early data as shipped."),
        (
            "chromium",
            "Chromium sends early data as shipped over HTTP/3; over TCP only with its feature \
             EnableTLS13EarlyData, which is off by default.",
        ),
    ];
    let here = sentences.into_iter().filter(|(make, _)| visited(make));
    here.map(|(_, sentence)| sentence).collect()
}

/// The name of a visit cell: `Firefox, nginx, HTTP/2, small page at 4g (53 ms), return,
/// 0-RTT on`.
pub(crate) fn name(cell: &VisitCell) -> String {
    format!("{}, {}", place(cell), visit(&cell.visit))
}

/// The name without the kind of visit.
pub(crate) fn place(cell: &VisitCell) -> String {
    format!("{}, {} at {}", who(cell), page(&cell.page), path(cell))
}

/// Browser, server and HTTP version.
pub(crate) fn who(cell: &VisitCell) -> String {
    format!("{}, {}, HTTP/{}", browser(&cell.browser), cell.server, cell.http)
}

/// A browser's display name.
pub(crate) fn browser(name: &str) -> &str {
    match name {
        "firefox" => "Firefox",
        "chromium" => "Chromium",
        other => other,
    }
}

/// The display name of a page.
pub(crate) fn page(name: &str) -> &str {
    match name {
        "small" => "small page",
        "resources" => "page with subresources",
        "image" => "image",
        other => other,
    }
}

/// The display name of a kind of visit.
pub(crate) fn visit(name: &str) -> &str {
    match name {
        "first" => "first visit",
        "off" => "return, 0-RTT off",
        "on" => "return, 0-RTT on",
        other => other,
    }
}

/// The CSS colour class of a kind of visit.
pub(crate) fn class(visit: &str) -> &'static str {
    match visit {
        "first" => "k-full",
        "off" => "k-resumed",
        "on" => "k-early",
        _ => "k-other",
    }
}

/// The network: `20 ms`, or `cable (28 ms)`.
pub(crate) fn path(cell: &VisitCell) -> String {
    crate::axes::network(&cell.profile, cell.rtt_ms)
}

/// The networks of the visits, each once, in the record's order.
pub(crate) fn networks(record: &Record) -> Vec<&str> {
    let named = record.profiles.iter().map(|profile| profile.name.as_str());
    let cells = || record.visit_cells.iter().map(|cell| cell.profile.as_str());
    let mut networks: Vec<&str> = Vec::new();
    for name in named.filter(|name| cells().any(|other| other == *name)).chain(cells()) {
        if !networks.contains(&name) {
            networks.push(name);
        }
    }
    networks
}

/// The number of visits with a warning, and of all visits.
pub(crate) fn warned(record: &Record) -> (usize, usize) {
    let warned = record.visits.iter().filter(|visit| !visit.warnings.is_empty()).count();
    (warned, record.visits.len())
}
