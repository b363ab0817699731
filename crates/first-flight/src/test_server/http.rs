//! The part of HTTP/1.1 and HTTP/3 that the witness needs.

use std::time::Duration;

use firstflight_wire::{Input, put_varint};

use super::{Behaviour, EarlyRequest, Shared};

/// A request.
#[derive(Default)]
pub(super) struct Request {
    method: String,
    query: String,
    early_header: Option<String>,
    http3: bool,
}

/// A response, and its delay.
pub(super) struct Response {
    pub(super) data: Vec<u8>,
    pub(super) after: Duration,
}

impl Request {
    /// Takes a whole request of HTTP/1.1 from the front of a buffer.
    pub(super) fn take(buffer: &mut Vec<u8>) -> Option<Self> {
        let end = buffer.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
        let text = String::from_utf8_lossy(&buffer[..end]).into_owned();
        let header = |name: &str| {
            let lines = text.lines().filter_map(|line| line.split_once(": "));
            let mut found = lines.filter(|(key, _)| key.eq_ignore_ascii_case(name));
            found.next().map(|(_, value)| value.to_owned())
        };
        let body = header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        if buffer.len() < end + body {
            return None;
        }
        let mut words = text.split(' ');
        let method = words.next().unwrap_or_default().to_owned();
        let query = query(words.next().unwrap_or_default());
        let early_header = header("early-data");
        buffer.drain(..end + body);
        Some(Self { method, query, early_header, http3: false })
    }

    /// Reads the request of a stream of HTTP/3 (RFC 9114 section 4.1), whose fields are in no dynamic
    /// table.
    pub(super) fn from_stream(stream: &[u8]) -> Option<Self> {
        let mut frames = Input(stream);
        while let Some(kind) = frames.varint() {
            let content = frames.varint_vec()?;
            if kind == HEADERS {
                return Self::from_fields(content.get(2..)?);
            }
        }
        None
    }

    /// Reads field lines (RFC 9204 section 4.5).
    fn from_fields(lines: &[u8]) -> Option<Self> {
        let mut rest = Input(lines);
        let mut found = Self { http3: true, ..Self::default() };
        while let Some(first) = rest.u8() {
            match first {
                0xd1 => found.method = "GET".to_owned(),
                0xd2 => found.method = "HEAD".to_owned(),
                0xd4 => found.method = "POST".to_owned(),
                0x20..0x40 => {
                    let name = text(&mut rest, first, 3)?;
                    let first = rest.u8()?;
                    let value = text(&mut rest, first, 7)?;
                    match &*name {
                        ":method" => found.method = value,
                        ":path" => found.query = query(&value),
                        "early-data" => found.early_header = Some(value),
                        _ => {}
                    }
                }
                // The scheme.
                _ => {}
            }
        }
        Some(found)
    }

    /// What the server does with this request in early data.
    pub(super) fn decision(&self, behaviour: &Behaviour) -> EarlyRequest {
        match self.is_safe() {
            true => behaviour.safe,
            false => behaviour.others,
        }
    }

    fn is_safe(&self) -> bool {
        matches!(&*self.method, "GET" | "HEAD" | "OPTIONS")
    }

    /// Executes the request, and returns the response.
    pub(super) fn execute(&self, shared: &Shared, early: bool) -> Response {
        let after = match self.is_safe() {
            true => shared.behaviour.safe_delay,
            false => shared.behaviour.others_delay,
        };
        Response { data: self.count_and_respond(shared, early), after }
    }

    fn count_and_respond(&self, shared: &Shared, early: bool) -> Vec<u8> {
        let count = shared.execute(&self.query);
        if shared.behaviour.not_found {
            return self.response(shared, Status::NotFound, "");
        }
        if let Some(location) = shared.behaviour.redirects {
            return self.response(shared, Status::Found(location), "");
        }
        let marked = early && shared.behaviour.marks_early;
        let client_value = self.early_header.as_ref();
        let early_data =
            match client_value.filter(|_| !marked || shared.behaviour.client_hides_early) {
                Some(value) => format!("\"{value}\""),
                None if marked => "\"1\"".to_owned(),
                None => "null".to_owned(),
            };
        let body = match shared.behaviour.witness {
            true => format!("{{\"executions\": {count}, \"early_data\": {early_data}}}"),
            false => "hello".to_owned(),
        };
        self.response(shared, Status::Ok, &body)
    }

    /// The response 425 (Too Early).
    pub(super) fn too_early(&self, shared: &Shared) -> Response {
        Response { data: self.response(shared, Status::TooEarly, ""), after: Duration::ZERO }
    }

    fn response(&self, shared: &Shared, status: Status, body: &str) -> Vec<u8> {
        let software = shared.behaviour.software;
        if self.http3 {
            return response_over_http3(status, software, body);
        }
        let location = match status {
            Status::Found(location) => format!("location: {location}\r\n"),
            _ => String::new(),
        };
        format!(
            "HTTP/1.1 {}\r\nserver: {software}\r\n{location}content-length: {}\r\n\r\n{body}",
            match status {
                Status::Ok => "200 OK",
                Status::Found(_) => "302 Found",
                Status::NotFound => "404 Not Found",
                Status::TooEarly => "425 Too Early",
            },
            body.len()
        )
        .into_bytes()
    }
}

#[derive(Clone, Copy)]
enum Status {
    Ok,
    Found(&'static str),
    NotFound,
    TooEarly,
}

/// Encodes a response, with indexes of the static table (RFC 9204 appendix A).
fn response_over_http3(status: Status, software: &str, body: &str) -> Vec<u8> {
    let mut section = vec![0, 0];
    section.extend_from_slice(match status {
        Status::Ok => &[0xc0 | 25],
        Status::Found(_) => &[0xff, 66 - 63],
        Status::NotFound => &[0xc0 | 27],
        Status::TooEarly => &[0xff, 70 - 63],
    });
    let mut put_value = |name: &[u8], value: &str| {
        section.extend_from_slice(name);
        section.push(value.len() as u8);
        section.extend_from_slice(value.as_bytes());
    };
    put_value(&[0x5f, 92 - 15], software);
    if let Status::Found(location) = status {
        put_value(&[0x50 | 12], location);
    }
    let mut stream = Vec::new();
    for (kind, content) in [(HEADERS, &section[..]), (DATA, body.as_bytes())] {
        put_varint(&mut stream, kind);
        put_varint(&mut stream, content.len() as u64);
        stream.extend_from_slice(content);
    }
    stream
}

fn query(target: &str) -> String {
    target.split_once('?').map_or("", |(_, query)| query).to_owned()
}

/// Reads a string without Huffman coding, whose length has a prefix of `bits` bits.
fn text(rest: &mut Input<'_>, first: u8, bits: u32) -> Option<String> {
    let max = (1 << bits) - 1;
    let mut length = usize::from(first) & max;
    if length == max {
        for shift in (0..21).step_by(7) {
            let byte = rest.u8()?;
            length += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    Some(String::from_utf8_lossy(rest.take(length)?).into_owned())
}

const DATA: u64 = 0;
const HEADERS: u64 = 1;
