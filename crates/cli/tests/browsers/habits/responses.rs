//! What it does when early data is not taken, by HTTP or by TLS.

use firstflight_browser::Installed;

use crate::room::{Room, how, on, words};
use crate::seen::{Early, Seen};
use crate::witness::{Request, Tls};

const PAGE: &str = "https://www.site.test/";

/// Early requests get 425: a page, an image and a fetch.
pub(crate) fn too_early(installed: &Installed) -> Result<(), String> {
    let mut room = Room::new(installed, &Tls::default());
    room.visit(PAGE);
    room.manner(|manner| manner.too_early = true);
    room.go("https://www.site.test/?early");
    let seen = room.end();
    let response = again(&seen, "/?early");
    // Whoever sends early has to come by his page at last.
    let mut asked = seen.iter().flat_map(Seen::requests).filter(|r| r.target == "/?early");
    assert!(asked.next_back().is_some_and(|request| request.status == 200), "{}", words(&seen));
    room.found("425-page", response)?;

    for (habit, target, script) in [
        (
            "425-image",
            "/image0",
            "void document.body.append(Object.assign(new Image(), {src: '/image0'}))",
        ),
        ("425-fetch", "/fetched", "void fetch('/fetched')"),
    ] {
        room.manner(|manner| manner.too_early = false);
        room.visit(PAGE);
        room.go(PAGE);
        room.end();
        room.manner(|manner| manner.too_early = true);
        room.run(script);
        crate::within(|| room.heard().iter().any(|request| request.target == target));
        // Time to ask again, for one that does.
        std::thread::sleep(std::time::Duration::from_millis(500));
        let seen = room.end();
        room.found(habit, again(&seen, target))?;
    }
    Ok(())
}

/// Everything gets 425: how often it asks, and what its user sees then.
pub(crate) fn always_too_early(installed: &Installed) -> Result<(), String> {
    let mut room = Room::new(installed, &Tls::default());
    room.visit(PAGE);
    room.manner(|manner| manner.always_too_early = true);
    let target = "/?for-ever";
    let shown = room.browser().navigate("https://www.site.test/?for-ever", crate::room::LIMIT);
    let seen = room.end();
    let times = seen.iter().flat_map(Seen::requests).filter(|r| r.target == target).count();
    let shown = match shown {
        Ok(navigation) => format!("shows the answer {}", navigation.status()),
        Err(_) => "shows an error of its own".to_owned(),
    };
    room.found("425-always-page", format!("asks {times} times, {shown}"))?;

    // Late requests on a connection that is there: a GET and a POST.
    room.manner(|manner| manner.always_too_early = false);
    for (habit, method) in [("425-late-get", "GET"), ("425-late-post", "POST")] {
        room.manner(|manner| manner.always_too_early = false);
        room.go(PAGE);
        room.manner(|manner| manner.always_too_early = true);
        room.run(&format!("void fetch('/late', {{method: '{method}'}})"));
        crate::within(|| room.heard().iter().any(|request| request.target == "/late"));
        std::thread::sleep(std::time::Duration::from_millis(500));
        let seen = room.end();
        room.found(habit, again(&seen, "/late"))?;
    }
    Ok(())
}

/// What it does about a 425: when it asks again, on which connection, and of which kind that is.
fn again(seen: &[Seen], target: &str) -> String {
    let mut asked: Vec<(&Seen, &Request)> = Vec::new();
    for seen in seen {
        asked.extend(seen.requests().iter().filter(|r| r.target == target).map(|r| (seen, r)));
    }
    let when = |request: &Request| if request.early { "early" } else { "late" };
    match asked[..] {
        [] => "does not ask".to_owned(),
        [(_, only)] if only.status == 425 => format!("{}, and not again", when(only)),
        [(_, only)] => format!("{}: {}", when(only), only.status),
        [(first, one), (second, other)] => {
            let same = std::ptr::eq(first, second);
            let place = if same { "on the same connection" } else { "on another connection" };
            let kind = match second.early() {
                _ if same => "",
                Early::None if second.resumed() => ", resumed",
                Early::None => ", full",
                _ => ", with early data",
            };
            let (first, second) = (when(one), when(other));
            format!("{first}, and again {second} {place}{kind}: {}", other.status)
        }
        _ => format!("{} times", asked.len()),
    }
}

/// Early data is refused by TLS: with the session resumed, and with its ticket unknown.
pub(crate) fn refused(installed: &Installed) -> Result<(), String> {
    let mut room = Room::new(installed, &Tls::default());
    room.visit(PAGE);
    room.manner(|manner| manner.accepts_early = false);
    let seen = room.visit("https://www.site.test/?refused");
    let response = sent_again(&seen, "/?refused");
    room.found("early-data-refused", response)?;
    let seen = room.visit(PAGE);
    room.found(
        "after-a-refusal",
        if seen[0].announced_early() { "tries again" } else { "does not" },
    )?;

    room.manner(|manner| manner.accepts_early = true);
    room.visit(PAGE);
    room.manner(|manner| manner.knows_tickets = false);
    let seen = room.visit("https://www.site.test/?unknown");
    let response = sent_again(&seen, "/?unknown");
    room.found("ticket-unknown", response)?;
    room.manner(|manner| manner.knows_tickets = true);
    let seen = room.visit(PAGE);
    room.found("after-an-unknown-ticket", how(&seen, "/"))
}

/// Between two visits the server's TLS changes.
pub(crate) fn changes(installed: &Installed) -> Result<(), String> {
    let before = Tls::default();
    let changes = [
        ("other-alpn", Tls { alpn: vec!["http/1.0", "http/1.1"], ..before.clone() }),
        ("no-alpn", Tls { alpn: vec![], ..before.clone() }),
        ("no-mlkem", Tls { groups: Some("X25519"), ..before.clone() }),
        ("hello-retry", Tls { groups: Some("P-384"), ..before.clone() }),
        ("early-data-off", Tls { early_data: false, ..before.clone() }),
    ];
    let mut room = Room::new(installed, &before);
    for (habit, after) in changes {
        room.becomes(&before);
        room.visit(PAGE);
        room.visit(PAGE);
        room.becomes(&after);
        let seen = room.visit(&format!("https://www.site.test/?{habit}"));
        let response = sent_again(&seen, &format!("/?{habit}"));
        room.found(&format!("change-{habit}"), response)?;
        // And the visit after it, with the server as it is now.
        let target = format!("/?after-{habit}");
        let seen = room.visit(&format!("https://www.site.test{target}"));
        room.found(&format!("change-{habit}-next-visit"), how(&seen, &target))?;
    }
    Ok(())
}

/// On how many connections a page was requested, and how it came to its response.
fn sent_again(seen: &[Seen], target: &str) -> String {
    let executed = seen.iter().flat_map(Seen::requests).filter(|r| r.target == target).count();
    assert_eq!(executed, 1, "{target} was executed {executed} times: {}", words(seen));
    let last = on(seen, target);
    let began = seen.iter().filter(|seen| seen.announced_early()).count();
    let one = began == 1 && last.announced_early();
    let kind = if last.resumed() { "resumed" } else { "full" };
    let retry = last.tls().is_some_and(|tls| tls.hello_retry_requests > 0);
    let retry = if retry { ", HelloRetryRequest" } else { "" };
    match last.early() {
        Early::Accepted => format!("early{retry}"),
        Early::Refused if one => format!("sends it again on the same connection, {kind}{retry}"),
        _ if began > 0 && !last.announced_early() => {
            format!("sends it again on a new connection, {kind}{retry}")
        }
        Early::Refused => format!("sends it again, {kind}{retry}"),
        _ => format!("not early, {kind}{retry}"),
    }
}
