use firstflight_wire::{Input, put_varint};

use crate::Exchange;
use crate::error::BadResponse;

/// The start of the client's control stream: its type, and empty SETTINGS (RFC 9114 section 6.2.1).
/// Without settings, QPACK uses no dynamic table (RFC 9204 section 3.2.3).
pub(crate) const CONTROL_STREAM: &[u8] = &[0x00, SETTINGS as u8, 0x00];

const DATA: u64 = 0x00;
const HEADERS: u64 = 0x01;
const SETTINGS: u64 = 0x04;

/// Encodes a GET as one HEADERS frame. Fields refer to the static table of QPACK (RFC 9204 appendix A)
/// or are literals.
pub(crate) fn encode_get(authority: &str, path: &str) -> Vec<u8> {
    // Required Insert Count and Base are 0 without a dynamic table.
    let mut fields = vec![0, 0];
    push_indexed(&mut fields, METHOD_GET);
    push_indexed(&mut fields, SCHEME_HTTPS);
    push_literal(&mut fields, AUTHORITY, authority);
    match path {
        "/" => push_indexed(&mut fields, PATH),
        other => push_literal(&mut fields, PATH, other),
    }
    push_indexed(&mut fields, ACCEPT_ANYTHING);
    push_literal(&mut fields, USER_AGENT, concat!("firstflight/", env!("CARGO_PKG_VERSION")));
    let mut frame = vec![HEADERS as u8];
    put_varint(&mut frame, fields.len() as u64);
    frame.append(&mut fields);
    frame
}

const AUTHORITY: u64 = 0;
const PATH: u64 = 1;
const METHOD_GET: u64 = 17;
const SCHEME_HTTPS: u64 = 23;
const ACCEPT_ANYTHING: u64 = 29;
const USER_AGENT: u64 = 95;

/// The statuses of the static table, by the index of the first.
const STATUSES: [(u64, &[u16]); 2] =
    [(24, &[103, 200, 304, 404, 503]), (63, &[100, 204, 206, 302, 400, 403, 421, 425, 500])];

/// Indexed Field Line of the static table (RFC 9204 section 4.5.2).
fn push_indexed(fields: &mut Vec<u8>, index: u64) {
    push_integer(fields, 0b1100_0000, 6, index);
}

/// Literal Field Line with Name Reference to the static table (RFC 9204 section 4.5.4).
fn push_literal(fields: &mut Vec<u8>, index: u64, value: &str) {
    push_integer(fields, 0b0101_0000, 4, index);
    push_integer(fields, 0, 7, value.len() as u64);
    fields.extend_from_slice(value.as_bytes());
}

/// Appends a prefixed integer (RFC 7541 section 5.1).
fn push_integer(fields: &mut Vec<u8>, first: u8, bits: u8, value: u64) {
    let max = (1 << bits) - 1;
    if value < max {
        return fields.push(first | value as u8);
    }
    fields.push(first | max as u8);
    let mut rest = value - max;
    while rest >= 128 {
        fields.push(rest as u8 | 128);
        rest >>= 7;
    }
    fields.push(rest as u8);
}

/// The bytes of a request over QUIC.
pub(crate) fn encode_request(exchange: &Exchange) -> Vec<u8> {
    match exchange {
        Exchange::Get { authority, path, .. } => encode_get(authority, path),
        Exchange::PingPong => b"PING".to_vec(),
    }
}

/// Reads the frames of a response on its request stream (RFC 9114 section 4.1), without I/O. Bodies
/// are skipped.
#[derive(Debug, Default)]
pub(crate) struct FrameReader {
    /// An incomplete frame header or HEADERS frame.
    buffer: Vec<u8>,
    /// Bytes left of a frame that is skipped.
    skip: u64,
    /// The status of the final response, not of informational ones.
    status: Option<u16>,
}

/// Limits the memory that a server can cost.
const MAX_FIELD_SECTION_BYTES: u64 = 16 * 1024;

impl FrameReader {
    /// Takes bytes of the request stream.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> Result<(), BadResponse> {
        loop {
            let skipped = self.skip.min(bytes.len() as u64);
            self.skip -= skipped;
            bytes = &bytes[skipped as usize..];
            if bytes.is_empty() {
                return Ok(());
            }
            // Fast path: the start of a frame nearly always arrives in one piece and need not be
            // copied.
            let used = if self.buffer.is_empty() {
                self.frame(bytes)?
            } else {
                let before = self.buffer.len();
                let mut all = std::mem::take(&mut self.buffer);
                all.extend_from_slice(bytes);
                match self.frame(&all)? {
                    0 => {
                        self.buffer = all;
                        return Ok(());
                    }
                    used => used - before,
                }
            };
            if used == 0 {
                self.buffer.extend_from_slice(bytes);
                return Ok(());
            }
            bytes = &bytes[used..];
        }
    }

    /// Returns the status once the head was received and no frame is incomplete.
    pub(crate) fn status(&self) -> Option<u16> {
        self.status.filter(|_| self.skip == 0 && self.buffer.is_empty())
    }

    /// Reads the header of a frame, and the whole frame if it is HEADERS. Returns the number of bytes
    /// used: 0 if they are incomplete.
    fn frame(&mut self, bytes: &[u8]) -> Result<usize, BadResponse> {
        let mut input = Input(bytes);
        let Some(kind) = input.varint() else { return Ok(0) };
        let Some(length) = input.varint() else { return Ok(0) };
        let head = bytes.len() - input.0.len();
        match kind {
            HEADERS if self.status.is_none() => {
                if length > MAX_FIELD_SECTION_BYTES {
                    return Err(BadResponse("its head is too long"));
                }
                let end = head + length as usize;
                let Some(fields) = bytes.get(head..end) else { return Ok(0) };
                let status = status(fields).ok_or(BadResponse("it has no status"))?;
                // Informational responses precede the final one (RFC 9110 section 15.2).
                self.status = Some(status).filter(|status| !(100..200).contains(status));
                return Ok(end);
            }
            DATA if self.status.is_none() => {
                return Err(BadResponse("its body comes before its head"));
            }
            // DATA, trailers, and unknown frames (RFC 9114 section 9).
            _ => self.skip = length,
        }
        Ok(head)
    }
}

/// Reads the status from a field section. It is the first field, because pseudo-header fields come
/// first (RFC 9114 section 4.3).
fn status(fields: &[u8]) -> Option<u16> {
    // Required Insert Count and Base are 0 without a dynamic table.
    let [0, 0, line @ ..] = fields else { return None };
    let indexed_status = |index: u64| {
        STATUSES.iter().find_map(|(from, codes)| {
            codes.get(usize::try_from(index.checked_sub(*from)?).ok()?).copied()
        })
    };
    match line.first()? {
        0b1100_0000.. => indexed_status(read_integer(line, 6)?.0),
        first if first & 0b1101_0000 == 0b0101_0000 => {
            let (index, used) = read_integer(line, 4)?;
            indexed_status(index)?;
            digits(&line[used..])
        }
        _ => None,
    }
}

fn read_integer(bytes: &[u8], bits: u8) -> Option<(u64, usize)> {
    let max = (1u64 << bits) - 1;
    let value = u64::from(*bytes.first()?) & max;
    if value < max {
        return Some((value, 1));
    }
    // Two bytes suffice for all of the static table.
    let more = *bytes.get(1)?;
    (more < 128).then(|| (max + u64::from(more), 2))
}

/// Reads a string literal of three digits, plain or Huffman-coded (RFC 7541 section 5.2).
fn digits(literal: &[u8]) -> Option<u16> {
    let (length, used) = read_integer(literal, 7)?;
    let text = literal.get(used..used + usize::try_from(length).ok()?)?;
    let huffman = literal[0] & 0x80 != 0;
    let digits = if huffman { huffman_digits(text)? } else { text.try_into().ok()? };
    let plain: [u8; 3] = digits;
    std::str::from_utf8(&plain).ok()?.parse().ok().filter(|code| (100..600).contains(code))
}

/// Decodes three Huffman-coded digits (RFC 7541 appendix B): `0`, `1` and `2` have five bits, the
/// others six.
fn huffman_digits(text: &[u8]) -> Option<[u8; 3]> {
    // At most 18 bits.
    if text.len() > 3 {
        return None;
    }
    let bits = text.iter().fold(0u32, |sum, byte| (sum << 8) | u32::from(*byte));
    let (mut left, mut digits) = (8 * text.len(), [0; 3]);
    for digit in &mut digits {
        let top = |count: usize| Some((bits >> left.checked_sub(count)?) & ((1 << count) - 1));
        (*digit, left) = match (top(5)?, top(6)) {
            (code @ 0..=2, _) => (b'0' + code as u8, left - 5),
            (_, Some(code @ 0b01_1001..=0b01_1111)) => (b'3' + (code - 0b01_1001) as u8, left - 6),
            _ => return None,
        };
    }
    // The padding is shorter than a byte, and all ones.
    let padding = (1 << left) - 1;
    (left < 8 && bits & padding == padding).then_some(digits)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![kind];
        put_varint(&mut frame, payload.len() as u64);
        frame.extend_from_slice(payload);
        frame
    }

    fn read(bytes: &[u8]) -> Result<Option<u16>, BadResponse> {
        let mut frames = FrameReader::default();
        frames.feed(bytes).map(|()| frames.status())
    }

    #[test]
    fn rfc9204_4_5_a_status_is_read_in_each_form() {
        for (fields, code) in [
            (&[0, 0, 0xc0 | 25][..], 200),
            (&[0, 0, 0xff, 0][..], 100),
            (&[0, 0, 0xff, 7][..], 425),
            (&[0, 0, 0x5f, 9, 3, b'2', b'0', b'6'][..], 206),
            // 429, Huffman-coded: 011010 00010 011111, and seven bits of padding.
            (&[0, 0, 0x5f, 9, 0x83, 0x68, 0x4f, 0xff][..], 429),
            (&[0, 0, 0x7f, 9, 0x82, 0x68, 0x4f, 0xff][..], 0),
        ] {
            if code == 0 {
                assert_eq!(status(fields), None);
            } else {
                assert_eq!(status(fields), Some(code), "{fields:?}");
            }
        }
        for none in [&[0, 0][..], &[1, 0, 0xd9], &[0, 0, 0x80], &[0, 0, 0xff, 0xff], &[0, 0, 0xc1]]
        {
            assert_eq!(status(none), None, "{none:?}");
        }
        // 2000, and four bits of padding; 429 and four zeros; six bytes of zeros.
        for huffman in [&[0x10, 0x00, 0x0f][..], &[0x68, 0x4f, 0x80], &[0; 6]] {
            let fields = [&[0, 0, 0x5f, 9, 0x80 | huffman.len() as u8][..], huffman].concat();
            assert_eq!(status(&fields), None, "{huffman:?}");
        }
    }

    #[test]
    fn rfc9114_4_1_a_response_is_a_head_a_body_and_optional_trailers() {
        let ok = frame(1, &[0, 0, 0xc0 | 25]);
        let early_hints = frame(1, &[0, 0, 0xc0 | 24]);
        let body = frame(0, &[b'x'; 100]);
        assert_eq!(read(&[&early_hints[..], &ok, &body, &ok].concat()), Ok(Some(200)));
        assert_eq!(read(&[&ok[..], &body[..50]].concat()), Ok(None));
        assert_eq!(read(&early_hints), Ok(None));
        assert!(read(&body).is_err());
        assert!(read(&frame(1, &[0, 0])).is_err());
        assert!(read(&[1, 0xbf, 0xff, 0xff, 0xff]).is_err());
    }

    #[test]
    fn rfc9204_appendix_b_1_a_request_uses_the_static_table() {
        let bytes = encode_get("h:4433", "/10k");
        assert_eq!(bytes[..2], [1, bytes.len() as u8 - 2]);
        assert_eq!(bytes[2..14], [0, 0, 0xd1, 0xd7, 0x50, 6, b'h', b':', b'4', b'4', b'3', b'3']);
        assert_eq!(bytes[14..21], [0x51, 4, b'/', b'1', b'0', b'k', 0xdd]);
        assert_eq!(bytes[21..24], [0x5f, 80, 17]);
        assert!(bytes.ends_with(concat!("firstflight/", env!("CARGO_PKG_VERSION")).as_bytes()));
    }

    proptest! {
        #[test]
        fn segmentation_does_not_change_the_result(cuts in proptest::collection::vec(1usize..40, 1..20)) {
            let bytes = [
                frame(0x21, b"grease"),
                frame(1, &[0, 0, 0xc0 | 24]),
                frame(1, &[&[0, 0, 0xc0 | 25][..], &[0x23; 90]].concat()),
                frame(0, &[b'x'; 70]),
                frame(0, b"y"),
            ]
            .concat();
            let (mut frames, mut rest) = (FrameReader::default(), &bytes[..]);
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                frames.feed(now).unwrap();
                rest = later;
            }
            prop_assert_eq!(frames.status(), Some(200));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes);
        }
    }
}
