//! Static files: path traversal, special files, methods, and many ranges.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::corpus::{self, bytes};
use crate::http2::{self, END_HEADERS, END_STREAM, HEADERS, frame, hello};
use crate::running::{PAGE, Serve, site};
use crate::table;
use crate::wire::Dialer;

const TARGETS: &str = include_str!("corpora/targets.txt");

const OUTSIDE: &str = "what lies outside";

/// Requests each target over HTTP/1.1, and over HTTP/2 if it can be encoded.
pub(crate) fn traversal() {
    let site = site();
    create_files(site.path());
    let server = Serve::files(site.path(), &["--header-timeout", "5s"]);
    let (http1, http2_dialer) = (Dialer::new(&server, "http/1.1"), Dialer::new(&server, "h2"));
    let cases = corpus::cases(TARGETS);
    let mut wrong = Vec::new();
    for case in &cases {
        let target = bytes(&case.lines.concat());
        for (protocol, response) in [
            ("HTTP/1.1", http1_response(&http1, &target)),
            ("HTTP/2", http2_response(&http2_dialer, &target)),
        ] {
            let page = response.contains(PAGE.trim());
            let good = match case.expected.as_str() {
                "page" => page,
                "no" => !page && !response.contains("200"),
                "inside" => true,
                other => panic!("{}: {other}", case.name),
            };
            // HTTP/2 has neither absolute-form targets nor fragments.
            let is_valid =
                protocol == "HTTP/1.1" || target.starts_with(b"/") && !target.contains(&b'#');
            let out = ["what lies outside", "root:", "PATH=", "the secret"];
            if is_valid && !good || out.iter().any(|secret| response.contains(secret)) {
                wrong.push(format!("{}, {protocol}: {response}", case.name));
            }
        }
    }
    table::cases("ways out of the served directory", cases.len(), 0, wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// RFC 9110 sections 9.1 and 15.5.6: methods for files.
pub(crate) fn methods() {
    let site = site();
    let server = Serve::files(site.path(), &[]);
    let dialer = Dialer::new(&server, "http/1.1");
    let mut wrong = Vec::new();
    let methods =
        ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "TRACE", "PROPFIND", "MOVE", "X"];
    for method in methods {
        let request = format!(
            "{method} /index.html HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nCookie: secret\r\n\r\n"
        );
        let response = send(&dialer, request.as_bytes());
        let good = match method {
            "GET" => response.starts_with("HTTP/1.1 200") && response.ends_with(PAGE),
            "HEAD" => response.starts_with("HTTP/1.1 200") && response.ends_with("\r\n\r\n"),
            // TRACE would show header fields to a script that must not see them.
            _ => response.starts_with("HTTP/1.1 405") && !response.contains("secret"),
        };
        if !good || fs::read_to_string(site.path().join("root/index.html")).unwrap() != PAGE {
            wrong.push(format!("{method}: {response}"));
        }
    }
    table::cases("methods of files", methods.len(), 0, wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// RFC 9110 section 14.2: "a server that supports range requests MAY ignore or reject" many ranges,
/// and ought not to send more than the file has.
pub(crate) fn ranges() {
    const LENGTH: usize = 100_000;
    let site = site();
    fs::write(site.path().join("root/large"), vec![b'x'; LENGTH]).unwrap();
    let server = Serve::files(site.path(), &[]);
    let dialer = Dialer::new(&server, "http/1.1");
    let all = (0..1300).map(|n| format!("{n}-")).collect::<Vec<_>>().join(",");
    let apart = (0..1000).map(|n| format!("{0}-{0}", n * 2)).collect::<Vec<_>>().join(",");
    let whole = [
        "0-".to_owned(),
        "0-99999".to_owned(),
        "-100000".to_owned(),
        "-18446744073709551615".to_owned(),
    ];
    let odd = [
        "5-2",
        "-0",
        "100000-",
        "-",
        "a-b",
        "0-0-0",
        "0x0-0x5",
        "+0-5",
        "0-18446744073709551616",
        "18446744073709551615-18446744073709551615",
        "0-5,",
        ",,,,0-5",
        "0 - 5",
    ];
    let mut wrong = Vec::new();
    let ranges: Vec<String> =
        [all, apart].into_iter().chain(whole).chain(odd.map(ToOwned::to_owned)).collect();
    for range in &ranges {
        let request = format!(
            "GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nRange: bytes={range}\r\n\r\n"
        );
        let response = send(&dialer, request.as_bytes());
        let status = response.get(9..12).unwrap_or_default();
        let length = response.split_once("\r\n\r\n").map_or(0, |(_, body)| body.len());
        // The response must not be longer than the file with the heads of its parts.
        if !["200", "206", "400", "416"].contains(&status) || length > LENGTH + 10_000 {
            let start: String = range.chars().take(40).collect();
            wrong.push(format!("{start}: {status}, {length} bytes"));
        }
    }
    table::cases("ranges of files", ranges.len(), 0, wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Creates the files that the corpus mentions.
fn create_files(dir: &Path) {
    let root = dir.join("root");
    fs::write(dir.join("outside.txt"), OUTSIDE).unwrap();
    fs::create_dir(root.join("sub")).unwrap();
    fs::write(root.join("sub/index.html"), PAGE).unwrap();
    fs::write(root.join("two..dots.html"), PAGE).unwrap();
    mkfifo(&root.join("pipe"), Mode::S_IRUSR).unwrap();
    symlink("/dev/zero", root.join("zero")).unwrap();
    fs::create_dir(dir.join("shut")).unwrap();
    fs::set_permissions(dir.join("shut"), fs::Permissions::from_mode(0o000)).unwrap();
    symlink(dir.join("shut"), root.join("shut")).unwrap();
}

fn http1_response(dialer: &Dialer, target: &[u8]) -> String {
    let head =
        [b"GET ", target, b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"].concat();
    send(dialer, &head)
}

fn send(dialer: &Dialer, request: &[u8]) -> String {
    let mut wire = dialer.connect().unwrap();
    let _ = wire.send(request);
    String::from_utf8_lossy(&wire.read_to_end()).into_owned()
}

/// The status and the body.
fn http2_response(dialer: &Dialer, target: &[u8]) -> String {
    let fields = [
        (&b":method"[..], &b"GET"[..]),
        (b":scheme", b"https"),
        (b":authority", b"localhost"),
        (b":path", target),
    ];
    let block: Vec<u8> =
        fields.iter().flat_map(|(name, value)| http2::field(name, value)).collect();
    let mut wire = dialer.connect().unwrap();
    let _ = wire.send(&[hello(&[]), frame(HEADERS, END_HEADERS | END_STREAM, 1, &block)].concat());
    let is_complete = |bytes: &[u8]| {
        let frames = http2::frames(bytes);
        frames.iter().any(|frame| frame.ends(1) || frame.kind == http2::GOAWAY)
    };
    let received = wire.read_until(is_complete);
    let mut response = String::new();
    for frame in http2::frames(&received).iter().filter(|frame| frame.stream == 1) {
        match frame.kind {
            HEADERS => response += &format!("{:?} ", http2::status(frame.payload)),
            http2::DATA => response += &String::from_utf8_lossy(frame.payload),
            _ => {}
        }
    }
    response
}
