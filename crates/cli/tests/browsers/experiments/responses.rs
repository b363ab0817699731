//! How the browser handles early data that is rejected by HTTP or by TLS.

use firstflight_browser::Installed;

use crate::connection::{Connection, EarlyDataOutcome};
use crate::server::{Request, Tls};
use crate::session::{BrowserSession, connection_of, describe, request_label};

const PAGE: &str = "https://www.site.test/";

/// Early requests get 425: a page, an image and a fetch().
pub(crate) fn too_early(installed: &Installed) -> Result<(), String> {
    let mut session = BrowserSession::new(installed, &Tls::default());
    session.visit(PAGE);
    session.behaviour(|behaviour| behaviour.too_early = true);
    session.open_page("https://www.site.test/?early");
    let connections = session.finish_visit();
    let response = describe_retry(&connections, "/?early");
    // The browser must get the page in the end.
    let mut requested =
        connections.iter().flat_map(Connection::requests).filter(|r| r.target == "/?early");
    assert!(
        requested.next_back().is_some_and(|request| request.status == 200),
        "{}",
        describe(&connections)
    );
    session.record_finding("425-page", response)?;

    for (finding, target, script) in [
        (
            "425-image",
            "/image0",
            "void document.body.append(Object.assign(new Image(), {src: '/image0'}))",
        ),
        ("425-fetch", "/fetched", "void fetch('/fetched')"),
    ] {
        session.behaviour(|behaviour| behaviour.too_early = false);
        session.visit(PAGE);
        session.open_page(PAGE);
        session.finish_visit();
        session.behaviour(|behaviour| behaviour.too_early = true);
        session.run(script);
        crate::poll(|| session.recorded().iter().any(|request| request.target == target));
        // Gives the browser time to retry.
        std::thread::sleep(std::time::Duration::from_millis(500));
        let connections = session.finish_visit();
        session.record_finding(finding, describe_retry(&connections, target))?;
    }
    Ok(())
}

/// All requests get 425: how often the browser retries, and what it shows.
pub(crate) fn always_too_early(installed: &Installed) -> Result<(), String> {
    let mut session = BrowserSession::new(installed, &Tls::default());
    session.visit(PAGE);
    session.behaviour(|behaviour| behaviour.always_too_early = true);
    let target = "/?for-ever";
    let shown = session
        .browser()
        .navigate("https://www.site.test/?for-ever", crate::session::VISIT_TIMEOUT);
    let connections = session.finish_visit();
    let times =
        connections.iter().flat_map(Connection::requests).filter(|r| r.target == target).count();
    let shown = match shown {
        Ok(navigation) => format!("shows the response {}", navigation.status()),
        Err(_) => "shows an error of its own".to_owned(),
    };
    session.record_finding("425-always-page", format!("requested {times} times, {shown}"))?;

    // A GET and a POST on an established connection.
    session.behaviour(|behaviour| behaviour.always_too_early = false);
    for (finding, method) in [("425-late-get", "GET"), ("425-late-post", "POST")] {
        session.behaviour(|behaviour| behaviour.always_too_early = false);
        session.open_page(PAGE);
        session.behaviour(|behaviour| behaviour.always_too_early = true);
        session.run(&format!("void fetch('/late', {{method: '{method}'}})"));
        crate::poll(|| session.recorded().iter().any(|request| request.target == "/late"));
        std::thread::sleep(std::time::Duration::from_millis(500));
        let connections = session.finish_visit();
        session.record_finding(finding, describe_retry(&connections, "/late"))?;
    }
    Ok(())
}

/// Describes the reaction to a 425: when the browser retries, and on which connection.
fn describe_retry(connections: &[Connection], target: &str) -> String {
    let mut requested: Vec<(&Connection, &Request)> = Vec::new();
    for connection in connections {
        let matching = connection.requests().iter().filter(|r| r.target == target);
        requested.extend(matching.map(|request| (connection, request)));
    }
    let when = |request: &Request| if request.early_data { "early" } else { "late" };
    match requested[..] {
        [] => "no request".to_owned(),
        [(_, only)] if only.status == 425 => format!("{}, and not again", when(only)),
        [(_, only)] => format!("{}: {}", when(only), only.status),
        [(first, one), (second, other)] => {
            let same = std::ptr::eq(first, second);
            let which = if same { "on the same connection" } else { "on another connection" };
            let kind = match second.early_data() {
                _ if same => "",
                EarlyDataOutcome::None if second.resumed() => ", resumed",
                EarlyDataOutcome::None => ", full",
                _ => ", with early data",
            };
            let (first, second) = (when(one), when(other));
            format!("{first}, and again {second} {which}{kind}: {}", other.status)
        }
        _ => format!("{} times", requested.len()),
    }
}

/// TLS refuses early data: with a resumed session, and with an unknown ticket.
pub(crate) fn refused(installed: &Installed) -> Result<(), String> {
    let mut session = BrowserSession::new(installed, &Tls::default());
    session.visit(PAGE);
    session.behaviour(|behaviour| behaviour.accepts_early = false);
    let connections = session.visit("https://www.site.test/?refused");
    let response = describe_refusal(&connections, "/?refused");
    session.record_finding("early-data-refused", response)?;
    let connections = session.visit(PAGE);
    session.record_finding(
        "after-a-refusal",
        if connections[0].announced_early_data() { "tries again" } else { "does not" },
    )?;

    session.behaviour(|behaviour| behaviour.accepts_early = true);
    session.visit(PAGE);
    session.behaviour(|behaviour| behaviour.knows_tickets = false);
    let connections = session.visit("https://www.site.test/?unknown");
    let response = describe_refusal(&connections, "/?unknown");
    session.record_finding("ticket-unknown", response)?;
    session.behaviour(|behaviour| behaviour.knows_tickets = true);
    let connections = session.visit(PAGE);
    session.record_finding("after-an-unknown-ticket", request_label(&connections, "/"))
}

/// The server's TLS settings change between two visits.
pub(crate) fn changes(installed: &Installed) -> Result<(), String> {
    let before = Tls::default();
    let changes = [
        ("other-alpn", Tls { alpn: vec!["http/1.0", "http/1.1"], ..before.clone() }),
        ("no-alpn", Tls { alpn: vec![], ..before.clone() }),
        ("no-mlkem", Tls { groups: Some("X25519"), ..before.clone() }),
        ("hello-retry", Tls { groups: Some("P-384"), ..before.clone() }),
        ("early-data-off", Tls { early_data: false, ..before.clone() }),
    ];
    let mut session = BrowserSession::new(installed, &before);
    for (finding, after) in changes {
        session.set_tls(&before);
        session.visit(PAGE);
        session.visit(PAGE);
        session.set_tls(&after);
        let connections = session.visit(&format!("https://www.site.test/?{finding}"));
        let response = describe_refusal(&connections, &format!("/?{finding}"));
        session.record_finding(&format!("change-{finding}"), response)?;
        // The next visit with the same settings.
        let target = format!("/?after-{finding}");
        let connections = session.visit(&format!("https://www.site.test{target}"));
        session.record_finding(
            &format!("change-{finding}-next-visit"),
            request_label(&connections, &target),
        )?;
    }
    Ok(())
}

/// Describes how a page was requested after its early data was refused.
fn describe_refusal(connections: &[Connection], target: &str) -> String {
    let executed =
        connections.iter().flat_map(Connection::requests).filter(|r| r.target == target).count();
    assert_eq!(executed, 1, "{target} was executed {executed} times: {}", describe(connections));
    let last = connection_of(connections, target);
    let attempts =
        connections.iter().filter(|connection| connection.announced_early_data()).count();
    let one = attempts == 1 && last.announced_early_data();
    let kind = if last.resumed() { "resumed" } else { "full" };
    let retry = last.tls().is_some_and(|tls| tls.hello_retry_requests > 0);
    let retry = if retry { ", HelloRetryRequest" } else { "" };
    match last.early_data() {
        EarlyDataOutcome::Accepted => format!("early{retry}"),
        EarlyDataOutcome::Refused if one => {
            format!("sends it again on the same connection, {kind}{retry}")
        }
        _ if attempts > 0 && !last.announced_early_data() => {
            format!("sends it again on a new connection, {kind}{retry}")
        }
        EarlyDataOutcome::Refused => format!("sends it again, {kind}{retry}"),
        _ => format!("not early, {kind}{retry}"),
    }
}
