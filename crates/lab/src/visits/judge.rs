//! Holds what the browser says against what its packets show, and both against what its cell asked
//! for (sans-IO).

use firstflight_browser::{Entry, Navigation};
use firstflight_packets::LabelKind;
use firstflight_report::{BrowserTimings, Fault, VisitPackets};

use super::axes::Visiting;
use super::packets::Seen;
use super::pages;
use crate::{Http, VisitPage};

/// What a cell asked of a visit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AskedVisit {
    pub visiting: Visiting,
    pub http: Http,
    pub page: VisitPage,
    /// Round-trip time of the network.
    pub rtt_ms: f64,
}

/// The browser's own times as the record has them.
pub(crate) fn timings(navigation: &Navigation) -> BrowserTimings {
    let Entry {
        connect_start,
        secure_connection_start,
        connect_end,
        request_start,
        response_start,
        response_end,
        ..
    } = navigation.page;
    BrowserTimings {
        connect_start_ms: connect_start,
        secure_connection_start_ms: navigation
            .page
            .connected_anew()
            .then_some(secure_connection_start)
            .filter(|at| *at > 0.0),
        connect_end_ms: connect_end,
        request_start_ms: request_start,
        response_start_ms: response_start,
        response_end_ms: response_end,
        load_event_ms: Some(navigation.load_event).filter(|at| *at > 0.0),
        first_paint_ms: navigation.first_contentful_paint,
        largest_paint_ms: navigation.largest_contentful_paint,
        protocol: navigation.protocol().to_owned(),
        resources: navigation.resources.len(),
    }
}

/// TLS set-up as the browser reports it; `None` for a connection that it had already.
///
/// Over HTTP/3 `connectEnd` is the handshake's end in Chromium, which early data does not wait for,
/// and the same as its start in Firefox: there, it is when the request left.
pub(crate) fn browser_tls(timings: &BrowserTimings) -> Option<f64> {
    let secure = timings.secure_connection_start_ms?;
    Some(match timings.protocol.as_str() {
        "h3" => (timings.request_start_ms - timings.connect_start_ms).max(0.0),
        _ => timings.connect_end_ms - secure,
    })
}

/// When the page or picture was there, as the browser reports it. Firefox's `responseEnd` of a
/// picture that is a page of its own is that of its start; it has no subresources, so the load
/// event is its end.
pub(crate) fn browser_total(page: VisitPage, timings: &BrowserTimings) -> f64 {
    match (page, timings.load_event_ms) {
        (VisitPage::Image, Some(load)) => load.max(timings.response_end_ms),
        _ => timings.response_end_ms,
    }
}

/// Why a visit does not enter the figures.
pub(crate) fn fault(asked: AskedVisit, status: u16, seen: Option<&Seen>) -> Option<Fault> {
    // Firefox says 0 for a picture that is a page of its own.
    if !matches!(status, 0 | 200..=299) {
        return Some(Fault::Failed(format!("the server answered with status {status}")));
    }
    let wrong = |why: String| Some(Fault::Mislabelled(why));
    let Some(seen) = seen else { return wrong("no packets".to_owned()) };
    if let Some(why) = &seen.unlabelled {
        return wrong(why.clone());
    }
    let Some(kind) = seen.kind else {
        return wrong("the page came over a connection that was there before".to_owned());
    };
    let detail = &seen.packets.detail;
    match (asked.visiting, kind) {
        (Visiting::First, kind) if kind != LabelKind::Full => {
            return wrong(format!("not a first visit: {detail}"));
        }
        (Visiting::Off, LabelKind::EarlyAccepted | LabelKind::EarlyRefused) => {
            return wrong(format!("early data though 0-RTT is off: {detail}"));
        }
        _ => {}
    }
    if let Some(alpn) = seen.alpn.as_deref().filter(|alpn| *alpn != alpn_of(asked.http)) {
        return wrong(format!("{alpn} instead of HTTP/{}", asked.http.name()));
    }
    let spoiled = seen.late_ms > SPOILED_MS + SPOILED_SHARE * asked.rtt_ms;
    if seen.missed > 0 {
        return Some(Fault::Spoiled(format!("the tap missed {} packets", seen.missed)));
    }
    spoiled.then(|| Fault::Spoiled(format!("a packet {:.1} ms late on the link", seen.late_ms)))
}

/// Later than this, a delivery is the machine's doing. A browser's own times vary by more than a
/// millisecond, which is the limit for samples.
const SPOILED_MS: f64 = 5.0;
/// And by more on long paths, where less of it shows.
const SPOILED_SHARE: f64 = 0.05;

fn alpn_of(http: Http) -> &'static str {
    match http {
        Http::One => "http/1.1",
        Http::Two => "h2",
        Http::Three => "h3",
    }
}

/// Where browser and packets disagree, a sentence each.
pub(crate) fn warnings(
    asked: AskedVisit,
    browser: &BrowserTimings,
    wire: &VisitPackets,
) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut differ = |what: &str, browser: Option<f64>, wire: Option<f64>| {
        let (Some(browser), Some(wire)) = (browser, wire) else { return };
        if (browser - wire).abs() > TOLERANCE_MS + TOLERANCE_SHARE * wire {
            warnings.push(format!(
                "{what}: {browser:.0} ms by the browser, {wire:.0} ms by its packets"
            ));
        }
    };
    differ("TLS set-up", browser_tls(browser), wire.tls_ms);
    let since_connect = |at: f64| Some(at - browser.connect_start_ms);
    let fresh = browser.secure_connection_start_ms.is_some();
    if fresh {
        differ("first byte", since_connect(browser.response_start_ms), wire.first_byte_ms);
        if pages::resources(asked.page) == 0 {
            differ(
                "last byte",
                since_connect(browser_total(asked.page, browser)),
                wire.last_byte_ms,
            );
        }
    } else if wire.label != "none" {
        warnings.push(format!(
            "the browser says that the connection was there before, its packets show a handshake: {}",
            wire.detail
        ));
    }
    if browser.protocol != alpn_of(asked.http) && !browser.protocol.is_empty() {
        warnings.push(format!(
            "the browser says that it spoke {}, the connection is {}",
            browser.protocol,
            alpn_of(asked.http)
        ));
    }
    // HTTP/1.1 takes a connection for each of several things at a time.
    let one_does = asked.http != Http::One || pages::resources(asked.page) == 0;
    if one_does && wire.connections > 1 {
        warnings.push(format!("{} connections were begun where one does", wire.connections));
    }
    let loaded = pages::resources(asked.page);
    if browser.resources < loaded {
        warnings.push(format!("{} of {loaded} subresources were loaded", browser.resources));
    }
    warnings
}

/// Browsers stamp their times on threads that have other work too.
const TOLERANCE_MS: f64 = 15.0;
const TOLERANCE_SHARE: f64 = 0.05;

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(visiting: Visiting) -> AskedVisit {
        AskedVisit { visiting, http: Http::One, page: VisitPage::Small, rtt_ms: 20.0 }
    }

    fn seen(kind: LabelKind) -> Seen {
        Seen {
            packets: VisitPackets { label: "x".to_owned(), ..VisitPackets::default() },
            kind: Some(kind),
            unlabelled: None,
            late_ms: 0.1,
            missed: 0,
            alpn: Some("http/1.1".to_owned()),
        }
    }

    #[test]
    fn a_visit_has_to_be_what_its_cell_asks_for() {
        use LabelKind::{EarlyAccepted, EarlyRefused, Full, Resumed};
        for (visiting, kind, good) in [
            (Visiting::First, Full, true),
            (Visiting::First, Resumed, false),
            (Visiting::First, EarlyAccepted, false),
            (Visiting::Off, Resumed, true),
            (Visiting::Off, Full, true),
            (Visiting::Off, EarlyAccepted, false),
            // What a server makes of a return is a finding, no fault.
            (Visiting::On, EarlyAccepted, true),
            (Visiting::On, EarlyRefused, true),
            (Visiting::On, Full, true),
        ] {
            let fault = fault(asked(visiting), 200, Some(&seen(kind)));
            assert_eq!(fault.is_none(), good, "{visiting:?} {kind:?}: {fault:?}");
        }
    }

    #[test]
    fn what_spoils_a_visit_is_named() {
        let on = asked(Visiting::On);
        let good = || seen(LabelKind::EarlyAccepted);
        assert!(matches!(fault(on, 404, Some(&good())), Some(Fault::Failed(_))));
        assert!(matches!(fault(on, 200, None), Some(Fault::Mislabelled(_))));
        let late = Seen { late_ms: 9.0, ..good() };
        assert!(matches!(fault(on, 200, Some(&late)), Some(Fault::Spoiled(_))));
        let missed = Seen { missed: 1, ..good() };
        assert!(matches!(fault(on, 200, Some(&missed)), Some(Fault::Spoiled(_))));
        let reused = Seen { kind: None, ..good() };
        assert!(matches!(fault(on, 200, Some(&reused)), Some(Fault::Mislabelled(_))));
        let other = Seen { alpn: Some("h2".to_owned()), ..good() };
        assert!(matches!(fault(on, 200, Some(&other)), Some(Fault::Mislabelled(_))));
    }

    fn browser(tls: f64) -> BrowserTimings {
        BrowserTimings {
            connect_start_ms: 5.0,
            secure_connection_start_ms: Some(117.0),
            connect_end_ms: 117.0 + tls,
            response_start_ms: 230.0 + tls,
            response_end_ms: 231.0 + tls,
            protocol: "http/1.1".to_owned(),
            ..BrowserTimings::default()
        }
    }

    fn wire(tls: f64) -> VisitPackets {
        VisitPackets {
            label: "full".to_owned(),
            connections: 1,
            tls_ms: Some(tls),
            first_byte_ms: Some(225.0 + tls),
            last_byte_ms: Some(226.0 + tls),
            ..VisitPackets::default()
        }
    }

    #[test]
    fn a_browser_that_agrees_with_its_packets_is_not_warned_of() {
        assert_eq!(warnings(asked(Visiting::On), &browser(0.3), &wire(1.0)), [""; 0]);
        assert_eq!(warnings(asked(Visiting::Off), &browser(114.0), &wire(112.0)), [""; 0]);
    }

    #[test]
    fn a_picture_is_there_when_it_is_loaded() {
        let times = BrowserTimings {
            response_end_ms: 351.0,
            load_event_ms: Some(1_042.0),
            ..BrowserTimings::default()
        };
        assert_eq!(browser_total(VisitPage::Image, &times), 1_042.0);
        assert_eq!(browser_total(VisitPage::Resources, &times), 351.0);
    }

    #[test]
    fn over_http_3_a_request_need_not_wait_for_the_end_of_the_handshake() {
        let early = BrowserTimings {
            connect_start_ms: 5.0,
            secure_connection_start_ms: Some(5.0),
            connect_end_ms: 117.0,
            request_start_ms: 6.0,
            protocol: "h3".to_owned(),
            ..BrowserTimings::default()
        };
        assert_eq!(browser_tls(&early), Some(1.0));
        assert_eq!(
            browser_tls(&BrowserTimings { protocol: "h2".to_owned(), ..early }),
            Some(112.0)
        );
    }

    #[test]
    fn a_browser_that_hides_a_handshake_is_told_so() {
        let found = warnings(asked(Visiting::On), &browser(0.3), &wire(113.0));
        assert_eq!(found[0], "TLS set-up: 0 ms by the browser, 113 ms by its packets");
        assert_eq!(found.len(), 3, "and both bytes: {found:?}");
        let before = BrowserTimings { secure_connection_start_ms: None, ..browser(0.0) };
        let found = warnings(asked(Visiting::On), &before, &wire(113.0));
        assert!(found[0].contains("there before"), "{found:?}");
        let more = VisitPackets { connections: 3, ..wire(0.0) };
        let found = warnings(asked(Visiting::On), &browser(0.0), &more);
        assert_eq!(found, ["3 connections were begun where one does"]);
        let other = BrowserTimings { protocol: "h2".to_owned(), ..browser(0.0) };
        assert!(warnings(asked(Visiting::On), &other, &wire(0.0))[0].contains("h2"));
    }
}
