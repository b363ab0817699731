//! HTTP/3 floods: abandoned streams, growing header blocks, useless frames.

use bytes::Bytes;
use quinn::VarInt;

use crate::honest_client::{HonestClient, usage};
use crate::http2::{Field, integer};
use crate::http2_floods::MAX_MEMORY_KIB;
use crate::http3::{Client, HEADERS, Link, SETTINGS, frame, get, varint};
use crate::running::{Serve, site};
use crate::table::{self, Attack, seconds};

/// An attack on one connection. Returns the number of bytes sent.
type Flood = fn(&Client, &Link) -> usize;

/// Attacks, and whether the server has to end the connection.
const FLOODS: [(&str, bool, Flood); 8] = [
    ("rapid reset of requests", true, rapid_reset),
    ("responses cancelled at once", true, cancelled),
    ("QPACK, a byte a field", false, static_fields),
    ("QPACK, a dynamic table that nobody offered", true, dynamic_table),
    ("many small fields", false, small_fields),
    ("SETTINGS twice", true, settings_twice),
    ("frames of no kind on the control stream", false, unknown_frames),
    ("streams of no kind", false, unknown_streams),
];

/// Runs each flood against a new server.
pub(crate) fn http3() {
    let mut wrong = Vec::new();
    for (what, must_end, flood) in FLOODS {
        if let Err(why) = run(what, must_end, flood) {
            wrong.push(format!("{what}: {why}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn run(what: &'static str, must_end: bool, flood: Flood) -> Result<(), String> {
    let site = site();
    std::fs::write(site.path().join("root/large"), vec![b'x'; 1 << 20]).unwrap();
    let server = Serve::files(site.path(), &[]);
    HonestClient::start(&server).end();
    let client = Client::new(&server);
    // The initial memory of QUIC does not count.
    assert!(client.request(&plain(), &[], &[]), "an honest request over HTTP/3");
    let before = usage(&server);
    let honest_client = HonestClient::start(&server);
    let link = client.connect();
    let sent = flood(&client, &link);
    // A server that did not end the connection responds to this request.
    let keeps_serving = client.wait(async { responses(&link).await });
    let end = link.connection.close_reason().map(|reason| reason.to_string());
    let report = honest_client.end();
    let honest_http3 = client.request(&plain(), &[], &[]);
    let after = usage(&server);
    let memory = after.peak.saturating_sub(before.memory);
    table::attack(Attack {
        protocol: "HTTP/3",
        what,
        sent: sent / 1024,
        end: end.unwrap_or_else(|| "read on".to_owned()),
        cpu: seconds(after.cpu.saturating_sub(before.cpu)),
        memory,
        honest: report.served,
        slowest: seconds(report.slowest * 1000),
    });
    match () {
        () if !report.failed.is_empty() => Err(format!("honest clients: {:?}", report.failed)),
        () if !honest_http3 => Err("an honest client over HTTP/3 is not served".to_owned()),
        () if memory > MAX_MEMORY_KIB => Err(format!("{memory} KiB of memory")),
        () if must_end && keeps_serving => Err("the server goes on".to_owned()),
        () => Ok(()),
    }
}

fn plain() -> Vec<Field> {
    [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "localhost"),
        (":path", "/index.html"),
    ]
    .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
    .to_vec()
}

async fn responses(link: &Link) -> bool {
    let Ok((mut send, mut recv)) = link.connection.open_bi().await else { return false };
    let request = frame(HEADERS, &get("/index.html"));
    if send.write_all(&request).await.is_err() || send.finish().is_err() {
        return false;
    }
    recv.read_to_end(1 << 20).await.is_ok_and(|response| !response.is_empty())
}

fn rounds() -> usize {
    if table::is_long() { 20_000 } else { 1_000 }
}

/// Sends the same request repeatedly, and resets each stream.
fn rapid_reset(client: &Client, link: &Link) -> usize {
    let request = frame(HEADERS, &get("/large"));
    client.wait(async {
        for round in 0..rounds() {
            let Ok((mut send, mut recv)) = link.connection.open_bi().await else {
                return round * request.len();
            };
            let _ = send.write_all(&request).await;
            let _ = send.reset(VarInt::from_u32(0x10c));
            let _ = recv.stop(VarInt::from_u32(0x10c));
        }
        rounds() * request.len()
    })
}

/// Sends complete requests, and stops reading each response.
fn cancelled(client: &Client, link: &Link) -> usize {
    let request = frame(HEADERS, &get("/large"));
    client.wait(async {
        for round in 0..rounds() {
            let Ok((mut send, mut recv)) = link.connection.open_bi().await else {
                return round * request.len();
            };
            let _ = send.write_all(&request).await;
            let _ = send.finish();
            let _ = recv.read(&mut [0; 1]).await;
            let _ = recv.stop(VarInt::from_u32(0x10c));
        }
        rounds() * request.len()
    })
}

/// Sends requests with these encoded fields appended to their own.
fn with_fields(client: &Client, link: &Link, fields: &[u8]) -> usize {
    let request = frame(HEADERS, &[&get("/index.html"), fields].concat());
    let rounds = rounds() / 50;
    client.wait(async {
        for _ in 0..rounds {
            let Ok((mut send, mut recv)) = link.connection.open_bi().await else { break };
            // The server refuses the request for its size, or executes it.
            let _ = send.write_all(&request).await;
            let _ = send.finish();
            let _ = recv.read_to_end(1 << 20).await;
        }
    });
    rounds * request.len()
}

/// Refers to the longest entry of the static table with two bytes (RFC 9204 appendix A, index 85).
fn static_fields(client: &Client, link: &Link) -> usize {
    let mut field = Vec::new();
    integer(&mut field, 6, 0xc0, 85);
    with_fields(client, link, &field.repeat(30_000))
}

fn small_fields(client: &Client, link: &Link) -> usize {
    // A literal name of one letter, and no value.
    with_fields(client, link, &[0x21, b'a', 0].repeat(20_000))
}

/// Instructions to fill a table of a size that the server did not allow (RFC 9204 section 3.2.3).
fn dynamic_table(client: &Client, link: &Link) -> usize {
    const ENCODER: u64 = 2;
    let mut bytes = varint(ENCODER);
    integer(&mut bytes, 5, 0x20, 1 << 20);
    for _ in 0..1000 {
        // Insert with a literal name.
        bytes.extend([0x41, b'a', 0x7f, 0x81, 0x07]);
        bytes.extend([b'b'; 1024]);
    }
    client.wait(async {
        if let Ok(mut stream) = link.connection.open_uni().await {
            let _ = stream.write_all(&bytes).await;
            let _ = stream.finish();
        }
        // The server either ends the connection, or never reads the instructions.
        let block = [&get("/index.html")[2..]].concat();
        let request = frame(HEADERS, &[&[2, 0], &block[..], &[0x80]].concat());
        if let Ok((mut send, mut recv)) = link.connection.open_bi().await {
            let _ = send.write_all(&request).await;
            let _ = send.finish();
            let _ = recv.read_to_end(1 << 20).await;
        }
    });
    bytes.len()
}

fn settings_twice(client: &Client, link: &Link) -> usize {
    on_control(client, link, &frame(SETTINGS, &[]), 1)
}

fn unknown_frames(client: &Client, link: &Link) -> usize {
    on_control(client, link, &frame(0x21, &[0; 100]).repeat(100), rounds() / 10)
}

fn on_control(client: &Client, link: &Link, bytes: &[u8], times: usize) -> usize {
    let bytes = Bytes::copy_from_slice(bytes);
    client.wait(async {
        let mut control = link.control.lock().await;
        for _ in 0..times {
            if control.write_chunk(bytes.clone()).await.is_err() {
                break;
            }
        }
    });
    bytes.len() * times
}

/// RFC 9114 section 6.2.3: streams of unknown types are not read, and may be of any number.
fn unknown_streams(client: &Client, link: &Link) -> usize {
    let bytes = [varint(0x21), vec![0; 100]].concat();
    client.wait(async {
        for _ in 0..rounds() {
            let opening =
                tokio::time::timeout(std::time::Duration::from_secs(2), link.connection.open_uni());
            // The server need not allow more streams.
            let Ok(Ok(mut stream)) = opening.await else { break };
            let _ = stream.write_all(&bytes).await;
            let _ = stream.finish();
        }
    });
    rounds() * bytes.len()
}
