//! Request smuggling: each case of the corpora through the proxy, and what was made of it judged by
//! the bytes that the upstream got. nginx and HAProxy, as upstreams, count as many requests.

use std::collections::BTreeSet;

use crate::corpus::{self, Case, bytes};
use crate::http2::{self, END_HEADERS, END_STREAM, Field};
use crate::http3;
use crate::others::{Haproxy, Nginx};
use crate::running::{Serve, site, until};
use crate::table;
use crate::upstream::{Seen, Upstream, words};
use crate::wire::Dialer;

const HTTP1: &str = include_str!("corpora/http1.txt");
const HTTP2: &str = include_str!("corpora/http2.txt");

/// Short, because a case that leaves the server waiting ends by it.
const LIMITS: [&str; 4] = ["--header-timeout", "2s", "--idle-timeout", "2s"];

const LAST: &[u8] = b"GET /last HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// Over HTTP/1.1, to the strict upstream.
pub(crate) fn http1() {
    let (site, upstream) = (site(), Upstream::start());
    let server = Serve::start(site.path(), &[&["--upstream", &upstream.url], &LIMITS[..]].concat());
    let dialer = Dialer::new(&server, "http/1.1");
    let mut wrong = Vec::new();
    let cases = corpus::cases(HTTP1);
    for case in &cases {
        let status = send1(&dialer, case);
        let seen = upstream.take();
        let outcome = match words(&seen) {
            nothing if nothing.is_empty() => status,
            requests => format!("{status}: {requests}"),
        };
        note(&mut wrong, case, &case.expected, &outcome);
        early_data_stays(case, &seen);
    }
    conclude("smuggling, HTTP/1.1", cases.len(), &wrong);
}

/// Over HTTP/2.
pub(crate) fn http2() {
    let (site, upstream) = (site(), Upstream::start());
    let server = Serve::start(site.path(), &[&["--upstream", &upstream.url], &LIMITS[..]].concat());
    let dialer = Dialer::new(&server, "h2");
    let mut wrong = Vec::new();
    let cases = corpus::cases(HTTP2);
    for case in &cases {
        let served = send2(&dialer, case);
        note(&mut wrong, case, &case.expected, &outcome(served, &upstream));
    }
    conclude("smuggling, HTTP/2", cases.len(), &wrong);
}

/// Over HTTP/3.
pub(crate) fn http3() {
    let (site, upstream) = (site(), Upstream::start());
    let server = Serve::start(site.path(), &[&["--upstream", &upstream.url], &LIMITS[..]].concat());
    let client = http3::Client::new(&server);
    let mut wrong = Vec::new();
    let cases = corpus::cases(HTTP2);
    for case in &cases {
        let (fields, body) = message(case);
        let served = client.ask(&fields, &body);
        let expected = case.expected3.as_ref().unwrap_or(&case.expected);
        note(&mut wrong, case, expected, &outcome(served, &upstream));
    }
    conclude("smuggling, HTTP/3", cases.len(), &wrong);
}

/// Behind the proxy stand servers that people use: as many requests as the corpora say.
pub(crate) fn real_upstreams() {
    let site = site();
    let nginx = Nginx::start(site.path());
    let haproxy = Haproxy::start(site.path());
    for (name, url, count) in [
        ("nginx", &nginx.url, &(|| nginx.count()) as &dyn Fn() -> usize),
        ("HAProxy", &haproxy.url, &|| haproxy.count()),
    ] {
        let server = Serve::start(site.path(), &[&["--upstream", url], &LIMITS[..]].concat());
        let (one, two) = (Dialer::new(&server, "http/1.1"), Dialer::new(&server, "h2"));
        let (mut wrong, mut sent, mut total) = (Vec::new(), 0, count());
        let mut judge = |case: &Case| {
            // Each that is expected has a method and a target before its body.
            let expected = case.expected.matches(" \"").count();
            // A server that logs a request before it has come whole counts one more.
            let half = case.expected == "400"
                && case.lines.concat().contains("Transfer-Encoding: chunked\\r\\n\\r\\n");
            // They log when they have answered. What is too many is found with the next case.
            until(|| count() - total >= expected);
            let counted = count() - total;
            if counted != expected && !(half && counted == expected + 1) {
                wrong.push(format!("{}: {counted} instead of {expected}", case.name));
            }
            (sent, total) = (sent + expected, total + counted);
        };
        for case in corpus::cases(HTTP1) {
            send1(&one, &case);
            judge(&case);
        }
        for case in corpus::cases(HTTP2) {
            send2(&two, &case);
            judge(&case);
        }
        table::cases(&format!("smuggling, {name} behind"), sent, 0, wrong.len());
        assert!(wrong.is_empty(), "{name}:\n{}", wrong.join("\n"));
    }
}

/// Sends a case, and another request behind it; the status of the first answer.
fn send1(dialer: &Dialer, case: &Case) -> String {
    let mut wire = dialer.connect().unwrap();
    // A server that has had enough may close before all of it is sent.
    let _ = wire.send(&[&bytes(&case.lines.concat()), LAST].concat());
    let answer = wire.read_to_end();
    let answer = String::from_utf8_lossy(&answer);
    match answer.strip_prefix("HTTP/1.1 ").or(answer.strip_prefix("HTTP/1.0 ")) {
        Some(status) => status[..3].to_owned(),
        None => "closed".to_owned(),
    }
}

/// Sends a case on a connection of its own; whether it was answered as a request of good form.
fn send2(dialer: &Dialer, case: &Case) -> bool {
    let (fields, body) = message(case);
    let block: Vec<u8> =
        fields.iter().flat_map(|(name, value)| http2::field(name, value)).collect();
    let end = if body.is_empty() { END_STREAM } else { 0 };
    let mut bytes = http2::hello(&[]);
    bytes.extend(http2::frame(http2::HEADERS, END_HEADERS | end, 1, &block));
    for (number, data) in (1..).zip(&body) {
        let end = if number == body.len() { END_STREAM } else { 0 };
        bytes.extend(http2::frame(http2::DATA, end, 1, data));
    }
    let mut wire = dialer.connect().unwrap();
    wire.send(&bytes).unwrap();
    let over = |bytes: &[u8]| {
        let frames = http2::frames(bytes);
        frames.iter().any(|frame| frame.ends(1) || frame.kind == http2::GOAWAY)
    };
    let answer = wire.read_until(over);
    let frames = http2::frames(&answer);
    let head = frames.iter().find(|frame| frame.kind == http2::HEADERS && frame.stream == 1);
    head.is_some_and(|head| http2::status(head.payload) == Some(200))
}

/// The fields of a case, pseudo-fields first, and its body's parts.
fn message(case: &Case) -> (Vec<Field>, Vec<Vec<u8>>) {
    let (mut fields, mut body, mut bare) = (Vec::new(), Vec::new(), false);
    for line in &case.lines {
        if let Some(data) = line.strip_prefix("> ") {
            body.push(bytes(data));
        } else if line == "bare" {
            bare = true;
        } else {
            let (name, value) = field(line);
            fields.push((bytes(name), bytes(value)));
        }
    }
    if !bare {
        let ours = [
            (":method", "POST"),
            (":scheme", "https"),
            (":authority", "localhost"),
            (":path", "/a"),
        ];
        let given: BTreeSet<_> = fields.iter().map(|(name, _)| name.clone()).collect();
        let (pseudo, rest): (Vec<_>, Vec<_>) =
            fields.into_iter().partition(|(name, _)| name.starts_with(b":") && name.len() > 1);
        let missing = ours.iter().filter(|(name, _)| !given.contains(name.as_bytes()));
        fields = missing
            .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
            .collect();
        fields.extend(pseudo);
        fields.extend(rest);
    }
    (fields, body)
}

/// A name that begins with a colon is a pseudo-field's; one that is nothing else is empty.
fn field(line: &str) -> (&str, &str) {
    let first = usize::from(line.starts_with(':') && !line.starts_with(": "));
    match line[first..].split_once(": ") {
        Some((name, value)) => (&line[..first + name.len()], value),
        None => (line.strip_suffix(':').unwrap(), ""),
    }
}

fn outcome(served: bool, upstream: &Upstream) -> String {
    match (words(&upstream.take()), served) {
        (nothing, false) if nothing.is_empty() => "refused".to_owned(),
        (nothing, true) if nothing.is_empty() => "answered without an upstream".to_owned(),
        (requests, _) => requests,
    }
}

fn note(wrong: &mut Vec<String>, case: &Case, expected: &str, outcome: &str) {
    if expected.split(" or ").all(|expected| expected != outcome) {
        wrong.push(format!("{}\n    must be {expected}\n    but is  {outcome}", case.name));
    }
}

/// RFC 8470 section 5.1: nobody may have it removed by naming it in Connection.
fn early_data_stays(case: &Case, seen: &[Seen]) {
    if !case.lines.concat().contains("\\nEarly-Data: 1\\r\\nContent") {
        return;
    }
    let Some(Seen::Whole { fields, .. }) = seen.first() else { panic!("{}: {seen:?}", case.name) };
    assert!(fields.contains(&("early-data".to_owned(), "1".to_owned())), "{fields:?}");
}

fn conclude(what: &str, cases: usize, wrong: &[String]) {
    table::cases(what, cases, 0, wrong.len());
    assert!(wrong.is_empty(), "{} of {cases}:\n{}", wrong.len(), wrong.join("\n"));
}
