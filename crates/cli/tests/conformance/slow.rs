//! Many slow clients at once: the server closes their connections, and serves honest clients
//! meanwhile.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use crate::honest_client::{HonestClient, usage};
use crate::http2::{self, DATA, END_STREAM, HEADERS, PING, WINDOW_UPDATE, frame, get, hello};
use crate::http3;
use crate::running::{Serve, TEST_TIMEOUT, site};
use crate::table::{self, Attack, seconds};
use crate::wire::{Dialer, State, Wire};

/// Short timeouts, so that the test is short, but long enough for honest clients on a busy machine.
/// Both apply to a client that has not sent its first request.
const SHORT_TIMEOUTS: [&str; 4] = ["--header-timeout", "6s", "--idle-timeout", "6s"];

/// Acts as a slow client on a new connection until the server ends it.
type Slow = fn(&Serve);

const KINDS: [(&str, &str, Slow); 8] = [
    ("TLS", "half a ClientHello", incomplete_hello),
    ("HTTP/1.1", "a byte of a head at a time", slow_head),
    ("HTTP/1.1", "a byte of a second head at a time", slow_second_head),
    ("HTTP/1.1", "a response that is not read", unread_response),
    ("HTTP/2", "nothing but pings", only_pings),
    ("HTTP/2", "a head without its end", incomplete_head),
    ("HTTP/2", "a window that stays closed", closed_window),
    ("HTTP/3", "heads without an end", incomplete_http3_heads),
];

/// Runs many clients of each kind at once.
pub(crate) fn all() {
    let many = if table::is_long() { 200 } else { 20 };
    let site = site();
    std::fs::write(site.path().join("root/large"), vec![b'x'; 8 << 20]).unwrap();
    for (protocol, what, slow) in KINDS {
        let server = Serve::files(site.path(), &SHORT_TIMEOUTS);
        HonestClient::start(&server).end();
        let before = usage(&server);
        let honest_client = HonestClient::start(&server);
        thread::scope(|scope| {
            for _ in 0..many {
                scope.spawn(|| slow(&server));
            }
        });
        let report = honest_client.end();
        let after = usage(&server);
        table::attack(Attack {
            protocol,
            what,
            sent: 0,
            end: format!("{many} connections, all closed"),
            cpu: seconds(after.cpu.saturating_sub(before.cpu)),
            memory: after.peak.saturating_sub(before.memory),
            honest: report.served,
            slowest: seconds(report.slowest * 1000),
        });
        assert!(report.failed.is_empty(), "{protocol}, {what}: {:?}", report.failed);
    }
}

fn incomplete_hello(server: &Serve) {
    let mut tcp = TcpStream::connect(server.address).unwrap();
    tcp.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    // The start of a handshake record.
    tcp.write_all(&[22, 3, 1, 1, 0, 1, 0, 0]).unwrap();
    let mut all = Vec::new();
    let ended = tcp.read_to_end(&mut all);
    assert!(ended.is_ok() || ended.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset));
}

fn slow_head(server: &Serve) {
    let mut wire = Dialer::new(server, "http/1.1").connect().unwrap();
    drip(&mut wire, b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ");
}

fn slow_second_head(server: &Serve) {
    let mut wire = Dialer::new(server, "http/1.1").connect().unwrap();
    wire.send(b"GET /index.html HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    wire.read_until(|bytes| bytes.ends_with(crate::running::PAGE.as_bytes()));
    drip(&mut wire, b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ");
}

/// Sends a byte at a time until the server closes.
fn drip(wire: &mut Wire, bytes: &[u8]) {
    let mut received = Vec::new();
    let mut bytes = bytes.iter().chain(std::iter::repeat(&b'x'));
    let closed = crate::running::within(TEST_TIMEOUT, Duration::from_millis(100), || {
        let byte = *bytes.next().expect("an endless iterator");
        wire.send(&[byte]).is_err() || wire.take(&mut received) == State::Closed
    });
    assert!(closed, "the server keeps the connection");
}

fn unread_response(server: &Serve) {
    let mut wire = Dialer::new(server, "http/1.1").connect().unwrap();
    wire.send(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let socket = wire.into_socket();
    let gone = crate::running::until(|| is_gone(&socket));
    assert!(gone, "the server keeps a response that is not read");
}

/// Whether the server has reset a connection from which nothing was read.
fn is_gone(socket: &TcpStream) -> bool {
    (&*socket).write_all(&[0]).is_err()
}

fn only_pings(server: &Serve) {
    ping_until_closed(server, &hello(&[]));
}

fn incomplete_head(server: &Serve) {
    let head = frame(HEADERS, END_STREAM, 1, &http2::request("GET", "/"));
    until_closed(server, &[hello(&[]), head].concat(), &[]);
}

/// The client's window lets the response's head through, but no byte of its body.
fn closed_window(server: &Serve) {
    ping_until_closed(server, &[hello(&[(4, 0)]), get(1, "/large")].concat());
}

/// A client that opens its window step by step gets the whole response, although that takes 12 s,
/// longer than the idle timeout.
pub(crate) fn slow_is_not_dead() {
    let site = site();
    std::fs::write(site.path().join("root/large"), vec![b'x'; 200_000]).unwrap();
    let server = Serve::files(site.path(), &["--idle-timeout", "8s"]);
    let mut wire = Dialer::new(&server, "h2").connect().unwrap();
    wire.send(&[hello(&[(4, 1000)]), get(1, "/large")].concat()).unwrap();
    let mut received = Vec::new();
    let length = |bytes: &[u8]| -> usize {
        let frames = http2::frames(bytes);
        frames.iter().filter(|frame| frame.kind == DATA).map(|frame| frame.payload.len()).sum()
    };
    for _ in 0..24 {
        thread::sleep(Duration::from_millis(500));
        let before = length(&received);
        wire.send(&frame(WINDOW_UPDATE, 0, 1, &1000u32.to_be_bytes())).unwrap();
        assert_eq!(wire.take(&mut received), State::Open);
        assert!(length(&received) >= before);
    }
    // Both windows at once.
    for stream in [0, 1] {
        wire.send(&frame(WINDOW_UPDATE, 0, stream, &1_000_000u32.to_be_bytes())).unwrap();
    }
    let rest = wire.read_until(|bytes| length(bytes) + length(&received) >= 200_000);
    assert_eq!(length(&received) + length(&rest), 200_000);
}

fn ping_until_closed(server: &Serve, first: &[u8]) {
    until_closed(server, first, &frame(PING, 0, 0, b"12345678"));
}

fn until_closed(server: &Serve, first: &[u8], then: &[u8]) {
    let mut wire = Dialer::new(server, "h2").connect().unwrap();
    wire.send(first).unwrap();
    let mut received = Vec::new();
    let closed = crate::running::within(TEST_TIMEOUT, Duration::from_millis(100), || {
        wire.take(&mut received) == State::Closed || wire.send(then).is_err()
    });
    assert!(closed, "the server keeps the connection");
}

fn incomplete_http3_heads(server: &Serve) {
    let client = http3::Client::new(server);
    let link = client.connect();
    let head = http3::frame(http3::HEADERS, &http3::get("/index.html"));
    client.wait(async {
        let mut streams = Vec::new();
        for _ in 0..10 {
            let (mut send, recv) = link.connection.open_bi().await.unwrap();
            send.write_all(&head[..head.len() - 3]).await.unwrap();
            streams.push((send, recv));
        }
        link.connection.closed().await
    });
}
