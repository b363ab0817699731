//! Which requests are sent early.

use firstflight_browser::Installed;

use crate::connection::{Connection, EarlyDataOutcome};
use crate::server::Tls;
use crate::session::{BrowserSession, connection_of, describe, request_label};

const SITE: &str = "https://www.site.test";

/// Return visits, with a query and a cookie; POSTs by a form and by fetch().
pub(crate) fn pages_and_posts(installed: &Installed) -> Result<(), String> {
    let mut session = BrowserSession::new(installed, &Tls::default());
    let connections = session.visit(&format!("{SITE}/"));
    assert_eq!(request_label(&connections, "/"), "full", "{}", describe(&connections));
    let connections = session.visit(&format!("{SITE}/"));
    session.record_finding("get", request_label(&connections, "/"))?;

    session.open_page(&format!("{SITE}/"));
    session.run("document.cookie = 'taste=sweet; max-age=600'");
    session.finish_visit();
    let connections = session.visit(&format!("{SITE}/?query"));
    let request = &connection_of(&connections, "/?query").requests()[0];
    let cookie = request.field("cookie").map_or("without its cookie", |_| "with its cookie");
    let has_field = |name| match request.field(name) {
        Some(_) => "yes",
        None => "no",
    };
    let (early_data, fetch) = (has_field("early-data"), has_field("sec-fetch-mode"));
    session.record_finding(
        "get-with-query-and-cookie",
        format!("{}, {cookie}", request_label(&connections, "/?query")),
    )?;
    session.record_finding("field-early-data", early_data)?;
    session.record_finding("fields-sec-fetch", fetch)?;

    session.visit(&format!("{SITE}/form"));
    session.open_page(&format!("{SITE}/form"));
    session.finish_visit();
    let connections = session.run_and_finish("void document.forms[0].submit()", "/posted");
    assert_sent_once(&connections, "/posted");
    session.record_finding("post-form", request_label(&connections, "/posted"))?;
    session.visit(&format!("{SITE}/"));
    session.open_page(&format!("{SITE}/"));
    session.finish_visit();
    let connections =
        session.run_and_finish(&fetch_script("POST", "/fetched", Some("a body")), "/fetched");
    assert_sent_once(&connections, "/fetched");
    session.record_finding("post-fetch", request_label(&connections, "/fetched"))
}

/// Methods of fetch(), from a page whose connection is closed.
pub(crate) fn methods(installed: &Installed) -> Result<(), String> {
    let mut session = BrowserSession::new(installed, &Tls::default());
    session.visit(&format!("{SITE}/"));
    for method in ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"] {
        // Fetches new tickets.
        session.visit(&format!("{SITE}/"));
        session.open_page(&format!("{SITE}/"));
        session.finish_visit();
        let target = format!("/by-{}", method.to_lowercase());
        let body = matches!(method, "PUT" | "PATCH").then_some("a body");
        let connections = session.run_and_finish(&fetch_script(method, &target, body), &target);
        assert_sent_once(&connections, &target);
        session.record_finding(
            &format!("fetch-{}", method.to_lowercase()),
            request_label(&connections, &target),
        )?;
    }
    session.visit(&format!("{SITE}/"));
    session.open_page(&format!("{SITE}/"));
    session.finish_visit();
    let connections =
        session.run_and_finish("void navigator.sendBeacon('/beacon', 'a body')", "/beacon");
    assert_sent_once(&connections, "/beacon");
    session.record_finding("beacon", request_label(&connections, "/beacon"))?;

    // A request to another site that needs a preflight request (CORS).
    session.visit("https://other.test/");
    session.visit(&format!("{SITE}/"));
    session.open_page(&format!("{SITE}/"));
    session.finish_visit();
    let script =
        "void fetch('https://other.test/across', {method: 'PUT', body: 'a'}).catch(() => 0)";
    session.run(script);
    crate::poll(|| session.recorded().iter().any(|request| request.target == "/across"));
    let connections = session.finish_visit();
    let first = connections
        .iter()
        .flat_map(Connection::requests)
        .find(|request| request.target == "/across");
    let response = first.map_or("nothing is sent".to_owned(), |request| {
        let when = if request.early_data { "early" } else { "late" };
        format!("{} {when}", request.method)
    });
    session.record_finding("preflight", response)
}

/// Images: on the page's connection, on parallel ones, and of another site.
pub(crate) fn images(installed: &Installed) -> Result<(), String> {
    let mut session = BrowserSession::new(installed, &Tls { tickets: 8, ..Tls::default() });
    session.visit(&format!("{SITE}/images"));
    let connections = session.visit(&format!("{SITE}/images"));
    session.record_finding("page-of-six-images", summarize(&connections))?;

    // The page's connection is closed, so the image opens a new one.
    session.open_page(&format!("{SITE}/"));
    session.finish_visit();
    let load = "void (document.body.append(Object.assign(new Image(), {src: '/image0'})))";
    let connections = session.run_and_finish(load, "/image0");
    session.record_finding("image", request_label(&connections, "/image0"))?;

    session.visit("https://other.test/elsewhere");
    let connections = session.visit("https://other.test/elsewhere");
    session.record_finding("image-of-another-site", request_label(&connections, "/image0"))
}

/// Counts connections and early requests.
pub(crate) fn summarize(connections: &[Connection]) -> String {
    let used: Vec<&Connection> =
        connections.iter().filter(|connection| !connection.requests().is_empty()).collect();
    let early_data = used
        .iter()
        .filter(|connection| connection.early_data() == EarlyDataOutcome::Accepted)
        .count();
    let requests: usize =
        connections.iter().flat_map(Connection::requests).filter(|r| r.early_data).count();
    format!("{} connections, {early_data} early, with {requests} early requests", used.len())
}

/// Checks that a request was sent exactly once.
fn assert_sent_once(connections: &[Connection], target: &str) {
    let times =
        connections.iter().flat_map(Connection::requests).filter(|r| r.target == target).count();
    assert_eq!(times, 1, "{target}: {}", describe(connections));
}

/// A script that calls fetch().
fn fetch_script(method: &str, target: &str, body: Option<&str>) -> String {
    let body = body.map_or(String::new(), |body| format!(", body: '{body}'"));
    format!("void fetch('{target}', {{method: '{method}'{body}}})")
}
