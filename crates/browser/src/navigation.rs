//! What a browser says of a page that it opened.

use serde::Deserialize;
use serde_json::Value;

/// A page that was opened, as the browser's own performance timeline has it. Times are
/// milliseconds since the navigation's start.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Navigation {
    /// When it started, in milliseconds of Unix time.
    pub origin: f64,
    /// The page itself (`PerformanceNavigationTiming`).
    pub page: Entry,
    /// `domInteractive`.
    pub dom_interactive: f64,
    /// `domContentLoadedEventEnd`.
    pub dom_content_loaded: f64,
    /// `loadEventStart`: all subresources are there.
    pub load_event: f64,
    /// `loadEventEnd`.
    pub load_event_end: f64,
    /// `type`: `navigate`, or `reload`, `back_forward`.
    pub kind: String,
    /// Subresources (`PerformanceResourceTiming`) in the order of their end.
    pub resources: Vec<Entry>,
    /// `first-paint`, where the browser has it (Firefox has it only for its own tests).
    pub first_paint: Option<f64>,
    /// `first-contentful-paint`; `None` on an empty page.
    pub first_contentful_paint: Option<f64>,
    /// The last `largest-contentful-paint`; `None` on an empty page.
    pub largest_contentful_paint: Option<f64>,
}

/// How one thing was fetched (W3C Resource Timing). Times that do not apply are 0.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Entry {
    /// Its URL.
    pub name: String,
    /// What asked for it, such as `img`; `navigation` for the page.
    pub initiator_type: String,
    /// When it started.
    pub start_time: f64,
    /// `fetchStart`.
    pub fetch_start: f64,
    /// `domainLookupStart`.
    pub domain_lookup_start: f64,
    /// `domainLookupEnd`.
    pub domain_lookup_end: f64,
    /// `connectStart`.
    pub connect_start: f64,
    /// `secureConnectionStart`. For a connection that was there before see
    /// [`Entry::connected_anew`].
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
    /// `responseStatus`, such as 200; 0 where the browser does not say.
    pub response_status: u16,
    /// `transferSize`: bytes with an estimate of the header; 0 if it came from the cache.
    pub transfer_size: u64,
    /// `encodedBodySize`: bytes of the body as sent.
    pub encoded_body_size: u64,
}

impl Entry {
    /// Whether a connection was made for it. For one that was there before, all times of the
    /// connection are `fetchStart` (Chromium, as Resource Timing has it) or 0 (Firefox).
    pub fn connected_anew(&self) -> bool {
        self.connect_end > self.connect_start || self.connect_start > self.fetch_start
    }
}

impl Navigation {
    /// The page's status, such as 200.
    pub fn status(&self) -> u16 {
        self.page.response_status
    }

    /// The page's protocol by its ALPN name, such as `h2` or `h3`.
    pub fn protocol(&self) -> &str {
        &self.page.next_hop_protocol
    }

    /// From what [`COLLECT`] comes to.
    pub(crate) fn read(value: Value) -> Result<Self, String> {
        let navigation: Self = serde_json::from_value(value).map_err(|error| error.to_string())?;
        if navigation.page.name.is_empty() {
            return Err("there is no navigation in its timeline".to_owned());
        }
        Ok(navigation)
    }
}

/// A script for the page: waits until its largest paint has settled, and gives a [`Navigation`].
pub(crate) const COLLECT: &str = include_str!("collect.js");

/// A picture of a page while it was opened.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    /// When it was seen, in milliseconds since the navigation's start.
    pub at: f64,
    /// A JPEG, about 400 pixels wide.
    pub jpeg: Vec<u8>,
}

/// Pictures as they are shown: from the last one before the navigation, which is what was seen at
/// its start, and without those that are as the one before them.
pub(crate) fn strip(mut pictures: Vec<Picture>) -> Vec<Picture> {
    pictures.sort_by(|a, b| a.at.total_cmp(&b.at));
    let before = pictures.iter().take_while(|picture| picture.at <= 0.0).count();
    pictures.drain(..before.saturating_sub(1));
    if let Some(first) = pictures.first_mut() {
        first.at = first.at.max(0.0);
    }
    pictures.dedup_by(|later, earlier| later.jpeg == earlier.jpeg);
    pictures
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_strip_begins_with_the_navigation_and_shows_what_changes() {
        let picture = |at, byte| Picture { at, jpeg: vec![byte] };
        let taken = vec![
            picture(80.0, 2),
            picture(-30.0, 0),
            picture(-5.0, 1),
            picture(20.0, 1),
            picture(90.0, 3),
            picture(99.0, 3),
        ];
        let shown: Vec<_> = strip(taken).iter().map(|p| (p.at, p.jpeg[0])).collect();
        assert_eq!(shown, [(0.0, 1), (80.0, 2), (90.0, 3)]);
        assert!(strip(Vec::new()).is_empty());
    }

    #[test]
    fn a_timeline_is_read_and_an_empty_one_refused() {
        let said = json!({
            "origin": 1.5e12,
            "page": { "name": "https://lab.test/", "responseStatus": 200, "nextHopProtocol": "h2",
                "requestStart": 3.5, "transferSize": 300 },
            "loadEvent": 9.25,
            "resources": [{ "name": "https://lab.test/a", "initiatorType": "img" }],
            "largestContentfulPaint": null,
        });
        let navigation = Navigation::read(said).unwrap();
        assert_eq!((navigation.status(), navigation.protocol()), (200, "h2"));
        assert_eq!((navigation.page.request_start, navigation.load_event), (3.5, 9.25));
        assert_eq!(navigation.resources[0].initiator_type, "img");
        assert_eq!(navigation.largest_contentful_paint, None);
        for said in [json!(null), json!({}), json!({"page": 7}), json!({"origin": "x"})] {
            assert!(Navigation::read(said).is_err());
        }
    }
}
