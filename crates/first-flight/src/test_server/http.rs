//! As much HTTP/1.1 as the witness needs.

use super::{Behaviour, EarlyRequest, Shared};

/// A request.
pub(crate) struct Request {
    method: String,
    query: String,
    early_header: Option<String>,
}

impl Request {
    /// Takes a whole request from the front of a buffer.
    pub(crate) fn take(buffer: &mut Vec<u8>) -> Option<Self> {
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
        let target = words.next().unwrap_or_default();
        let query = target.split_once('?').map_or("", |(_, query)| query).to_owned();
        let early_header = header("early-data");
        buffer.drain(..end + body);
        Some(Self { method, query, early_header })
    }

    /// What is done with it in early data.
    pub(crate) fn decision(&self, behaviour: &Behaviour) -> EarlyRequest {
        match &*self.method {
            "GET" | "HEAD" | "OPTIONS" => behaviour.safe,
            _ => behaviour.others,
        }
    }

    /// Executes it, and writes the response.
    pub(crate) fn execute(&self, shared: &Shared, early: bool, out: &mut Vec<u8>) {
        let count = shared.execute(&self.query);
        let marked = early && shared.behaviour.marks_early;
        let mark = match (&self.early_header, marked) {
            (Some(value), _) => format!("\"{value}\""),
            (None, true) => "\"1\"".to_owned(),
            (None, false) => "null".to_owned(),
        };
        let body = match shared.behaviour.witness {
            true => format!("{{\"executions\": {count}, \"early_data\": {mark}}}"),
            false => "hello".to_owned(),
        };
        respond("200 OK", shared, &body, out);
    }
}

/// Writes a response.
pub(crate) fn respond(status: &str, shared: &Shared, body: &str, out: &mut Vec<u8>) {
    let software = shared.behaviour.software;
    let length = body.len();
    out.extend_from_slice(
        format!(
            "HTTP/1.1 {status}\r\nserver: {software}\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .as_bytes(),
    );
}
