//! Which requests it sends early.

use firstflight_browser::Installed;

use crate::room::{Room, how, on, words};
use crate::seen::{Early, Seen};
use crate::witness::Tls;

const SITE: &str = "https://www.site.test";

/// A page of a return visit, with a query and a cookie; a form and a fetch that post.
pub(crate) fn pages_and_posts(installed: &Installed) -> Result<(), String> {
    let mut room = Room::new(installed, &Tls::default());
    let seen = room.visit(&format!("{SITE}/"));
    assert_eq!(how(&seen, "/"), "full", "{}", words(&seen));
    let seen = room.visit(&format!("{SITE}/"));
    room.found("get", how(&seen, "/"))?;

    room.go(&format!("{SITE}/"));
    room.run("document.cookie = 'taste=sweet; max-age=600'");
    room.end();
    let seen = room.visit(&format!("{SITE}/?query"));
    let request = &on(&seen, "/?query").requests()[0];
    let cookie = request.field("cookie").map_or("without its cookie", |_| "with its cookie");
    let told = |name| match request.field(name) {
        Some(_) => "yes",
        None => "no",
    };
    let (early_data, fetch) = (told("early-data"), told("sec-fetch-mode"));
    room.found("get-with-query-and-cookie", format!("{}, {cookie}", how(&seen, "/?query")))?;
    room.found("field-early-data", early_data)?;
    room.found("fields-sec-fetch", fetch)?;

    room.visit(&format!("{SITE}/form"));
    room.go(&format!("{SITE}/form"));
    room.end();
    let seen = room.act("void document.forms[0].submit()", "/posted");
    once(&seen, "/posted");
    room.found("post-form", how(&seen, "/posted"))?;
    room.visit(&format!("{SITE}/"));
    room.go(&format!("{SITE}/"));
    room.end();
    let seen = room.act(&fetch_by("POST", "/fetched", Some("a body")), "/fetched");
    once(&seen, "/fetched");
    room.found("post-fetch", how(&seen, "/fetched"))
}

/// Methods of fetch(), from a page whose connection has ended.
pub(crate) fn methods(installed: &Installed) -> Result<(), String> {
    let mut room = Room::new(installed, &Tls::default());
    room.visit(&format!("{SITE}/"));
    for method in ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"] {
        // Renews the tickets.
        room.visit(&format!("{SITE}/"));
        room.go(&format!("{SITE}/"));
        room.end();
        let target = format!("/by-{}", method.to_lowercase());
        let body = matches!(method, "PUT" | "PATCH").then_some("a body");
        let seen = room.act(&fetch_by(method, &target, body), &target);
        once(&seen, &target);
        room.found(&format!("fetch-{}", method.to_lowercase()), how(&seen, &target))?;
    }
    room.visit(&format!("{SITE}/"));
    room.go(&format!("{SITE}/"));
    room.end();
    let seen = room.act("void navigator.sendBeacon('/beacon', 'a body')", "/beacon");
    once(&seen, "/beacon");
    room.found("beacon", how(&seen, "/beacon"))?;

    // From another site, with a body that needs to be requested first (CORS).
    room.visit("https://other.test/");
    room.visit(&format!("{SITE}/"));
    room.go(&format!("{SITE}/"));
    room.end();
    let there =
        "void fetch('https://other.test/across', {method: 'PUT', body: 'a'}).catch(() => 0)";
    room.run(there);
    crate::within(|| room.heard().iter().any(|request| request.target == "/across"));
    let seen = room.end();
    let first = seen.iter().flat_map(Seen::requests).find(|request| request.target == "/across");
    let response = first.map_or("nothing is sent".to_owned(), |request| {
        let when = if request.early { "early" } else { "late" };
        format!("{} {when}", request.method)
    });
    room.found("preflight", response)
}

/// Images of a page: on its connection, on others beside it, and of another site.
pub(crate) fn images(installed: &Installed) -> Result<(), String> {
    let mut room = Room::new(installed, &Tls { tickets: 8, ..Tls::default() });
    room.visit(&format!("{SITE}/images"));
    let seen = room.visit(&format!("{SITE}/images"));
    room.found("page-of-six-images", several(&seen))?;

    // The page's connection has ended: the image's is the first of a return.
    room.go(&format!("{SITE}/"));
    room.end();
    let load = "void (document.body.append(Object.assign(new Image(), {src: '/image0'})))";
    let seen = room.act(load, "/image0");
    room.found("image", how(&seen, "/image0"))?;

    room.visit("https://other.test/elsewhere");
    let seen = room.visit("https://other.test/elsewhere");
    room.found("image-of-another-site", how(&seen, "/image0"))
}

/// How many connections of each kind there were.
pub(crate) fn several(seen: &[Seen]) -> String {
    let used: Vec<&Seen> = seen.iter().filter(|seen| !seen.requests().is_empty()).collect();
    let early = used.iter().filter(|seen| seen.early() == Early::Accepted).count();
    let requests: usize = seen.iter().flat_map(Seen::requests).filter(|r| r.early).count();
    format!("{} connections, {early} early, with {requests} early requests", used.len())
}

/// Nobody may lose a request that is not safe, or make it twice.
fn once(seen: &[Seen], target: &str) {
    let times = seen.iter().flat_map(Seen::requests).filter(|r| r.target == target).count();
    assert_eq!(times, 1, "{target}: {}", words(seen));
}

/// A script that fetches.
fn fetch_by(method: &str, target: &str, body: Option<&str>) -> String {
    let body = body.map_or(String::new(), |body| format!(", body: '{body}'"));
    format!("void fetch('{target}', {{method: '{method}'{body}}})")
}
