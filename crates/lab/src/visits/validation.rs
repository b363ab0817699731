//! Compares what the browser reports with its packets, and both with what the cell requests
//! (sans-IO).

use firstflight_browser::{Entry, Navigation};
use firstflight_packets::LabelKind;
use firstflight_report::{BrowserTimings, Fault, VisitPackets};

use super::packets::ObservedVisit;
use super::pages;
use super::plan::{VisitKind, VisitPage};
use crate::HttpVersion;

/// The visit that a cell requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestedVisit {
    pub visit_kind: VisitKind,
    pub http: HttpVersion,
    pub page: VisitPage,
    /// The round-trip time of the network.
    pub rtt_ms: f64,
}

/// The times that the browser reports, for the record.
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
            .opened_connection()
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

/// The time of TLS set-up as the browser reports it. Returns `None` for a reused connection.
///
/// Over HTTP/3 with early data, the request does not wait for the end of the handshake. Chromium
/// reports that end as `connectEnd`, Firefox as `requestStart`, so the earlier of the two is used.
pub(crate) fn browser_tls(timings: &BrowserTimings) -> Option<f64> {
    let secure = timings.secure_connection_start_ms?;
    Some(match timings.protocol.as_str() {
        "h3" => {
            let ready = timings.request_start_ms.min(timings.connect_end_ms);
            (ready - timings.connect_start_ms).max(0.0)
        }
        _ => timings.connect_end_ms - secure,
    })
}

/// Says why a visit does not enter the figures.
pub(crate) fn fault(
    requested: RequestedVisit,
    status: u16,
    observed: Option<&ObservedVisit>,
) -> Option<Fault> {
    // Firefox reports 0 for a picture opened as a page.
    if !matches!(status, 0 | 200..=299) {
        return Some(Fault::Failed(format!("the server responded with status {status}")));
    }
    let mismatch = |why: String| Some(Fault::Mislabelled(why));
    let Some(observed) = observed else { return mismatch("no packets".to_owned()) };
    if let Some(why) = &observed.unlabelled {
        return mismatch(why.clone());
    }
    let Some(kind) = observed.kind else {
        return mismatch("the page came over a reused connection".to_owned());
    };
    let detail = &observed.packets.detail;
    match (requested.visit_kind, kind) {
        (VisitKind::First, kind) if kind != LabelKind::Full => {
            return mismatch(format!("not a first visit: {detail}"));
        }
        (VisitKind::ReturnEarlyDataOff, LabelKind::EarlyAccepted | LabelKind::EarlyRefused) => {
            return mismatch(format!("early data though 0-RTT is off: {detail}"));
        }
        _ => {}
    }
    if let Some(alpn) =
        observed.alpn.as_deref().filter(|alpn| alpn.as_bytes() != requested.http.alpn())
    {
        return mismatch(format!("{alpn} instead of HTTP/{}", requested.http.name()));
    }
    let spoiled = observed.late_ms > MAX_LATENESS_MS + MAX_LATENESS_SHARE * requested.rtt_ms;
    if observed.missed > 0 {
        return Some(Fault::Spoiled(format!("the tap missed {} packets", observed.missed)));
    }
    spoiled.then(|| Fault::Spoiled(format!("a packet {:.1} ms late on the link", observed.late_ms)))
}

/// A later delivery means that the machine stalled. The limit for samples is a millisecond, but the
/// times of browsers vary by more.
const MAX_LATENESS_MS: f64 = 5.0;
/// The additional lateness allowed on long paths, as a share of the round-trip time.
const MAX_LATENESS_SHARE: f64 = 0.05;

/// The differences between browser and packets, a sentence each.
pub(crate) fn warnings(
    requested: RequestedVisit,
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
    let new_connection = browser.secure_connection_start_ms.is_some();
    if new_connection {
        differ("first byte", since_connect(browser.response_start_ms), wire.first_byte_ms);
        if pages::subresource_count(requested.page) == 0 {
            differ(
                "last byte",
                since_connect(browser.total_ms(requested.page.name())),
                wire.last_byte_ms,
            );
        }
    } else if wire.label != "none" {
        warnings.push(format!(
            "the browser reports a reused connection, its packets show a handshake: {}",
            wire.detail
        ));
    }
    if browser.protocol.as_bytes() != requested.http.alpn() && !browser.protocol.is_empty() {
        warnings.push(format!(
            "the browser reports the protocol {}, the connection uses {}",
            browser.protocol,
            String::from_utf8_lossy(requested.http.alpn())
        ));
    }
    // With HTTP/1.1 each concurrent request needs a connection.
    let one_suffices =
        requested.http != HttpVersion::One || pages::subresource_count(requested.page) == 0;
    if one_suffices && wire.connections > 1 {
        warnings.push(format!("{} connections were opened where one suffices", wire.connections));
    }
    let expected = pages::subresource_count(requested.page);
    if browser.resources < expected {
        warnings.push(format!("{} of {expected} subresources were loaded", browser.resources));
    }
    warnings
}

/// Browsers take their timestamps on busy threads.
const TOLERANCE_MS: f64 = 15.0;
const TOLERANCE_SHARE: f64 = 0.05;

#[cfg(test)]
mod tests {
    use super::*;

    fn requested(visit_kind: VisitKind) -> RequestedVisit {
        RequestedVisit { visit_kind, http: HttpVersion::One, page: VisitPage::Small, rtt_ms: 20.0 }
    }

    fn observed(kind: LabelKind) -> ObservedVisit {
        ObservedVisit {
            packets: VisitPackets { label: "x".to_owned(), ..VisitPackets::default() },
            kind: Some(kind),
            unlabelled: None,
            late_ms: 0.1,
            missed: 0,
            alpn: Some("http/1.1".to_owned()),
        }
    }

    #[test]
    fn a_visit_must_be_what_its_cell_requests() {
        use LabelKind::{EarlyAccepted, EarlyRefused, Full, Resumed};
        for (visit_kind, kind, good) in [
            (VisitKind::First, Full, true),
            (VisitKind::First, Resumed, false),
            (VisitKind::First, EarlyAccepted, false),
            (VisitKind::ReturnEarlyDataOff, Resumed, true),
            (VisitKind::ReturnEarlyDataOff, Full, true),
            (VisitKind::ReturnEarlyDataOff, EarlyAccepted, false),
            // What the server does with a return visit is a finding, not a fault.
            (VisitKind::ReturnEarlyDataOn, EarlyAccepted, true),
            (VisitKind::ReturnEarlyDataOn, EarlyRefused, true),
            (VisitKind::ReturnEarlyDataOn, Full, true),
        ] {
            let fault = fault(requested(visit_kind), 200, Some(&observed(kind)));
            assert_eq!(fault.is_none(), good, "{visit_kind:?} {kind:?}: {fault:?}");
        }
    }

    #[test]
    fn the_fault_of_a_visit_is_named() {
        let on = requested(VisitKind::ReturnEarlyDataOn);
        let good = || observed(LabelKind::EarlyAccepted);
        assert!(matches!(fault(on, 404, Some(&good())), Some(Fault::Failed(_))));
        assert!(matches!(fault(on, 200, None), Some(Fault::Mislabelled(_))));
        let late = ObservedVisit { late_ms: 9.0, ..good() };
        assert!(matches!(fault(on, 200, Some(&late)), Some(Fault::Spoiled(_))));
        let missed = ObservedVisit { missed: 1, ..good() };
        assert!(matches!(fault(on, 200, Some(&missed)), Some(Fault::Spoiled(_))));
        let reused = ObservedVisit { kind: None, ..good() };
        assert!(matches!(fault(on, 200, Some(&reused)), Some(Fault::Mislabelled(_))));
        let other = ObservedVisit { alpn: Some("h2".to_owned()), ..good() };
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
    fn there_is_no_warning_if_browser_and_packets_agree() {
        assert_eq!(
            warnings(requested(VisitKind::ReturnEarlyDataOn), &browser(0.3), &wire(1.0)),
            [""; 0]
        );
        assert_eq!(
            warnings(requested(VisitKind::ReturnEarlyDataOff), &browser(114.0), &wire(112.0)),
            [""; 0]
        );
    }

    #[test]
    fn tls_set_up_over_http_3_ends_when_the_request_can_start() {
        let early = BrowserTimings {
            connect_start_ms: 5.0,
            secure_connection_start_ms: Some(5.0),
            connect_end_ms: 117.0,
            request_start_ms: 6.0,
            protocol: "h3".to_owned(),
            ..BrowserTimings::default()
        };
        assert_eq!(browser_tls(&early), Some(1.0));
        let firefox =
            BrowserTimings { connect_end_ms: 5.0, request_start_ms: 117.0, ..early.clone() };
        assert_eq!(browser_tls(&firefox), Some(0.0));
        assert_eq!(
            browser_tls(&BrowserTimings { protocol: "h2".to_owned(), ..early }),
            Some(112.0)
        );
    }

    #[test]
    fn there_is_a_warning_if_the_packets_contradict_the_browser() {
        let found = warnings(requested(VisitKind::ReturnEarlyDataOn), &browser(0.3), &wire(113.0));
        assert_eq!(found[0], "TLS set-up: 0 ms by the browser, 113 ms by its packets");
        assert_eq!(found.len(), 3, "and both bytes: {found:?}");
        let reused = BrowserTimings { secure_connection_start_ms: None, ..browser(0.0) };
        let found = warnings(requested(VisitKind::ReturnEarlyDataOn), &reused, &wire(113.0));
        assert!(found[0].contains("reused"), "{found:?}");
        let more = VisitPackets { connections: 3, ..wire(0.0) };
        let found = warnings(requested(VisitKind::ReturnEarlyDataOn), &browser(0.0), &more);
        assert_eq!(found, ["3 connections were opened where one suffices"]);
        let other = BrowserTimings { protocol: "h2".to_owned(), ..browser(0.0) };
        assert!(
            warnings(requested(VisitKind::ReturnEarlyDataOn), &other, &wire(0.0))[0].contains("h2")
        );
    }
}
