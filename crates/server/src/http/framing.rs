//! Tracks the framing of an HTTP/1.1 connection's requests (RFC 9112 sections 2.2, 6 and 7.1) in
//! parallel with the HTTP library.
//!
//! hyper 1.12.0 reads a trailer section up to the next CRLF CRLF (`read_end_cr` and `read_trailer`
//! take any byte except CR), but httparse ends it at the first empty line, bare LFs included. Bytes
//! read after that are dropped: of these pipelined requests, `/2` never reaches the service.
//!
//! ```text
//! POST /1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\n
//! GET /2 HTTP/1.1\r\nHost: a\r\n\r\nGET /3 HTTP/1.1\r\nHost: a\r\n\r\n
//! ```
//!
//! Behind a proxy that shares connections among clients, the response to `/3` is then taken for the
//! one to `/2`. Chunks and trailers are therefore parsed strictly here (RFC 9112 section 7.1 ends
//! them with CRLF). Which body a head announces is left to the library, so that the two parsers
//! cannot disagree.

/// The framing of one connection's requests. It stores no bytes.
#[derive(Debug, Default)]
pub(crate) struct Framing {
    stage: Stage,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// Before a request, where empty lines are ignored (RFC 9112 section 2.2).
    #[default]
    Start,
    Head(Head),
    /// After a head that the library has not read yet.
    HeadEnd,
    /// In a body with this many bytes left.
    Length(u64),
    Chunked(Chunked),
    /// After the last request: the bytes belong to another protocol.
    Tunnel,
    Malformed,
}

/// The position in a head, whose lines may end with a bare LF (RFC 9112 section 2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Head {
    Line,
    Lf,
    LfCr,
}

/// The position in a chunked body (RFC 9112 section 7.1), whose lines end with CRLF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chunked {
    SizeStart,
    Size(u64),
    /// After the digits: white space and extensions.
    Extension(u64),
    SizeLf(u64),
    Data(u64),
    DataCr,
    DataLf,
    TrailerStart,
    Trailer,
    TrailerLf,
    LastLf,
    End,
}

impl Framing {
    /// Scans the next bytes and returns how many of them the library may read now. The caller scans
    /// the rest again once the framing no longer [waits](Self::is_waiting), unless it is
    /// [malformed](Self::is_malformed).
    pub(crate) fn scan(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            match self.step(&bytes[at..]) {
                Some(count) => at += count,
                None => break,
            }
        }
        at
    }

    /// Called when the library has read a head. `length` is the length of its body, or `None` for a
    /// chunked body.
    pub(crate) fn head_read(&mut self, length: Option<u64>) {
        self.stage = match (self.stage, length) {
            (Stage::HeadEnd, Some(0)) => Stage::Start,
            (Stage::HeadEnd, Some(length)) => Stage::Length(length),
            (Stage::HeadEnd, None) => Stage::Chunked(Chunked::SizeStart),
            // The library has found a head where there is none.
            _ => Stage::Malformed,
        };
    }

    /// Called when the connection has become a tunnel.
    pub(crate) fn become_tunnel(&mut self) {
        self.stage = Stage::Tunnel;
    }

    /// Whether the library has to read a head before more bytes may pass.
    pub(crate) fn is_waiting(&self) -> bool {
        self.stage == Stage::HeadEnd
    }

    /// Whether the library has been given whole requests only.
    pub(crate) fn is_between_requests(&self) -> bool {
        self.stage == Stage::Start
    }

    /// Whether the framing is malformed. No further bytes can be parsed.
    pub(crate) fn is_malformed(&self) -> bool {
        self.stage == Stage::Malformed
    }

    /// Scans one byte, or several of the same kind. Returns `None` if the library may not read any.
    fn step(&mut self, bytes: &[u8]) -> Option<usize> {
        let byte = bytes[0];
        let mut count = 1;
        self.stage = match self.stage {
            Stage::HeadEnd | Stage::Malformed => return None,
            Stage::Tunnel => return Some(bytes.len()),
            Stage::Start if matches!(byte, b'\r' | b'\n') => Stage::Start,
            Stage::Start => Stage::Head(Head::Line),
            Stage::Head(Head::Line) => {
                let lf = bytes.iter().position(|byte| *byte == b'\n');
                count = lf.map_or(bytes.len(), |lf| lf + 1);
                Stage::Head(if lf.is_some() { Head::Lf } else { Head::Line })
            }
            Stage::Head(_) if byte == b'\n' => Stage::HeadEnd,
            Stage::Head(Head::Lf) if byte == b'\r' => Stage::Head(Head::LfCr),
            Stage::Head(_) => Stage::Head(Head::Line),
            Stage::Length(left) => {
                count = count_within(left, bytes);
                match left - count as u64 {
                    0 => Stage::Start,
                    left => Stage::Length(left),
                }
            }
            Stage::Chunked(Chunked::Data(left)) => {
                count = count_within(left, bytes);
                Stage::Chunked(match left - count as u64 {
                    0 => Chunked::DataCr,
                    left => Chunked::Data(left),
                })
            }
            Stage::Chunked(chunked) => match chunked.next(byte) {
                Some(Chunked::End) => Stage::Start,
                Some(next) => Stage::Chunked(next),
                None => {
                    self.stage = Stage::Malformed;
                    return None;
                }
            },
        };
        Some(count)
    }
}

impl Chunked {
    /// The position after a byte of the framing. Returns `None` if the byte is invalid.
    fn next(self, byte: u8) -> Option<Self> {
        Some(match (self, byte) {
            (Self::SizeStart, _) => Self::Size(digit(byte)?),
            (Self::Size(size), b'\r') => Self::SizeLf(size),
            (Self::Size(size), b' ' | b'\t' | b';') => Self::Extension(size),
            (Self::Size(size), _) => Self::Size(size.checked_mul(16)?.checked_add(digit(byte)?)?),
            (Self::Extension(size), b'\r') => Self::SizeLf(size),
            (Self::Extension(_), b'\n') => return None,
            (Self::Extension(size), _) => Self::Extension(size),
            (Self::SizeLf(0), b'\n') => Self::TrailerStart,
            (Self::SizeLf(size), b'\n') => Self::Data(size),
            (Self::DataCr, b'\r') => Self::DataLf,
            (Self::DataLf, b'\n') => Self::SizeStart,
            (Self::TrailerStart, b'\r') => Self::LastLf,
            (Self::TrailerStart | Self::Trailer, b'\n') => return None,
            (Self::TrailerStart, _) => Self::Trailer,
            (Self::Trailer, b'\r') => Self::TrailerLf,
            (Self::Trailer, _) => Self::Trailer,
            (Self::TrailerLf, b'\n') => Self::TrailerStart,
            (Self::LastLf, b'\n') => Self::End,
            _ => return None,
        })
    }
}

fn digit(byte: u8) -> Option<u64> {
    char::from(byte).to_digit(16).map(u64::from)
}

/// How many of these bytes are among the next `left` ones.
fn count_within(left: u64, bytes: &[u8]) -> usize {
    usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CHUNKED: &str = "POST / HTTP/1.1\r\n\r\n";

    /// Scans all bytes in pieces of this size, where the heads have bodies of these lengths.
    /// Returns how many bytes the library may read, and the number of heads.
    fn scan_all(bytes: &[u8], piece: usize, bodies: &[Option<u64>]) -> (usize, usize, Framing) {
        let mut framing = Framing::default();
        let (mut passed, mut heads) = (0, 0);
        for piece in bytes.chunks(piece) {
            let mut at = 0;
            while at < piece.len() {
                at += framing.scan(&piece[at..]);
                if framing.is_malformed() {
                    return (passed + at, heads, framing);
                }
                if framing.is_waiting() {
                    framing.head_read(bodies.get(heads).copied().unwrap_or(Some(0)));
                    heads += 1;
                }
            }
            passed += at;
        }
        (passed, heads, framing)
    }

    /// The offset at which a chunked body is refused, for every piece size. Returns `None` if the
    /// body and the request after it pass.
    fn refused_at(body: &str) -> Option<usize> {
        let bytes = format!("{CHUNKED}{body}GET /next HTTP/1.1\r\n\r\n");
        let outcomes: Vec<_> = (1..=bytes.len())
            .map(|piece| {
                let (passed, heads, framing) = scan_all(bytes.as_bytes(), piece, &[None]);
                let whole = (passed, heads) == (bytes.len(), 2);
                assert_eq!(whole, !framing.is_malformed(), "{body:?} in pieces of {piece}");
                (!whole).then(|| passed - CHUNKED.len())
            })
            .collect();
        assert!(outcomes.iter().all(|outcome| *outcome == outcomes[0]), "{body:?}: {outcomes:?}");
        outcomes[0]
    }

    #[test]
    fn rfc9112_7_1_2_a_trailer_section_has_lines_that_end_with_crlf() {
        for good in [
            "0\r\n\r\n",
            "5\r\nhello\r\n0\r\n\r\n",
            "0005;a=b;c\r\n\r\n\r\n\n\r\n000 ;d\r\n\r\n",
            "A\r\n0123456789\r\n0\r\nA: b\r\nC: d\r\n\r\n",
        ] {
            assert_eq!(refused_at(good), None, "{good:?}");
        }
        for (bad, at) in [
            ("0\r\n\n", 3),
            ("0\r\nX: a\n\r\n", 7),
            ("0\r\nX: a\n\n", 7),
            ("0\r\nX: a\r\n\n", 9),
            ("0\r\nX: a\n\tb\r\n\r\n", 7),
            ("0\r\nX: a\r\r\n\r\n", 8),
            ("0\r\n\rX: a\r\n\r\n", 4),
            ("0\n\r\n", 1),
            ("0;\n\r\n", 2),
            ("5\r\nhello\n0\r\n\r\n", 8),
            ("5\r\nhello\r0\r\n\r\n", 9),
            ("x\r\n", 0),
            ("\r\n", 0),
            ("10000000000000000\r\n", 16),
        ] {
            assert_eq!(refused_at(bad), Some(at), "{bad:?}");
        }
    }

    #[test]
    fn rfc9112_2_2_heads_end_at_their_first_empty_line() {
        for text in [
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "\r\n\nGET / HTTP/1.1\nHost: a\n\n",
            "GET / HTTP/1.1\r\nHost: a\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\r\nX: \r\n\r\n",
        ] {
            let twice = text.repeat(2);
            let mut framing = Framing::default();
            assert_eq!(framing.scan(twice.as_bytes()), text.len(), "{text:?}");
            assert!(framing.is_waiting());
            assert_eq!(framing.scan(b"G"), 0);
            framing.head_read(Some(3));
            assert_eq!(framing.scan(twice.as_bytes()), text.len(), "{text:?}");
        }
    }

    #[test]
    fn a_tunnel_has_no_requests() {
        let mut framing = Framing::default();
        framing.scan(b"GET / HTTP/1.1\r\n\r\n");
        framing.become_tunnel();
        let bytes = b"\n\n\r\n\r\n0\r\n\n";
        assert_eq!(framing.scan(bytes), bytes.len());
    }

    #[test]
    fn a_head_that_the_library_finds_elsewhere_is_malformed() {
        let mut framing = Framing::default();
        framing.scan(b"GET / HTTP/1.1\r\n");
        framing.head_read(Some(0));
        assert!(framing.is_malformed());
    }

    /// A request: whether its body is chunked, its chunks, and the number of trailer fields.
    fn request() -> impl Strategy<Value = (bool, Vec<Vec<u8>>, usize)> {
        let chunk = prop::collection::vec(prop::sample::select(&b"\r\n0a"[..]), 1..40);
        (any::<bool>(), prop::collection::vec(chunk, 0..4), 0usize..3)
    }

    proptest! {
        #[test]
        fn requests_are_separated_however_they_are_split(
            requests in prop::collection::vec(request(), 1..6),
            piece in 1usize..100,
        ) {
            let (mut bytes, mut bodies) = (Vec::new(), Vec::new());
            for (chunked, chunks, trailers) in &requests {
                bytes.extend(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
                let body = chunks.concat();
                if *chunked {
                    for chunk in chunks {
                        bytes.extend(format!("{:x};e\r\n", chunk.len()).bytes());
                        bytes.extend([chunk, &b"\r\n"[..]].concat());
                    }
                    bytes.extend(format!("0\r\n{}\r\n", "X: y\r\n".repeat(*trailers)).bytes());
                } else {
                    bytes.extend(&body);
                }
                bodies.push((!*chunked).then_some(body.len() as u64));
            }
            let (passed, heads, framing) = scan_all(&bytes, piece, &bodies);
            prop_assert_eq!((passed, heads), (bytes.len(), requests.len()));
            prop_assert_eq!(framing.stage, Stage::Start);
        }

        #[test]
        fn any_bytes_are_scanned_alike_however_they_are_split(
            bytes in prop::collection::vec(prop::sample::select(&b"\r\n01a;: X"[..]), 0..200),
            bodies in prop::collection::vec(prop::option::of(0u64..30), 0..5),
            piece in 1usize..50,
        ) {
            let (whole, cut) = (scan_all(&bytes, bytes.len().max(1), &bodies), scan_all(&bytes, piece, &bodies));
            prop_assert_eq!((whole.0, whole.1, whole.2.stage), (cut.0, cut.1, cut.2.stage));
        }
    }
}
