//! HTTP/2 floods: each ends the attacker's connection, or costs the server no more than reading it.
//! Honest clients are served meanwhile.

use crate::honest_client::{HonestClient, usage};
use crate::http2::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, PRIORITY, RST_STREAM,
    SETTINGS, WINDOW_UPDATE, field, frame, frames, get, hello, indexed_field, request,
};
use crate::running::{Serve, site};
use crate::table::{self, Attack, seconds};
use crate::wire::{Dialer, State, Wire};

/// Limits the memory that an attack may cost: above the cost of each flood, and below an amplification.
pub(crate) const MAX_MEMORY_KIB: u64 = 16 * 1024;

/// What an attacker sends.
struct Flood {
    what: &'static str,
    /// Whether the server has to end the connection, or may read on.
    must_end: bool,
    /// Whether the attacker reads what the server sends.
    reads: bool,
    /// The settings of the attacker.
    settings: &'static [(u16, u32)],
    /// The bytes of the n-th round.
    round: fn(u32) -> Vec<u8>,
}

const CANCEL: [u8; 4] = 8u32.to_be_bytes();
const MAX_WINDOW: [u8; 4] = 0x7fff_ffff_u32.to_be_bytes();
const ONE: [u8; 4] = 1u32.to_be_bytes();

/// The stream ids of a round, with `each` streams in each round.
fn streams(round: u32, each: u32) -> impl Iterator<Item = u32> {
    (0..each).map(move |number| (round * each + number) * 2 + 1)
}

const FLOODS: [Flood; 20] = [
    Flood {
        what: "rapid reset, CVE-2023-44487",
        must_end: true,
        reads: true,
        settings: &[],
        round: |n| {
            let pair = |s| [get(s, "/index.html"), frame(RST_STREAM, 0, s, &CANCEL)].concat();
            streams(n, 100).flat_map(pair).collect()
        },
    },
    Flood {
        what: "rapid reset, a pause before each",
        must_end: true,
        reads: true,
        settings: &[],
        round: |n| match n % 2 {
            0 => streams(n / 2, 90).flat_map(|s| get(s, "/large")).collect(),
            _ => streams(n / 2, 90).flat_map(|s| frame(RST_STREAM, 0, s, &CANCEL)).collect(),
        },
    },
    Flood {
        what: "MadeYouReset by window, CVE-2025-8671",
        must_end: true,
        reads: true,
        settings: &[],
        round: |n| {
            let pair = |s| [get(s, "/large"), frame(WINDOW_UPDATE, 0, s, &MAX_WINDOW)].concat();
            streams(n, 50).flat_map(pair).collect()
        },
    },
    Flood {
        what: "MadeYouReset by priority",
        must_end: true,
        reads: true,
        settings: &[],
        round: |n| {
            // A stream that depends on itself.
            let priority = |s: u32| [&s.to_be_bytes()[..], &[1]].concat();
            let pair = |s| [get(s, "/large"), frame(PRIORITY, 0, s, &priority(s))].concat();
            streams(n, 50).flat_map(pair).collect()
        },
    },
    Flood {
        what: "MadeYouReset by data behind the end",
        must_end: true,
        reads: true,
        settings: &[],
        round: |n| {
            let pair = |s| [get(s, "/large"), frame(DATA, 0, s, b"x")].concat();
            streams(n, 50).flat_map(pair).collect()
        },
    },
    Flood {
        what: "CONTINUATION, CVE-2024-27316",
        must_end: true,
        reads: true,
        settings: &[],
        round: |n| match n {
            0 => frame(HEADERS, 0, 1, &request("GET", "/")),
            _ => (0..100).flat_map(|_| frame(CONTINUATION, 0, 1, &field("x", "y"))).collect(),
        },
    },
    Flood {
        what: "CONTINUATION, empty",
        must_end: true,
        reads: true,
        settings: &[],
        round: |n| match n {
            0 => frame(HEADERS, 0, 1, &request("GET", "/")),
            _ => frame(CONTINUATION, 0, 1, &[]).repeat(500),
        },
    },
    Flood {
        what: "CONTINUATION, full",
        must_end: true,
        reads: true,
        settings: &[],
        round: |n| match n {
            0 => frame(HEADERS, 0, 1, &request("GET", "/")),
            _ => frame(CONTINUATION, 0, 1, &field("x", [b'y'; 16000])),
        },
    },
    Flood {
        what: "HPACK bomb",
        must_end: true,
        reads: true,
        settings: &[],
        round: |n| {
            // A field of 4 KB enters the dynamic table, and then each byte refers to it.
            let block = match n {
                0 => [request("GET", "/"), indexed_field("a", &[b'b'; 4000])].concat(),
                _ => [request("GET", "/"), vec![0xbe; 16000]].concat(),
            };
            frame(HEADERS, END_HEADERS | END_STREAM, n * 2 + 1, &block)
        },
    },
    Flood {
        what: "many small fields",
        must_end: false,
        reads: true,
        settings: &[],
        round: |n| {
            let block = [request("GET", "/"), field("a", "").repeat(3000)].concat();
            frame(HEADERS, END_HEADERS | END_STREAM, n * 2 + 1, &block)
        },
    },
    Flood {
        what: "empty DATA",
        must_end: true,
        reads: true,
        settings: &[],
        round: |n| match n {
            0 => frame(HEADERS, END_HEADERS, 1, &request("POST", "/")),
            _ => frame(DATA, 0, 1, &[]).repeat(500),
        },
    },
    Flood {
        what: "PING",
        must_end: true,
        reads: true,
        settings: &[],
        round: |_| frame(PING, 0, 0, b"12345678").repeat(500),
    },
    Flood {
        what: "PING, responses not read",
        must_end: true,
        reads: false,
        settings: &[],
        round: |_| frame(PING, 0, 0, b"12345678").repeat(500),
    },
    Flood {
        what: "SETTINGS",
        must_end: true,
        reads: true,
        settings: &[],
        round: |_| frame(SETTINGS, 0, 0, &[]).repeat(500),
    },
    Flood {
        what: "SETTINGS, responses not read",
        must_end: true,
        reads: false,
        settings: &[],
        round: |_| frame(SETTINGS, 0, 0, &[]).repeat(500),
    },
    Flood {
        what: "SETTINGS, acknowledged unasked",
        must_end: true,
        reads: true,
        settings: &[],
        round: |_| frame(SETTINGS, ACK, 0, &[]).repeat(500),
    },
    Flood {
        what: "PRIORITY",
        must_end: true,
        reads: true,
        settings: &[],
        round: |n| {
            let one = |s| frame(PRIORITY, 0, s, &[0, 0, 0, 0, 1]);
            streams(n, 500).flat_map(one).collect()
        },
    },
    Flood {
        what: "WINDOW_UPDATE of one byte",
        must_end: false,
        reads: true,
        // The stream's window is closed, and opens byte by byte.
        settings: &[(4, 0)],
        round: |n| match n {
            0 => get(1, "/large"),
            _ => frame(WINDOW_UPDATE, 0, 1, &ONE).repeat(500),
        },
    },
    Flood {
        what: "windows that open and close",
        must_end: true,
        reads: true,
        settings: &[(4, 0)],
        round: |n| match n {
            0 => streams(0, 100).flat_map(|s| get(s, "/large")).collect(),
            _ => [&[0, 4, 0, 0, 0, 1], &[0, 4, 0, 0, 0, 0]]
                .map(|setting| frame(SETTINGS, 0, 0, setting))
                .concat()
                .repeat(50),
        },
    },
    Flood {
        what: "frames of no kind",
        must_end: true,
        reads: true,
        settings: &[],
        round: |_| frame(0xbb, 0, 0, &[0; 32]).repeat(500),
    },
];

/// Runs each flood against a new server.
pub(crate) fn http2() {
    let mut wrong = Vec::new();
    for flood in &FLOODS {
        if let Err(why) = flood.run() {
            wrong.push(format!("{}: {why}", flood.what));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

impl Flood {
    fn run(&self) -> Result<(), String> {
        let site = site();
        std::fs::write(site.path().join("root/large"), vec![b'x'; 1 << 20]).unwrap();
        let server = Serve::files(site.path(), &[]);
        // The memory of the first request does not count.
        HonestClient::start(&server).end();
        let before = usage(&server);
        let honest_client = HonestClient::start(&server);
        let (sent, end) = self.send(&Dialer::new(&server, "h2"));
        let report = honest_client.end();
        let after = usage(&server);
        let memory = after.peak.saturating_sub(before.memory);
        table::attack(Attack {
            protocol: "HTTP/2",
            what: self.what,
            sent: sent / 1024,
            end: end.clone().unwrap_or_else(|| "read on".to_owned()),
            cpu: seconds(after.cpu.saturating_sub(before.cpu)),
            memory,
            honest: report.served,
            slowest: seconds(report.slowest * 1000),
        });
        match () {
            () if !report.failed.is_empty() => Err(format!("honest clients: {:?}", report.failed)),
            () if memory > MAX_MEMORY_KIB => Err(format!("{memory} KiB of memory")),
            () if self.must_end && end.is_none() => Err("the server reads on".to_owned()),
            () => Ok(()),
        }
    }

    /// Sends until the server ends the connection, or up to a limit. Returns the number of bytes
    /// sent, and how the server ended the connection.
    fn send(&self, dialer: &Dialer) -> (usize, Option<String>) {
        // Without reading, the buffers of both sides fill before the server stops.
        let max = match (table::is_long(), self.reads) {
            (true, true) => 64 << 20,
            (false, true) => 2 << 20,
            (_, false) => 1 << 30,
        };
        let mut wire = dialer.connect().unwrap();
        let (mut sent, mut received) = (0, Vec::new());
        let mut next = hello(self.settings);
        for round in 0.. {
            next.extend((self.round)(round));
            if wire.send(&next).is_err() {
                break;
            }
            sent += next.len();
            next.clear();
            if self.reads {
                let state = wire.take(&mut received);
                // Only a GOAWAY is of interest.
                received.drain(..before_goaway(&received));
                if state == State::Closed {
                    break;
                }
            }
            if sent > max {
                break;
            }
        }
        if sent > max && self.reads && has_processed(&mut wire) {
            return (sent, None);
        }
        wire.take(&mut received);
        (sent, Some(goaway_text(&received)))
    }
}

/// Whether the server has read everything, and responds to a ping.
fn has_processed(wire: &mut Wire) -> bool {
    let last = frame(PING, 0, 0, b"the last");
    let response = frame(PING, ACK, 0, b"the last");
    let is_there = |bytes: &[u8]| bytes.windows(response.len()).any(|window| window == response);
    wire.send(&last).is_ok() && is_there(&wire.read_until(is_there))
}

/// The length of the complete frames before a GOAWAY.
fn before_goaway(bytes: &[u8]) -> usize {
    let frames = frames(bytes);
    let others = frames.iter().take_while(|frame| frame.kind != GOAWAY);
    others.map(|frame| 9 + frame.payload.len()).sum()
}

/// Describes a GOAWAY.
fn goaway_text(bytes: &[u8]) -> String {
    let frames = frames(bytes);
    match frames.iter().find(|frame| frame.kind == GOAWAY) {
        Some(frame) => {
            let reason = String::from_utf8_lossy(frame.payload.get(8..).unwrap_or_default());
            format!("GOAWAY {} {reason}", frame.number(4)).trim_end().to_owned()
        }
        None => "closed".to_owned(),
    }
}
