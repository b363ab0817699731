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
    Body { status: u16, body: Body },
    /// An HTTP/3 response, which ends with its stream.
    Http3(FrameReader),
}

impl ResponseReader {
    /// A reader that has received nothing yet.
    pub fn new(exchange: &Exchange, transport: Transport) -> Self {
        let state = match (exchange, transport) {
            (Exchange::PingPong, _) => State::Pong(0),
            (Exchange::Get { .. }, Transport::Tcp) => State::Head(Vec::new()),
            (Exchange::Get { .. }, Transport::Quic) => State::Http3(FrameReader::default()),
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
                let parsed = if buffer.is_empty() { parse_head(bytes)? } else { None };
                let (parsed, all) = match parsed {
                    Some(parsed) => (Some(parsed), bytes),
                    None => {
                        buffer.extend_from_slice(bytes);
                        (parse_head(buffer)?, &buffer[..])
                    }
                };
                match parsed {
                    // What follows the head is body.
                    Some(Head { status, mut body, length }) => {
                        body.feed(&all[length..])?;
                        self.state = State::Body { status, body };
                        Ok(())
                    }
                    None if all.len() > MAX_HEAD_BYTES => Err(BadResponse("its head is too long")),
                    None => Ok(()),
                }
            }
            State::Body { body, .. } => body.feed(bytes),
            State::Http3(frames) => frames.feed(bytes),
        }
    }

    /// Returns the response if it is complete. `ended` says that no further bytes will come.
    pub fn complete(&self, ended: bool) -> Option<ResponseSummary> {
        let status = match &self.state {
            State::Pong(received) => (*received == PONG.len()).then_some(None),
            State::Head(_) => None,
            State::Body { status, body } => body.is_complete(ended).then_some(Some(*status)),
            State::Http3(frames) => frames.status().filter(|_| ended).map(Some),
        }?;
        Some(ResponseSummary { status, bytes: self.bytes })
    }

    /// Whether any byte was received.
    pub fn has_started(&self) -> bool {
        self.bytes > 0
    }
}

const PONG: &[u8] = b"PONG";

/// Limits the memory and time that a server can cost.
const MAX_HEAD_BYTES: usize = 16 * 1024;
const MAX_FIELDS: usize = 128;

struct Head {
    status: u16,
    body: Body,
    /// Length of the head.
    length: usize,
}

/// What ends a body (RFC 9112 section 6.3).
#[derive(Debug)]
enum Body {
    /// Number of bytes left.
    Length(u64),
    Chunked(Chunked),
    UntilClose,
}

impl Body {
    fn feed(&mut self, bytes: &[u8]) -> Result<(), BadResponse> {
        match self {
            Self::Length(left) => {
                let rest = left.checked_sub(bytes.len() as u64);
                *left = rest.ok_or(BadResponse("it is longer than its Content-Length"))?;
                Ok(())
            }
            Self::Chunked(chunked) => chunked.feed(bytes),
            Self::UntilClose => Ok(()),
        }
    }

    fn is_complete(&self, ended: bool) -> bool {
        match self {
            Self::Length(left) => *left == 0,
            // RFC 9112 section 8: incomplete without the last chunk, even if the connection ended.
            Self::Chunked(chunked) => matches!(chunked, Chunked::End),
            Self::UntilClose => ended,
        }
    }
}

/// How far a chunked body was received (RFC 9112 section 7.1). Chunk extensions and trailers are
/// skipped.
#[derive(Debug)]
enum Chunked {
    /// In the size of a chunk, after this number of digits.
    Size {
        size: u64,
        digits: u8,
    },
    /// In the rest of the line with the size.
    Extension {
        size: u64,
    },
    /// In the data of a chunk: number of bytes left.
    Data(u64),
    /// At the line break after the data of a chunk.
    DataEnd,
    /// In a line after the last chunk. An empty line ends the body.
    Trailer {
        empty: bool,
    },
    End,
}

impl Chunked {
    fn feed(&mut self, mut bytes: &[u8]) -> Result<(), BadResponse> {
        while let Some((&byte, rest)) = bytes.split_first() {
            if let Self::Data(left) = self {
                let count = (*left).min(bytes.len() as u64);
                *left -= count;
                bytes = &bytes[count as usize..];
                if *left == 0 {
                    *self = Self::DataEnd;
                }
                continue;
            }
            self.push_byte(byte)?;
            bytes = rest;
        }
        Ok(())
    }

    /// Processes a byte outside of chunk data. A line may end without CR (RFC 9112 section 2.2).
    fn push_byte(&mut self, byte: u8) -> Result<(), BadResponse> {
        let malformed = BadResponse("its chunks are malformed");
        *self = match (&*self, byte) {
            (Self::Size { size, digits }, _) => match char::from(byte).to_digit(16) {
                Some(digit) if *digits < MAX_SIZE_DIGITS => {
                    Self::Size { size: (size << 4) | u64::from(digit), digits: digits + 1 }
                }
                None if *digits > 0 && byte == b'\n' => Self::after_size(*size),
                None if *digits > 0 && matches!(byte, b'\r' | b';' | b' ' | b'\t') => {
                    Self::Extension { size: *size }
                }
                _ => return Err(malformed),
            },
            (Self::Extension { size }, b'\n') => Self::after_size(*size),
            (Self::Extension { size }, _) => Self::Extension { size: *size },
            (Self::DataEnd, b'\r') => Self::DataEnd,
            (Self::DataEnd, b'\n') => Self::Size { size: 0, digits: 0 },
            (Self::Trailer { empty: true }, b'\n') => Self::End,
            (Self::Trailer { .. }, b'\n') => Self::Trailer { empty: true },
            (Self::Trailer { empty }, _) => Self::Trailer { empty: *empty && byte == b'\r' },
            (Self::DataEnd | Self::Data(_), _) => return Err(malformed),
            (Self::End, _) => return Err(BadResponse("it continues after its last chunk")),
        };
        Ok(())
    }

    fn after_size(size: u64) -> Self {
        if size == 0 { Self::Trailer { empty: true } } else { Self::Data(size) }
    }
}

/// Enough for every size below 2^60.
const MAX_SIZE_DIGITS: u8 = 15;

fn parse_head(bytes: &[u8]) -> Result<Option<Head>, BadResponse> {
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
        let body = body_framing(status, response.headers)?;
        return Ok(Some(Head { status, body, length: start }));
    }
}

fn body_framing(status: u16, fields: &[httparse::Header<'_>]) -> Result<Body, BadResponse> {
    if status == 204 || status == 304 {
        return Ok(Body::Length(0));
    }
    let named =
        |name: &'static str| fields.iter().filter(move |f| f.name.eq_ignore_ascii_case(name));
    if let Some(field) = named("transfer-encoding").next_back() {
        // RFC 9112 section 6.3: without `chunked` as the last coding, the close ends the body.
        let last = field.value.rsplit(|byte| *byte == b',').next().unwrap_or_default();
        return Ok(match last.trim_ascii().eq_ignore_ascii_case(b"chunked") {
            true => Body::Chunked(Chunked::Size { size: 0, digits: 0 }),
            false => Body::UntilClose,
        });
    }
    let mut lengths = named("content-length").map(|field| {
        let text = std::str::from_utf8(field.value).unwrap_or_default().trim();
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        text.parse::<u64>()
            .ok()
            .filter(|_| digits)
            .ok_or(BadResponse("its Content-Length is not a number"))
    });
    let Some(first) = lengths.next().transpose()? else { return Ok(Body::UntilClose) };
    for other in lengths {
        if other? != first {
            return Err(BadResponse("it has two different Content-Lengths"));
        }
    }
    Ok(Body::Length(first))
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

        for field in ["", "Transfer-Encoding: chunked, gzip\r\n"] {
            let mut response = get();
            feed(&mut response, &format!("HTTP/1.1 404 Not Found\r\n{field}\r\n0")).unwrap();
            assert_eq!(response.complete(false), None);
            assert_eq!(response.complete(true).unwrap().status, Some(404));
        }

        let mut response = get();
        feed(&mut response, "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n").unwrap();
        assert_eq!(response.complete(false).unwrap().status, Some(304));
    }

    const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, Chunked\r\n\r\n";

    #[test]
    fn rfc9112_8_a_chunked_body_is_incomplete_without_its_last_chunk() {
        let whole =
            format!("{CHUNKED}5;a=b\r\nhello\r\n1a\r\n{}\r\n0\r\nA: b\r\n\r\n", "x".repeat(26));
        for cut in CHUNKED.len()..whole.len() {
            let mut response = get();
            feed(&mut response, &whole[..cut]).unwrap();
            assert_eq!(response.complete(true), None, "{:?}", &whole[..cut]);
            feed(&mut response, &whole[cut..]).unwrap();
            assert_eq!(response.complete(false).unwrap().status, Some(200), "cut at {cut}");
            assert!(feed(&mut response, "0").is_err());
        }
    }

    #[test]
    fn malformed_chunks_are_refused() {
        for body in ["\r\n", "x\r\n", "-1\r\n", "1\r\nabc", "1000000000000000\r\n"] {
            assert!(feed(&mut get(), &format!("{CHUNKED}{body}")).is_err(), "{body:?}");
        }
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
