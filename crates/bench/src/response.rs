use crate::error::BadResponse;
use crate::quic::FrameReader;
use crate::{Exchange, Transport};

/// Reads the response of one [`Exchange`], without I/O. The body is counted, not stored.
#[derive(Debug)]
pub struct ResponseReader {
    state: State,
    bytes: u64,
}

/// A complete response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseSummary {
    /// The HTTP status; `None` for ping-pong.
    pub status: Option<u16>,
    /// Number of bytes, head included.
    pub bytes: u64,
}

#[derive(Debug)]
enum State {
    /// `PONG`, of which this many bytes were received.
    Pong(usize),
    /// The head of an HTTP/1.1 response, as far as it was received.
    Head(Vec<u8>),
    /// The body of an HTTP/1.1 response.
    Body { status: u16, left: Option<u64> },
    /// An HTTP/3 response, which ends with its stream.
    FrameReader(FrameReader),
}

impl ResponseReader {
    /// A reader that has received nothing yet.
    pub fn new(exchange: &Exchange, transport: Transport) -> Self {
        let state = match (exchange, transport) {
            (Exchange::PingPong, _) => State::Pong(0),
            (Exchange::Get { .. }, Transport::Tcp) => State::Head(Vec::new()),
            (Exchange::Get { .. }, Transport::Quic) => State::FrameReader(FrameReader::default()),
        };
        Self { state, bytes: 0 }
    }

    /// Takes bytes of the connection, or of the request's stream.
    ///
    /// # Errors
    /// [`BadResponse`] if they are not a valid response, or longer than announced.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), BadResponse> {
        self.bytes += bytes.len() as u64;
        match &mut self.state {
            State::Pong(received) => {
                let rest = &PONG[*received..];
                if !rest.starts_with(bytes) {
                    return Err(BadResponse("it is not PONG"));
                }
                *received += bytes.len();
                Ok(())
            }
            State::Head(buffer) => {
                // Fast path: the head nearly always arrives in one piece and need not be copied.
                let parsed = if buffer.is_empty() { head(bytes)? } else { None };
                if parsed.is_none() {
                    buffer.extend_from_slice(bytes);
                }
                let (parsed, all) = match parsed {
                    Some(parsed) => (Some(parsed), bytes.len()),
                    None => (head(buffer)?, buffer.len()),
                };
                match parsed {
                    Some(head) => self.body(head, all),
                    None if buffer.len() > MAX_HEAD_BYTES => {
                        Err(BadResponse("its head is too long"))
                    }
                    None => Ok(()),
                }
            }
            State::Body { left, .. } => consume(left, bytes.len() as u64),
            State::FrameReader(frames) => frames.feed(bytes),
        }
    }

    /// Returns the response if it is complete. `ended` says that no further bytes will come.
    pub fn complete(&self, ended: bool) -> Option<ResponseSummary> {
        let status = match &self.state {
            State::Pong(received) => (*received == PONG.len()).then_some(None),
            State::Head(_) => None,
            State::Body { status, left } => {
                (left.map_or(ended, |left| left == 0)).then_some(Some(*status))
            }
            State::FrameReader(frames) => frames.status().filter(|_| ended).map(Some),
        }?;
        Some(ResponseSummary { status, bytes: self.bytes })
    }

    /// Whether any byte was received.
    pub fn has_started(&self) -> bool {
        self.bytes > 0
    }

    /// Changes to the body after a complete head. What follows the head in the `all` bytes is body.
    fn body(&mut self, head: Head, all: usize) -> Result<(), BadResponse> {
        let after = (all - head.length) as u64;
        let Head { status, mut left, .. } = head;
        consume(&mut left, after)?;
        self.state = State::Body { status, left };
        Ok(())
    }
}

const PONG: &[u8] = b"PONG";

/// Limits the memory and time that a server can cost.
const MAX_HEAD_BYTES: usize = 16 * 1024;
const MAX_FIELDS: usize = 128;

struct Head {
    status: u16,
    /// Length of the body. `None` if it ends with the connection (RFC 9112 section 6.3). So does a
    /// chunked body here, because the request has `Connection: close`.
    left: Option<u64>,
    /// Length of the head.
    length: usize,
}

fn head(bytes: &[u8]) -> Result<Option<Head>, BadResponse> {
    let mut start = 0;
    loop {
        let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
        let mut response = httparse::Response::new(&mut fields);
        let parsed =
            response.parse(&bytes[start..]).map_err(|_| BadResponse("it is not HTTP/1.1"))?;
        let httparse::Status::Complete(length) = parsed else { return Ok(None) };
        let status = response.code.unwrap_or_default();
        start += length;
        // Informational responses precede the final one (RFC 9110 section 15.2).
        if (100..200).contains(&status) {
            continue;
        }
        let left = body_length(status, response.headers)?;
        return Ok(Some(Head { status, left, length: start }));
    }
}

fn body_length(status: u16, fields: &[httparse::Header<'_>]) -> Result<Option<u64>, BadResponse> {
    if status == 204 || status == 304 {
        return Ok(Some(0));
    }
    let named =
        |name: &'static str| fields.iter().filter(move |f| f.name.eq_ignore_ascii_case(name));
    if named("transfer-encoding").next().is_some() {
        return Ok(None);
    }
    let mut lengths = named("content-length").map(|field| {
        let text = std::str::from_utf8(field.value).unwrap_or_default().trim();
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        text.parse::<u64>()
            .ok()
            .filter(|_| digits)
            .ok_or(BadResponse("its Content-Length is not a number"))
    });
    let Some(first) = lengths.next().transpose()? else { return Ok(None) };
    for other in lengths {
        if other? != first {
            return Err(BadResponse("it has two different Content-Lengths"));
        }
    }
    Ok(Some(first))
}

fn consume(left: &mut Option<u64>, count: u64) -> Result<(), BadResponse> {
    if let Some(left) = left {
        *left =
            left.checked_sub(count).ok_or(BadResponse("it is longer than its Content-Length"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn get() -> ResponseReader {
        ResponseReader::new(&Exchange::get("h", "/"), Transport::Tcp)
    }

    fn feed(response: &mut ResponseReader, text: &str) -> Result<(), BadResponse> {
        response.feed(text.as_bytes())
    }

    #[test]
    fn pong_is_complete_with_its_fourth_byte() {
        let mut response = ResponseReader::new(&Exchange::PingPong, Transport::Tcp);
        assert!(!response.has_started());
        feed(&mut response, "PO").unwrap();
        assert!(response.has_started() && response.complete(true).is_none());
        feed(&mut response, "NG").unwrap();
        assert_eq!(response.complete(false), Some(ResponseSummary { status: None, bytes: 4 }));
        assert!(feed(&mut response, "!").is_err());
        assert!(
            feed(&mut ResponseReader::new(&Exchange::PingPong, Transport::Tcp), "HTTP/1.1 400")
                .is_err()
        );
    }

    #[test]
    fn rfc9112_6_3_a_body_ends_by_its_length_or_with_the_connection() {
        let mut response = get();
        feed(&mut response, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel").unwrap();
        assert_eq!(response.complete(true), None);
        feed(&mut response, "lo").unwrap();
        assert_eq!(response.complete(false).unwrap().status, Some(200));
        assert!(feed(&mut response, "!").is_err());

        let mut response = get();
        feed(&mut response, "HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n0")
            .unwrap();
        assert_eq!(response.complete(false), None);
        assert_eq!(response.complete(true).unwrap().status, Some(404));

        let mut response = get();
        feed(&mut response, "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n").unwrap();
        assert_eq!(response.complete(false).unwrap().status, Some(304));
    }

    #[test]
    fn rfc9110_15_2_informational_responses_are_skipped() {
        let mut response = get();
        feed(&mut response, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n").unwrap();
        assert_eq!(response.complete(true), None);
        feed(&mut response, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
        assert_eq!(response.complete(false).unwrap().status, Some(200));
    }

    #[test]
    fn a_head_without_end_is_refused() {
        let mut response = get();
        feed(&mut response, "HTTP/1.1 200 OK\r\nX: ").unwrap();
        let more = "x".repeat(1024);
        assert!((0..100).any(|_| feed(&mut response, &more).is_err()));
    }

    #[test]
    fn invalid_content_lengths_are_refused() {
        for length in ["+5", "-1", "5, 6", "", "99999999999999999999"] {
            let text = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
            assert!(feed(&mut get(), &text).is_err(), "{length}");
        }
        let two = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n";
        assert!(feed(&mut get(), two).is_err());
    }

    proptest! {
        #[test]
        fn segmentation_does_not_change_the_result(cuts in proptest::collection::vec(1usize..40, 1..20)) {
            let text = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nServer: s\r\n\
                        Content-Length: 26\r\n\r\nabcdefghijklmnopqrstuvwxyz";
            let (mut response, mut rest) = (get(), text.as_bytes());
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                prop_assert_eq!(response.complete(false), None);
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                response.feed(now).unwrap();
                rest = later;
            }
            let bytes = text.len() as u64;
            prop_assert_eq!(response.complete(false), Some(ResponseSummary { status: Some(200), bytes }));
        }
    }
}
