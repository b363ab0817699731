//! An upstream that stores its requests and parses them as strictly as HTTP allows: anything
//! some server somewhere might read differently is a fault.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// A listening upstream, until the test program ends.
pub(crate) struct StrictUpstream {
    pub(crate) url: String,
    received: Arc<Mutex<Vec<Received>>>,
}

/// A field's name in lower case, and its value.
type Field = (String, String);

/// A received request.
#[derive(Clone, Debug)]
pub(crate) enum Received {
    /// A complete request. `line` is the request line without the version.
    Complete { line: String, fields: Vec<Field>, body: Vec<u8>, trailers: Vec<Field> },
    /// The connection ended within the request, so no server would execute it.
    Incomplete,
    /// Bytes that a proxy must never send.
    Malformed(String),
}

impl StrictUpstream {
    pub(crate) fn start() -> Self {
        Self::slow(Duration::ZERO)
    }

    /// Starts an upstream that pauses before each response.
    pub(crate) fn slow(pause: Duration) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let received = Arc::<Mutex<Vec<Received>>>::default();
        let log = received.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let log = log.clone();
                thread::spawn(move || serve(client, &log, pause));
            }
        });
        Self { url, received }
    }

    /// Takes the requests since the last call.
    pub(crate) fn take(&self) -> Vec<Received> {
        std::mem::take(&mut self.received.lock().unwrap())
    }
}

/// Complete requests and faults, in the notation of the corpora.
pub(crate) fn describe(received: &[Received]) -> String {
    let mut text = String::new();
    for request in received {
        let separator = if text.is_empty() { "" } else { ", " };
        match request {
            Received::Complete { line, body, trailers, .. } => {
                let body: String = body
                    .iter()
                    .flat_map(|b| std::ascii::escape_default(*b))
                    .map(char::from)
                    .collect();
                let _ = write!(text, "{separator}{line} \"{}\"", body.replace("\\\"", "\""));
                for (name, value) in trailers {
                    let _ = write!(text, " {name}: {value}");
                }
            }
            Received::Malformed(why) => {
                let _ = write!(text, "{separator}FAULT {why}");
            }
            Received::Incomplete => {}
        }
    }
    text
}

fn serve(mut client: TcpStream, log: &Mutex<Vec<Received>>, pause: Duration) {
    let mut reader = BufReader::new(client.try_clone().unwrap());
    // A connection that ends between requests is no request.
    while let Some(received) =
        request(&mut reader).unwrap_or_else(|why| Some(Received::Malformed(why)))
    {
        let is_complete = matches!(received, Received::Complete { .. });
        let response = match &received {
            Received::Complete { line, .. } if line.starts_with("HEAD ") => head_of(RESPONSE),
            _ => RESPONSE,
        };
        log.lock().unwrap().push(received);
        thread::sleep(pause);
        if !is_complete || client.write_all(response).is_err() {
            return;
        }
    }
}

/// Reads a request; `None` if the connection has ended.
fn request(reader: &mut impl BufRead) -> Result<Option<Received>, String> {
    let Some(first) = line(reader)? else { return Ok(None) };
    let incomplete = Ok(Some(Received::Incomplete));
    let mut words = first.split(' ');
    let (Some(method), Some(target), Some("HTTP/1.1"), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(format!("a request's line: {first:?}"));
    };
    if !method.bytes().all(is_token)
        || target.is_empty()
        || !target.bytes().all(|b| b > b' ' && b < 0x7f)
    {
        return Err(format!("a request's line: {first:?}"));
    }
    let mut fields = Vec::new();
    loop {
        let Some(line) = line(reader)? else { return incomplete };
        if line.is_empty() {
            break;
        }
        fields.push(field(&line)?);
    }
    let framing = framing(&fields)?;
    let (body, trailers) = match framing {
        Framing::Length(length) => {
            let mut body = Vec::new();
            let read = reader.take(length).read_to_end(&mut body);
            if read.is_err() || (body.len() as u64) < length {
                return incomplete;
            }
            (body, Vec::new())
        }
        Framing::Chunks => match chunks(reader)? {
            Some(both) => both,
            None => return incomplete,
        },
    };
    check_proxy_fields(&fields)?;
    if let Some((name, _)) = trailers.iter().find(|(name, _)| !name.starts_with("x-checksum")) {
        return Err(format!("a trailer: {name}"));
    }
    Ok(Some(Received::Complete { line: format!("{method} {target}"), fields, body, trailers }))
}

/// Reads a line without its CR LF; `None` if the connection has ended before.
fn line(reader: &mut impl BufRead) -> Result<Option<String>, String> {
    let mut bytes = Vec::new();
    if reader.read_until(b'\n', &mut bytes).is_err() || bytes.last() != Some(&b'\n') {
        return Ok(None);
    }
    bytes.pop();
    if bytes.pop() != Some(b'\r') {
        return Err(format!(
            "a line that ends with a bare LF: {:?}",
            String::from_utf8_lossy(&bytes)
        ));
    }
    // Latin-1, so that no byte is lost.
    Ok(Some(bytes.into_iter().map(char::from).collect()))
}

fn field(line: &str) -> Result<Field, String> {
    let fault = || format!("a field: {line:?}");
    let (name, value) = line.split_once(':').ok_or_else(fault)?;
    let clear = |c: char| c == '\t' || (!c.is_ascii_control());
    if name.is_empty() || !name.bytes().all(is_token) || !value.chars().all(clear) {
        return Err(fault());
    }
    Ok((name.to_ascii_lowercase(), value.trim().to_owned()))
}

/// RFC 9110 section 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

enum Framing {
    Length(u64),
    Chunks,
}

/// The framing of the body. Fails if servers could disagree about it.
fn framing(fields: &[Field]) -> Result<Framing, String> {
    let all = |name: &str| -> Vec<&str> {
        fields.iter().filter(|(n, _)| n == name).map(|(_, value)| value.as_str()).collect()
    };
    match (&all("content-length")[..], &all("transfer-encoding")[..]) {
        ([], []) => Ok(Framing::Length(0)),
        ([], ["chunked"]) => Ok(Framing::Chunks),
        // Some servers read a number with leading zeros as octal.
        ([length], [])
            if length.bytes().all(|b| b.is_ascii_digit())
                && (*length == "0" || !length.starts_with('0')) =>
        {
            length.parse().map(Framing::Length).map_err(|_| format!("a length: {length}"))
        }
        (lengths, codings) => Err(format!("lengths {lengths:?} and codings {codings:?}")),
    }
}

/// The body and its trailers.
type Chunks = (Vec<u8>, Vec<Field>);

/// Reads a chunked body and its trailers. Extensions are faults: a proxy forwards none.
fn chunks(reader: &mut impl BufRead) -> Result<Option<Chunks>, String> {
    let (mut body, mut trailers) = (Vec::new(), Vec::new());
    loop {
        let Some(size) = line(reader)? else { return Ok(None) };
        if size.is_empty() || !size.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(format!("a chunk's size: {size:?}"));
        }
        let size = u64::from_str_radix(&size, 16).map_err(|error| error.to_string())?;
        if size == 0 {
            loop {
                match line(reader)? {
                    None => return Ok(None),
                    Some(end) if end.is_empty() => return Ok(Some((body, trailers))),
                    Some(trailer) => trailers.push(field(&trailer)?),
                }
            }
        }
        let before = body.len() as u64;
        if reader.take(size).read_to_end(&mut body).is_err() || body.len() as u64 - before < size {
            return Ok(None);
        }
        match line(reader)? {
            None => return Ok(None),
            Some(end) if end.is_empty() => {}
            Some(more) => return Err(format!("behind a chunk: {more:?}")),
        }
    }
}

/// Checks that fields that only the proxy may set occur once, in one spelling, and that no fields
/// of the client's connection are forwarded.
fn check_proxy_fields(fields: &[Field]) -> Result<(), String> {
    let mut count = HashMap::<String, Vec<&str>>::new();
    for (name, value) in fields {
        count.entry(name.replace('_', "-")).or_default().push(value);
    }
    let all = |name: &str| count.get(name).map_or(&[][..], Vec::as_slice);
    let alone = ["keep-alive", "proxy-connection", "http2-settings", "expect", "forwarded"];
    let claims = ["proxy", "x-real-ip", "x-forwarded", "x-forwarded-host", "x-forwarded-port"];
    let more = ["x-forwarded-server", "x-forwarded-prefix"];
    if let Some(name) = alone.iter().chain(&claims).chain(&more).find(|name| !all(name).is_empty())
    {
        return Err(format!("{name}: {:?}", all(name)));
    }
    // Trailers may be requested (RFC 9110 section 10.1.4), and WebSockets (RFC 6455).
    let allowed = [
        ("connection", "te"),
        ("connection", "upgrade"),
        ("te", "trailers"),
        ("upgrade", "websocket"),
    ];
    for name in ["connection", "te", "upgrade"] {
        if !all(name).iter().all(|value| allowed.contains(&(name, value))) {
            return Err(format!("{name}: {:?}", all(name)));
        }
    }
    let once = [("x-forwarded-for", "127.0.0.1"), ("x-forwarded-proto", "https")];
    if let Some((name, _)) = once.iter().find(|(name, value)| all(name) != [*value]) {
        return Err(format!("{name}: {:?}", all(name)));
    }
    if all("host").len() != 1 || all("early-data").len() > 1 || all("content-length").len() > 1 {
        return Err(format!("not once: {fields:?}"));
    }
    Ok(())
}

/// A response without its body.
fn head_of(response: &[u8]) -> &[u8] {
    let end = response.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
    &response[..end + 4]
}

/// Longer than the windows that tools try.
const RESPONSE: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Length: 37\r\n\r\nwhat the upstream says to all of them";
