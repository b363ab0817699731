//! Request smuggling: sends each case of the corpora through the proxy, and checks the bytes that
//! the upstream receives. nginx and HAProxy, as upstreams, must count as many requests.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use crate::corpus::{self, Case, bytes};
use crate::http2::{self, END_HEADERS, END_STREAM, Field};
use crate::http3;
use crate::running::{Serve, site, until};
use crate::strict_upstream::{Received, StrictUpstream, describe};
use crate::table;
use crate::third_party::{Haproxy, Nginx};
use crate::wire::Dialer;

const HTTP1: &str = include_str!("corpora/http1.txt");
const HTTP2: &str = include_str!("corpora/http2.txt");

/// Short timeouts, because some cases leave the server waiting.
const SHORT_TIMEOUTS: [&str; 4] = ["--header-timeout", "2s", "--idle-timeout", "2s"];

const LAST: &[u8] = b"GET /last HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// Over HTTP/1.1, to the strict upstream, after the handshake and as early data.
pub(crate) fn http1() {
    let (site, upstream) = (site(), StrictUpstream::start());
    let server =
        Serve::start(site.path(), &[&["--upstream", &upstream.url], &SHORT_TIMEOUTS[..]].concat());
    let cases = corpus::cases(HTTP1);
    for (when, dialer) in dialers(&server, "http/1.1") {
        let mut wrong = Vec::new();
        for case in &cases {
            let status = send_http1(&dialer, case).0;
            let received = upstream.take();
            let outcome = match describe(&received) {
                nothing if nothing.is_empty() => status,
                requests => format!("{status}: {requests}"),
            };
            note_mismatch(&mut wrong, case, &case.expected, &outcome);
            early_data_stays(case, &received);
        }
        conclude(&format!("smuggling, HTTP/1.1{when}"), cases.len(), &wrong);
    }
}

/// Over HTTP/2.
pub(crate) fn http2() {
    let (site, upstream) = (site(), StrictUpstream::start());
    let server =
        Serve::start(site.path(), &[&["--upstream", &upstream.url], &SHORT_TIMEOUTS[..]].concat());
    let cases = corpus::cases(HTTP2);
    for (when, dialer) in dialers(&server, "h2") {
        let mut wrong = Vec::new();
        for case in &cases {
            let served = send_http2(&dialer, case) == Some(200);
            note_mismatch(&mut wrong, case, &case.expected, &outcome(served, &upstream));
        }
        conclude(&format!("smuggling, HTTP/2{when}"), cases.len(), &wrong);
    }
}

/// Over HTTP/3.
pub(crate) fn http3() {
    let (site, upstream) = (site(), StrictUpstream::start());
    let server =
        Serve::start(site.path(), &[&["--upstream", &upstream.url], &SHORT_TIMEOUTS[..]].concat());
    let cases = corpus::cases(HTTP2);
    for (when, client) in
        [("", http3::Client::new(&server)), (EARLY, http3::Client::early(&server))]
    {
        let mut wrong = Vec::new();
        for case in &cases {
            let served = send_http3(&client, case);
            note_mismatch(&mut wrong, case, expected_http3(case), &outcome(served, &upstream));
        }
        conclude(&format!("smuggling, HTTP/3{when}"), cases.len(), &wrong);
    }
}

/// A server of files sends as many responses as with an upstream, and refuses the same requests.
pub(crate) fn files() {
    let site = site();
    let server = Serve::files(site.path(), &SHORT_TIMEOUTS);
    let cases = corpus::cases(HTTP1);
    for (when, dialer) in dialers(&server, "http/1.1") {
        let mut wrong = Vec::new();
        for case in &cases {
            let (status, responses) = send_http1(&dialer, case);
            let (first, requests) = case.expected.split_at(3);
            let refused = !matches!(first, "100" | "200" | "clo");
            let forwarded = requests.matches(" \"").count();
            if responses != forwarded + usize::from(refused)
                || refused && forwarded == 0 && status != first
            {
                wrong.push(format!("{}: {responses} responses, first {status}", case.name));
            }
        }
        conclude(&format!("smuggling, files{when}"), cases.len(), &wrong);
    }
}

/// nginx and HAProxy, as upstreams, must log as many requests as the corpora expect.
pub(crate) fn real_upstreams() {
    let site = site();
    let nginx = Nginx::start(site.path());
    let haproxy = Haproxy::start(site.path());
    for (name, url, count) in [
        ("nginx", &nginx.url, &(|| nginx.count()) as &dyn Fn() -> usize),
        ("HAProxy", &haproxy.url, &|| haproxy.count()),
    ] {
        let server =
            Serve::start(site.path(), &[&["--upstream", url], &SHORT_TIMEOUTS[..]].concat());
        let (mut wrong, mut sent, mut total, mut late) = (Vec::new(), 0, count(), 0);
        let mut judge = |case: &Case, expected: &str, how: &str| {
            // A server that logs incomplete requests counts one more.
            let may_be_partial = matches!(expected, "400" | "refused") && has_body(case);
            // Expected requests are written as `METHOD TARGET "BODY"`.
            let expected = expected.matches(" \"").count();
            // They log after responding. Extra requests are counted with the next case.
            until(|| count() - total >= expected);
            let started = Instant::now();
            while may_be_partial
                && count() - total == expected
                && started.elapsed() < PARTIAL_LOG_TIMEOUT
            {
                thread::sleep(Duration::from_millis(5));
            }
            let counted = count() - total;
            let max = expected + usize::from(may_be_partial) + late;
            if !(expected..=max).contains(&counted) {
                wrong.push(format!("{}{how}: {counted} instead of {expected}", case.name));
            }
            late = usize::from(may_be_partial && counted == expected);
            (sent, total) = (sent + expected, total + counted);
        };
        for (when, dialer) in dialers(&server, "http/1.1") {
            for case in corpus::cases(HTTP1) {
                send_http1(&dialer, &case);
                judge(&case, &case.expected, &format!(", HTTP/1.1{when}"));
            }
        }
        for (when, dialer) in dialers(&server, "h2") {
            for case in corpus::cases(HTTP2) {
                send_http2(&dialer, &case);
                judge(&case, &case.expected, &format!(", HTTP/2{when}"));
            }
        }
        for (when, client) in
            [("", http3::Client::new(&server)), (EARLY, http3::Client::early(&server))]
        {
            for case in corpus::cases(HTTP2) {
                send_http3(&client, &case);
                judge(&case, expected_http3(&case), &format!(", HTTP/3{when}"));
            }
        }
        table::cases(&format!("smuggling, {name} behind"), sent, 0, wrong.len());
        assert!(wrong.is_empty(), "{name}:\n{}", wrong.join("\n"));
    }
}

/// How long to wait until an incomplete request is logged: when its connection ends, or never.
const PARTIAL_LOG_TIMEOUT: Duration = Duration::from_millis(100);

const EARLY: &str = ", early";

fn dialers(server: &Serve, protocol: &str) -> [(&'static str, Dialer); 2] {
    [("", Dialer::new(server, protocol)), (EARLY, Dialer::early(server, protocol))]
}

fn expected_http3(case: &Case) -> &str {
    case.expected_http3.as_ref().unwrap_or(&case.expected)
}

/// Whether an upstream may receive a part of a case's first request before the proxy refuses it.
fn has_body(case: &Case) -> bool {
    let is_data = |line: &String| line.starts_with("> ");
    case.lines.iter().any(is_data)
        || case.lines.concat().contains("Transfer-Encoding: chunked\\r\\n\\r\\n")
}

/// Sends a case, followed by another request. Returns the status of the first response, and the
/// number of responses, without 1xx.
fn send_http1(dialer: &Dialer, case: &Case) -> (String, usize) {
    let mut wire = dialer.send(&[&bytes(&case.lines.concat()), LAST].concat()).unwrap();
    let response = wire.read_to_end();
    let response = String::from_utf8_lossy(&response);
    let responses = response.matches("HTTP/1.").count() - response.matches("HTTP/1.1 1").count();
    match response.strip_prefix("HTTP/1.1 ").or(response.strip_prefix("HTTP/1.0 ")) {
        Some(status) => (status[..3].to_owned(), responses),
        None => ("closed".to_owned(), responses),
    }
}

/// Sends a case on a new connection. Returns the status of the response, if there is one.
fn send_http2(dialer: &Dialer, case: &Case) -> Option<u16> {
    let Message { fields, body, trailers } = message(case);
    let block = |fields: &[Field]| -> Vec<u8> {
        fields.iter().flat_map(|(name, value)| http2::field(name, value)).collect()
    };
    let mut frames = vec![(http2::HEADERS, END_HEADERS, block(&fields))];
    frames.extend(body.into_iter().map(|data| (http2::DATA, 0, data)));
    if !trailers.is_empty() {
        frames.push((http2::HEADERS, END_HEADERS, block(&trailers)));
    }
    let mut bytes = http2::hello(&[]);
    let count = frames.len();
    for (number, (kind, flags, payload)) in (1..).zip(frames) {
        let end = if number == count { END_STREAM } else { 0 };
        bytes.extend(http2::frame(kind, flags | end, 1, &payload));
    }
    let mut wire = dialer.send(&bytes).unwrap();
    let is_complete = |bytes: &[u8]| {
        let frames = http2::frames(bytes);
        frames.iter().any(|frame| frame.ends(1) || frame.kind == http2::GOAWAY)
    };
    let response = wire.read_until(is_complete);
    let frames = http2::frames(&response);
    let head = frames.iter().find(|frame| frame.kind == http2::HEADERS && frame.stream == 1);
    http2::status(head?.payload)
}

/// Sends a case over HTTP/3. Returns whether the status was 200.
fn send_http3(client: &http3::Client, case: &Case) -> bool {
    let Message { fields, body, trailers } = message(case);
    client.request(&fields, &body, &trailers)
}

/// A request over HTTP/2 or HTTP/3.
struct Message {
    fields: Vec<Field>,
    body: Vec<Vec<u8>>,
    trailers: Vec<Field>,
}

/// The request of a case, its pseudo-fields first.
fn message(case: &Case) -> Message {
    let (mut fields, mut body, mut trailers, mut bare) = (vec![], vec![], vec![], false);
    for line in &case.lines {
        if let Some(data) = line.strip_prefix("> ") {
            body.push(bytes(data));
        } else if let Some(line) = line.strip_prefix("< ") {
            let (name, value) = field(line);
            trailers.push((bytes(name), bytes(value)));
        } else if line == "bare" {
            bare = true;
        } else {
            let (name, value) = field(line);
            fields.push((bytes(name), bytes(value)));
        }
    }
    if !bare {
        let defaults = [
            (":method", "POST"),
            (":scheme", "https"),
            (":authority", "localhost"),
            (":path", "/a"),
        ];
        let names: BTreeSet<_> = fields.iter().map(|(name, _)| name.clone()).collect();
        let (pseudo, regular): (Vec<_>, Vec<_>) =
            fields.into_iter().partition(|(name, _)| name.starts_with(b":") && name.len() > 1);
        let missing = defaults.iter().filter(|(name, _)| !names.contains(name.as_bytes()));
        fields = missing
            .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
            .collect();
        fields.extend(pseudo);
        fields.extend(regular);
    }
    Message { fields, body, trailers }
}

/// Splits a field. A leading colon belongs to the name of a pseudo-header field, but `: value` has
/// an empty name.
fn field(line: &str) -> (&str, &str) {
    let first = usize::from(line.starts_with(':') && !line.starts_with(": "));
    match line[first..].split_once(": ") {
        Some((name, value)) => (&line[..first + name.len()], value),
        None => (line.strip_suffix(':').unwrap(), ""),
    }
}

fn outcome(served: bool, upstream: &StrictUpstream) -> String {
    match (describe(&upstream.take()), served) {
        (nothing, false) if nothing.is_empty() => "refused".to_owned(),
        (nothing, true) if nothing.is_empty() => "responded without an upstream".to_owned(),
        (requests, _) => requests,
    }
}

fn note_mismatch(wrong: &mut Vec<String>, case: &Case, expected: &str, outcome: &str) {
    if expected.split(" or ").all(|expected| expected != outcome) {
        wrong.push(format!("{}\n    must be {expected}\n    but is  {outcome}", case.name));
    }
}

/// RFC 8470 section 5.1: a client cannot have Early-Data removed by naming it in Connection.
fn early_data_stays(case: &Case, received: &[Received]) {
    if !case.lines.concat().contains("\\nEarly-Data: 1\\r\\nContent") {
        return;
    }
    let Some(Received::Complete { fields, .. }) = received.first() else {
        panic!("{}: {received:?}", case.name)
    };
    assert!(fields.contains(&("early-data".to_owned(), "1".to_owned())), "{fields:?}");
}

fn conclude(what: &str, cases: usize, wrong: &[String]) {
    table::cases(what, cases, 0, wrong.len());
    assert!(wrong.is_empty(), "{} of {cases}:\n{}", wrong.len(), wrong.join("\n"));
}
