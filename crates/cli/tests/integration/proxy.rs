//! `firstflight serve --upstream`: what the upstream receives of early and other requests.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::support::program::{Serve, fetch, fields, site};
use crate::support::recorder::Recorder;

/// A request as the upstream received it.
#[derive(Clone, Debug, PartialEq)]
struct ReceivedRequest {
    line: String,
    fields: HashMap<String, String>,
    body: Vec<u8>,
}

/// An HTTP server that records requests and sends the same response to all.
pub(crate) struct Upstream {
    pub(crate) url: String,
    seen: Arc<Mutex<Vec<ReceivedRequest>>>,
}

impl Upstream {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::<Mutex<Vec<ReceivedRequest>>>::default();
        let memory = seen.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let memory = memory.clone();
                thread::spawn(move || response(client, &memory));
            }
        });
        Self { url, seen }
    }

    /// For each request: its line, the field Early-Data, and its body.
    pub(crate) fn seen(&self) -> Vec<String> {
        let seen = self.seen.lock().unwrap();
        let words = |seen: &ReceivedRequest| {
            let early = seen.fields.get("early-data").map_or("-", String::as_str);
            format!("{} {early} {}", seen.line, String::from_utf8_lossy(&seen.body))
        };
        seen.iter().map(words).collect()
    }
}

/// One request, one response, and the end of the connection.
fn response(mut client: TcpStream, memory: &Mutex<Vec<ReceivedRequest>>) {
    let mut reader = BufReader::new(client.try_clone().unwrap());
    let mut lines = (&mut reader).lines().map_while(Result::ok).take_while(|l| !l.is_empty());
    let Some(line) = lines.next() else { return };
    let fields: HashMap<String, String> = lines
        .filter_map(|line| {
            let (name, value) = line.split_once(": ")?;
            Some((name.to_lowercase(), value.to_owned()))
        })
        .collect();
    let length = fields.get("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let line = line.trim_end_matches(" HTTP/1.1").to_owned();
    memory.lock().unwrap().push(ReceivedRequest { line, fields, body });
    let _ =
        client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nup\n");
}

#[test]
fn rfc8470_5_1_the_upstream_gets_the_early_data_field() {
    for http in ["--http1.1", "--http2"] {
        let site = site();
        let upstream = Upstream::start();
        let server = Serve::start(site.path(), &["--upstream", &upstream.url]);
        // Finished waits until the upstream has seen the early request: on loopback it could be
        // there first.
        let wanted = Arc::<AtomicUsize>::default();
        let (wants, seen) = (wanted.clone(), upstream.seen.clone());
        let opens = move || seen.lock().unwrap().len() >= wants.load(Ordering::Relaxed);
        let path = Recorder::holding(server.address, opens);
        let fetch = |target: &str, flags: &[&str]| {
            let early = flags.contains(&"--tls-earlydata") && !upstream.seen().is_empty();
            let before = upstream.seen().len();
            wanted.store(if early { before + 1 } else { 0 }, Ordering::Relaxed);
            let arguments = [flags, &[http]].concat();
            let fetched = fetch(site.path(), &server.cert, &path.url(target), &arguments);
            assert_eq!(fetched.ended.out, "up\n", "{:?}", fetched.ended);
            fetched.facts["early_data"].as_str().unwrap().to_owned()
        };
        assert_eq!(fetch("/full", &["--tls-earlydata"]), "none");
        assert_eq!(fetch("/early", &["--tls-earlydata"]), "accepted");
        assert_eq!(fetch("/resumed", &[]), "none");
        // A client's own word about it counts for nothing.
        assert_eq!(fetch("/early?2", &["--tls-earlydata", "-H", "Early-Data: 0"]), "accepted");
        assert_eq!(
            upstream.seen(),
            ["GET /full - ", "GET /early 1 ", "GET /resumed - ", "GET /early?2 1 "]
        );
        let log = server.stop();
        let seen: Vec<_> = log.iter().map(|line| fields(line, "early claim executed")).collect();
        let (early, late) = ("true won true", "false none true");
        assert_eq!(seen, [late, early, late, early]);
    }
}

#[test]
fn rfc8470_3_an_unsafe_early_request_is_held_and_executed_once() {
    let site = site();
    let upstream = Upstream::start();
    let server = Serve::start(site.path(), &["--upstream", &upstream.url]);
    let url = format!("https://localhost:{}/order", server.port());
    let flags = ["--tls-earlydata", "--early-data-any-method", "-d", "book=1"];
    let early = |fetched: crate::support::program::Fetched| {
        assert_eq!(fetched.ended.out, "up\n", "{:?}", fetched.ended);
        fields(&fetched.facts, "early_data num_retries")
    };
    assert_eq!(early(fetch(site.path(), &server.cert, &url, &flags)), "none 0");
    assert_eq!(early(fetch(site.path(), &server.cert, &url, &flags)), "accepted 0");
    assert_eq!(upstream.seen(), ["POST /order - book=1"; 2]);
    let log = server.stop();
    let seen: Vec<_> = log.iter().map(|line| fields(line, "early held claim executed")).collect();
    assert_eq!(seen, ["false null none true", "true policy won true"]);
}
