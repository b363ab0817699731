//! Published figures of the same measurements, for comparison.

use crate::axes::QUIC;

/// The ping-pong matrix (C++ and OpenSSL 1.1.1): means in milliseconds, full, full + TFO, resumed,
/// resumed + TFO; first up to TLS 1.2, then TLS 1.3.
#[expect(clippy::approx_constant, reason = "6.28 ms were measured, not computed")]
const PING_PONG: [(f64, [[f64; 4]; 2]); 4] = [
    (200.0, [[809.50, 609.20, 704.90, 504.80], [609.30, 409.40, 602.60, 402.50]]),
    (20.0, [[88.92, 69.13, 74.88, 54.82], [69.20, 49.17, 62.52, 42.53]]),
    (2.0, [[15.26, 13.67, 11.51, 9.93], [13.07, 11.30, 8.28, 6.27]]),
    (0.2, [[5.92, 6.03, 3.59, 3.68], [6.56, 6.28, 2.58, 2.47]]),
];

/// curl 8.12 over HTTP/2, seconds as read off its bars: TLS set-up, first byte, total; plain, with
/// sessions, with sessions and early data in turn.
const CURL: [(f64, [[f64; 3]; 3]); 2] = [
    (18.0, [[0.042, 0.059, 0.060], [0.040, 0.058, 0.059], [0.041, 0.041, 0.042]]),
    (260.0, [[0.62, 0.92, 0.92], [0.62, 0.90, 0.90], [0.59, 0.59, 0.59]]),
];

/// curl's figures over HTTP/3.
const CURL_3: [(f64, [[f64; 3]; 3]); 2] = [
    (18.0, [[0.032, 0.051, 0.053], [0.031, 0.051, 0.052], [0.032, 0.033, 0.051]]),
    (260.0, [[0.30, 0.62, 0.62], [0.29, 0.62, 0.62], [0.29, 0.29, 0.62]]),
];

/// The production blueprint of 2026 on a LAN, milliseconds: min, p50, p95, max.
const BLUEPRINT: [(&str, [f64; 4]); 2] =
    [("full", [3.5, 4.8, 7.2, 12.0]), ("0-RTT", [0.8, 1.2, 2.4, 5.1])];

/// The server walk-through of 2019, by hand in Firefox's network panel at a ping of about 112 ms:
/// milliseconds with 0-RTT off and on. No TLS set-up was published for the image.
const WALK_THROUGH_FIGURES: [(&str, WalkThrough); 2] = [
    ("small", WalkThrough { tls: Some([117.0, 0.0]), total: [333.0, 221.0] }),
    ("image", WalkThrough { tls: None, total: [3500.0, 3000.0] }),
];

/// The walk-through's ranking of access networks by latency, as profiles: cable and fibre, over
/// Wi-Fi, ADSL, over Wi-Fi, then mobile networks, then a satellite.
pub(crate) const ACCESS_ORDER: [&str; 8] =
    ["fibre", "fibre+wifi", "adsl", "adsl+wifi", "4g", "3g", "2g", "geo"];

/// The index of a network in [`ACCESS_ORDER`]; `None` if it is not ranked.
pub(crate) fn access_place(profile: &str) -> Option<usize> {
    ACCESS_ORDER.iter().position(|name| *name == profile)
}

/// The profile of the walk-through's path.
pub(crate) const WALK_THROUGH: &str = "walkthrough";

/// The round-trip time of the walk-through's path.
pub(crate) const WALK_THROUGH_RTT_MS: f64 = 112.0;

/// The walk-through's figures for a page, in milliseconds with 0-RTT off and on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct WalkThrough {
    pub tls: Option<[f64; 2]>,
    pub total: [f64; 2],
}

/// The walk-through's figures for a page, by the page's name in visit cells.
pub(crate) fn walk_through(page: &str) -> Option<WalkThrough> {
    WALK_THROUGH_FIGURES.iter().find(|(name, _)| *name == page).map(|(_, figures)| *figures)
}

/// The published mean of a ping-pong cell in milliseconds.
pub(crate) fn ping_pong(rtt_ms: f64, tls: &str, kind: &str, tfo: bool) -> Option<f64> {
    let (_, versions) = PING_PONG.iter().find(|(rtt, _)| *rtt == rtt_ms)?;
    let column = match (tls, kind) {
        (QUIC, _) => return None,
        (_, "full") => 0,
        (_, "resumed") => 2,
        _ => return None,
    };
    Some(versions[usize::from(tls == "1.3")][column + usize::from(tfo)])
}

/// curl's TLS set-up, first byte and total in milliseconds.
pub(crate) fn curl(rtt_ms: f64, http: &str, kind: &str) -> Option<[f64; 3]> {
    let figures = match http {
        "2" => &CURL,
        "3" => &CURL_3,
        _ => return None,
    };
    let (_, kinds) = figures.iter().find(|(rtt, _)| *rtt == rtt_ms)?;
    let place = ["full", "resumed", "0-RTT"].iter().position(|name| *name == kind)?;
    Some(kinds[place].map(|seconds| seconds * 1e3))
}

/// The blueprint's min, p50, p95 and max in milliseconds.
pub(crate) fn blueprint(kind: &str) -> Option<[f64; 4]> {
    BLUEPRINT.iter().find(|(name, _)| *name == kind).map(|(_, figures)| *figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_figures_are_found_by_their_axes() {
        assert_eq!(ping_pong(200.0, "1.2", "full", false), Some(809.50));
        assert_eq!(ping_pong(20.0, "1.3", "resumed", true), Some(42.53));
        assert_eq!(ping_pong(20.0, "1.3", "0-RTT", false), None, "they had no such column");
        assert_eq!(ping_pong(0.02, "1.3", "full", false), None);
        assert_eq!(curl(18.0, "2", "0-RTT"), Some([41.0, 41.0, 42.0]));
        assert_eq!(curl(260.0, "3", "0-RTT"), Some([290.0, 290.0, 620.0]), "a page in two");
        assert_eq!(curl(20.0, "2", "full"), None);
        assert_eq!(curl(18.0, "1.1", "full"), None);
        let small = walk_through("small").unwrap();
        assert_eq!((small.tls, small.total), (Some([117.0, 0.0]), [333.0, 221.0]));
        assert_eq!(walk_through("resources"), None);
        assert_eq!(blueprint("0-RTT"), Some([0.8, 1.2, 2.4, 5.1]));
    }
}
