//! The timings of a page that was opened.

use serde::Deserialize;
use serde_json::Value;

/// A page that was opened, with the timings of the browser. Times are in milliseconds since the start
/// of the navigation.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Navigation {
    /// Start of the navigation, in milliseconds of Unix time.
    pub origin: f64,
    /// The page itself (`PerformanceNavigationTiming`).
    pub page: Entry,
    /// `domInteractive`.
    pub dom_interactive: f64,
    /// `domContentLoadedEventEnd`.
    pub dom_content_loaded: f64,
    /// `loadEventStart`: all subresources are loaded.
    pub load_event: f64,
    /// `loadEventEnd`.
    pub load_event_end: f64,
    /// `type`: `navigate`, or `reload`, `back_forward`.
    pub kind: String,
    /// Subresources (`PerformanceResourceTiming`) in the order of their end.
    pub resources: Vec<Entry>,
    /// `first-paint`; `None` in Firefox, which has it only for its own tests.
    pub first_paint: Option<f64>,
    /// `first-contentful-paint`; `None` on an empty page.
    pub first_contentful_paint: Option<f64>,
    /// The last `largest-contentful-paint`; `None` on an empty page.
    pub largest_contentful_paint: Option<f64>,
}

/// The timings of one resource (W3C Resource Timing). Times that do not apply are 0.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Entry {
    /// The URL.
    pub name: String,
    /// What requested it, such as `img`; `navigation` for the page.
    pub initiator_type: String,
    /// `startTime`.
    pub start_time: f64,
    /// `fetchStart`.
    pub fetch_start: f64,
    /// `domainLookupStart`.
    pub domain_lookup_start: f64,
    /// `domainLookupEnd`.
    pub domain_lookup_end: f64,
    /// `connectStart`.
    pub connect_start: f64,
    /// `secureConnectionStart`. For an existing connection see [`Entry::opened_connection`].
    pub secure_connection_start: f64,
    /// `connectEnd`.
    pub connect_end: f64,
    /// `requestStart`.
    pub request_start: f64,
    /// `responseStart`.
    pub response_start: f64,
    /// `responseEnd`.
    pub response_end: f64,
    /// `nextHopProtocol`, an ALPN name such as `h2`.
    pub next_hop_protocol: String,
    /// `responseStatus`, such as 200; 0 if unknown.
    pub response_status: u16,
    /// `transferSize`: bytes with an estimate of the header; 0 if it came from the cache.
    pub transfer_size: u64,
    /// `encodedBodySize`: bytes of the body as sent.
    pub encoded_body_size: u64,
}

impl Entry {
    /// Whether a connection was opened for it. For an existing connection, all times of the connection
    /// are `fetchStart` (Chromium, as in Resource Timing) or 0 (Firefox).
    pub fn opened_connection(&self) -> bool {
        self.connect_end > self.connect_start || self.connect_start > self.fetch_start
    }
}

impl Navigation {
    /// The status of the page, such as 200.
    pub fn status(&self) -> u16 {
        self.page.response_status
    }

    /// The ALPN name of the page's protocol, such as `h2` or `h3`.
    pub fn protocol(&self) -> &str {
        &self.page.next_hop_protocol
    }

    /// Reads the result of [`COLLECT`].
    pub(crate) fn read(value: Value) -> Result<Self, String> {
        let navigation: Self = serde_json::from_value(value).map_err(|error| error.to_string())?;
        if navigation.page.name.is_empty() {
            return Err("the timeline has no navigation".to_owned());
        }
        Ok(navigation)
    }
}

/// A script for the page: waits until the largest contentful paint has settled, and returns a
/// [`Navigation`].
pub(crate) const COLLECT: &str = include_str!("collect.js");

/// A frame that was recorded while a page loaded.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// Time in milliseconds since the start of the navigation.
    pub at: f64,
    /// A JPEG, about 400 pixels wide.
    pub jpeg: Vec<u8>,
}

/// Selects the frames to show: from the last one before the navigation, without repeated frames.
pub(crate) fn select_frames(mut frames: Vec<Frame>) -> Vec<Frame> {
    frames.sort_by(|a, b| a.at.total_cmp(&b.at));
    let before = frames.iter().take_while(|frame| frame.at <= 0.0).count();
    frames.drain(..before.saturating_sub(1));
    if let Some(first) = frames.first_mut() {
        first.at = first.at.max(0.0);
    }
    frames.dedup_by(|later, earlier| later.jpeg == earlier.jpeg);
    frames
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_selected_frames_start_with_the_navigation_and_differ() {
        let frame = |at, byte| Frame { at, jpeg: vec![byte] };
        let frames = vec![
            frame(80.0, 2),
            frame(-30.0, 0),
            frame(-5.0, 1),
            frame(20.0, 1),
            frame(90.0, 3),
            frame(99.0, 3),
        ];
        let shown: Vec<_> = select_frames(frames).iter().map(|p| (p.at, p.jpeg[0])).collect();
        assert_eq!(shown, [(0.0, 1), (80.0, 2), (90.0, 3)]);
        assert!(select_frames(Vec::new()).is_empty());
    }

    #[test]
    fn a_timeline_is_read_and_an_empty_one_is_refused() {
        let value = json!({
            "origin": 1.5e12,
            "page": { "name": "https://lab.test/", "responseStatus": 200, "nextHopProtocol": "h2",
                "requestStart": 3.5, "transferSize": 300 },
            "loadEvent": 9.25,
            "resources": [{ "name": "https://lab.test/a", "initiatorType": "img" }],
            "largestContentfulPaint": null,
        });
        let navigation = Navigation::read(value).unwrap();
        assert_eq!((navigation.status(), navigation.protocol()), (200, "h2"));
        assert_eq!((navigation.page.request_start, navigation.load_event), (3.5, 9.25));
        assert_eq!(navigation.resources[0].initiator_type, "img");
        assert_eq!(navigation.largest_contentful_paint, None);
        for value in [json!(null), json!({}), json!({"page": 7}), json!({"origin": "x"})] {
            assert!(Navigation::read(value).is_err());
        }
    }
}
