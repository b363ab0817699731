//! Visits: page loads in real browsers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Fault, Figures, Interval};

/// A browser that visited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BrowserFacts {
    /// `firefox` or `chromium`.
    pub name: String,
    /// Its name and version as it reports them, such as `Mozilla Firefox 153.7.0esr`.
    pub version: String,
    /// Settings that affect the figures, a sentence each.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Visits of one kind: a browser, a server, a network, a page.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct VisitCell {
    /// The browser, by its name in [`Record::browsers`](crate::Record::browsers).
    pub browser: String,
    /// The server under test, by name.
    pub server: String,
    /// The network, by its profile's name.
    pub profile: String,
    /// Median round-trip time of the profile: the unit of round trips.
    pub rtt_ms: f64,
    /// HTTP version: `1.1`, `2` or `3`.
    pub http: String,
    /// `small` (a page of 1 KiB), `resources` (one with 20 subresources) or `image` (a picture of
    /// 1 MiB).
    pub page: String,
    /// `first` (nothing is known of the server), `off` (a return with 0-RTT off) or `on` (a return
    /// with 0-RTT on).
    pub visit: String,
    /// The figures; `None` if no visit was good.
    pub summary: Option<VisitSummary>,
}

/// The figures of a cell, over its good visits.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct VisitSummary {
    /// Good visits.
    pub visits: usize,
    /// How many of them had early data that the server accepted, by their packets.
    pub early: usize,
    /// TLS set-up as the browser reports it: from the end of TCP's handshake (QUIC: from the
    /// start) until a request could leave.
    pub tls: Option<Figures>,
    /// TLS set-up from the packets: how much later the request left than it would have without TLS.
    pub wire_tls: Option<Figures>,
    /// From the start of the navigation to the last byte of the page or picture, in the browser.
    pub total: Figures,
    /// From the first packet to the last byte of the response on the wire; for a page with
    /// subresources, to their last byte on the same connection.
    pub wire_total: Option<Figures>,
    /// To the load event, with all subresources.
    pub load: Option<Figures>,
    /// To the largest contentful paint.
    pub largest_paint: Option<Figures>,
    /// Round trips from the first packet to the first byte of the response: the value of at least
    /// 19 in 20 visits; `None` if fewer agree.
    pub round_trips: Option<u32>,
}

/// One navigation. Times of the browser start with the navigation, those of the wire with the
/// first packet to the server.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Visit {
    /// The cell, by its index in [`Record::visit_cells`](crate::Record::visit_cells).
    pub cell: usize,
    /// The block: one run of a browser with a fresh profile.
    pub block: usize,
    /// The index of the visit in its block, from 0.
    pub turn: usize,
    /// When it started, in milliseconds since the visits started.
    pub at_ms: f64,
    /// The browser's timings; `None` if it reported none.
    pub browser: Option<BrowserTimings>,
    /// What the packets show; `None` if there were none.
    pub wire: Option<VisitPackets>,
    /// Where browser and packets disagree, a sentence each.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub warnings: Vec<String>,
    /// Why the visit is excluded from the figures.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fault: Option<Fault>,
}

/// A navigation's times as the browser reports them (W3C Navigation Timing, Resource Timing, Paint
/// Timing and Largest Contentful Paint), in milliseconds since the navigation's start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BrowserTimings {
    /// `connectStart`.
    pub connect_start_ms: f64,
    /// `secureConnectionStart`; `None` where the browser has 0, for a reused connection.
    pub secure_connection_start_ms: Option<f64>,
    /// `connectEnd`.
    pub connect_end_ms: f64,
    /// `requestStart`.
    pub request_start_ms: f64,
    /// `responseStart`.
    pub response_start_ms: f64,
    /// `responseEnd`.
    pub response_end_ms: f64,
    /// `loadEventStart`: when all subresources had arrived.
    pub load_event_ms: Option<f64>,
    /// First contentful paint.
    pub first_paint_ms: Option<f64>,
    /// Largest contentful paint.
    pub largest_paint_ms: Option<f64>,
    /// `nextHopProtocol`, such as `h2`.
    pub protocol: String,
    /// Subresources that were loaded.
    pub resources: usize,
}

impl BrowserTimings {
    /// When the page or picture was complete; `page` is a [`VisitCell::page`]. For a picture that
    /// is opened as a page, Firefox reports a `responseEnd` at its start. Such a page has no
    /// subresources, so the load event is its end.
    pub fn total_ms(&self, page: &str) -> f64 {
        match (page, self.load_event_ms) {
            ("image", Some(load)) => load.max(self.response_end_ms),
            _ => self.response_end_ms,
        }
    }
}

/// What the packets of a navigation show, over all its connections.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VisitPackets {
    /// What the connection that brought the page was: `full`, `resumed`, `0-RTT`, `refused` (early
    /// data that the server refused), or `none` (no handshake: the connection was there before).
    pub label: String,
    /// Its handshake in words, as a sample's label.
    pub detail: String,
    /// Connections that were started.
    pub connections: usize,
    /// How many of them carried early data that the server accepted.
    pub early_connections: usize,
    /// Bytes of early data that the page's connection carried.
    pub early_bytes: usize,
    /// How much later the request left than it would have without TLS.
    pub tls_ms: Option<f64>,
    /// From the first packet of the page's connection to the first byte of the response.
    pub first_byte_ms: Option<f64>,
    /// From the first packet of the page's connection to its last byte: of the page or picture, or of
    /// subresources.
    pub last_byte_ms: Option<f64>,
    /// Round trips to the first byte of the response.
    pub round_trips: Option<u32>,
    /// The group of the key share that was agreed on, such as `X25519MLKEM768`.
    pub group: Option<String>,
    /// Session tickets that the server sent on the page's connection.
    pub tickets: Option<usize>,
}

/// What one kind of visit saves against another that differs from it in one respect: medians of
/// the total in the browser, and of the load event.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct VisitEffect {
    /// In words, such as `0-RTT on instead of off`.
    pub what: String,
    /// The cell compared with, by its index in [`Record::visit_cells`](crate::Record::visit_cells).
    pub from: usize,
    /// The cell that is different.
    pub to: usize,
    /// `to` minus `from`, in milliseconds; a bootstrap interval over blocks.
    pub total_ms: Interval,
    /// The difference in round trips of the profile.
    pub total_rtt: Interval,
    /// The difference of the load event, where there are subresources.
    pub load_ms: Option<Interval>,
    /// Whether 0 lies outside the interval of the total.
    pub significant: bool,
}

/// What a page looked like while it was loaded.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Filmstrip {
    /// The cell, by its index in [`Record::visit_cells`](crate::Record::visit_cells).
    pub cell: usize,
    /// The pictures in the order of their times.
    pub frames: Vec<Frame>,
}

/// One picture of a page.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Frame {
    /// When it was seen, in milliseconds since the navigation's start.
    pub at_ms: f64,
    /// The picture, PNG or JPEG, as a path below the record's directory.
    pub file: String,
}
