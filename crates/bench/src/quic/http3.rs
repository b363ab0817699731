use crate::Exchange;
use crate::failure::BadAnswer;

/// What opens a client's control stream: its type and SETTINGS that change nothing (RFC 9114
/// section 6.2.1), so that no dynamic table is used (RFC 9204 section 3.2.3).
pub(crate) const CONTROL: &[u8] = &[0x00, SETTINGS as u8, 0x00];

const DATA: u64 = 0x00;
const HEADERS: u64 = 0x01;
const SETTINGS: u64 = 0x04;

/// The frames of a GET: one HEADERS frame whose fields refer to QPACK's static table (RFC 9204
/// appendix A) or are spelled out.
pub(crate) fn request(authority: &str, path: &str) -> Vec<u8> {
    // Required Insert Count and Base are 0: nothing refers to a dynamic table.
    let mut fields = vec![0, 0];
    indexed(&mut fields, METHOD_GET);
    indexed(&mut fields, SCHEME_HTTPS);
    named(&mut fields, AUTHORITY, authority);
    match path {
        "/" => indexed(&mut fields, PATH),
        other => named(&mut fields, PATH, other),
    }
    indexed(&mut fields, ACCEPT_ANYTHING);
    named(&mut fields, USER_AGENT, concat!("firstflight/", env!("CARGO_PKG_VERSION")));
    let mut frame = vec![HEADERS as u8];
    varint(&mut frame, fields.len() as u64);
    frame.append(&mut fields);
    frame
}

const AUTHORITY: u64 = 0;
const PATH: u64 = 1;
const METHOD_GET: u64 = 17;
const SCHEME_HTTPS: u64 = 23;
const ACCEPT_ANYTHING: u64 = 29;
const USER_AGENT: u64 = 95;

/// The statuses of the static table, from their index on.
const STATUSES: [(u64, &[u16]); 2] =
    [(24, &[103, 200, 304, 404, 503]), (63, &[100, 204, 206, 302, 400, 403, 421, 425, 500])];

/// Indexed Field Line (RFC 9204 section 4.5.2), of the static table.
fn indexed(fields: &mut Vec<u8>, index: u64) {
    integer(fields, 0b1100_0000, 6, index);
}

/// Literal Field Line with Name Reference (RFC 9204 section 4.5.4), of the static table.
fn named(fields: &mut Vec<u8>, index: u64, value: &str) {
    integer(fields, 0b0101_0000, 4, index);
    integer(fields, 0, 7, value.len() as u64);
    fields.extend_from_slice(value.as_bytes());
}

/// RFC 7541 section 5.1.
fn integer(fields: &mut Vec<u8>, first: u8, bits: u8, value: u64) {
    let most = (1 << bits) - 1;
    if value < most {
        return fields.push(first | value as u8);
    }
    fields.push(first | most as u8);
    let mut rest = value - most;
    while rest >= 128 {
        fields.push(rest as u8 | 128);
        rest >>= 7;
    }
    fields.push(rest as u8);
}

/// RFC 9000 section 16.
fn varint(frame: &mut Vec<u8>, value: u64) {
    match value {
        0..64 => frame.push(value as u8),
        64..16_384 => frame.extend_from_slice(&(value as u16 | 0x4000).to_be_bytes()),
        _ => frame.extend_from_slice(&(value as u32 | 0x8000_0000).to_be_bytes()),
    }
}

/// The request's bytes over QUIC.
pub(crate) fn request_of(exchange: &Exchange) -> Vec<u8> {
    match exchange {
        Exchange::Get { authority, path } => request(authority, path),
        Exchange::PingPong => b"PING".to_vec(),
    }
}

/// Reads the frames of a response on its request stream (RFC 9114 section 4.1). Sans-IO; the body
/// is counted by its frames and not kept.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// A frame's header, or a HEADERS frame, as far as it is here.
    kept: Vec<u8>,
    /// Bytes that are left of a frame that is passed over.
    pass: u64,
    /// The status of the response, not of those that inform.
    status: Option<u16>,
}

/// A field section beyond this is no response but an attack on memory.
const MAX_FIELDS: u64 = 16 * 1024;

impl Frames {
    /// Takes bytes of the stream.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> Result<(), BadAnswer> {
        loop {
            let passed = self.pass.min(bytes.len() as u64);
            self.pass -= passed;
            bytes = &bytes[passed as usize..];
            if bytes.is_empty() {
                return Ok(());
            }
            // Nearly always a frame's start comes whole, and is read where it lies.
            let used = if self.kept.is_empty() {
                self.frame(bytes)?
            } else {
                let before = self.kept.len();
                let mut all = std::mem::take(&mut self.kept);
                all.extend_from_slice(bytes);
                match self.frame(&all)? {
                    0 => {
                        self.kept = all;
                        return Ok(());
                    }
                    used => used - before,
                }
            };
            if used == 0 {
                self.kept.extend_from_slice(bytes);
                return Ok(());
            }
            bytes = &bytes[used..];
        }
    }

    /// The status, once the response's head was here and no frame is open.
    pub(crate) fn status(&self) -> Option<u16> {
        self.status.filter(|_| self.pass == 0 && self.kept.is_empty())
    }

    /// Reads one frame's start, as much of it as has to be whole. Zero: it is not.
    fn frame(&mut self, bytes: &[u8]) -> Result<usize, BadAnswer> {
        let Some((kind, first)) = read_varint(bytes) else { return Ok(0) };
        let Some((length, second)) = read_varint(&bytes[first..]) else { return Ok(0) };
        let head = first + second;
        match kind {
            HEADERS if self.status.is_none() => {
                if length > MAX_FIELDS {
                    return Err(BadAnswer("its head is too long"));
                }
                let end = head + length as usize;
                let Some(fields) = bytes.get(head..end) else { return Ok(0) };
                let status = status(fields).ok_or(BadAnswer("it has no status"))?;
                // Informational answers come before the real one (RFC 9110 section 15.2).
                self.status = Some(status).filter(|status| !(100..200).contains(status));
                return Ok(end);
            }
            DATA if self.status.is_none() => {
                return Err(BadAnswer("its body comes before its head"));
            }
            // DATA, trailers, and what nobody knows (RFC 9114 section 9).
            _ => self.pass = length,
        }
        Ok(head)
    }
}

fn read_varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let length = 1 << (bytes.first()? >> 6);
    let (first, rest) = bytes.get(..length)?.split_first()?;
    let value = rest.iter().fold(u64::from(first & 63), |sum, byte| (sum << 8) | u64::from(*byte));
    Some((value, length))
}

/// The status is the first field: pseudo-header fields come before others (RFC 9114 section 4.3).
fn status(fields: &[u8]) -> Option<u16> {
    // Both are 0 where no dynamic table is used.
    let [0, 0, line @ ..] = fields else { return None };
    let of_table = |index: u64| {
        STATUSES.iter().find_map(|(from, codes)| {
            codes.get(usize::try_from(index.checked_sub(*from)?).ok()?).copied()
        })
    };
    match line.first()? {
        0b1100_0000.. => of_table(read_integer(line, 6)?.0),
        first if first & 0b1101_0000 == 0b0101_0000 => {
            let (index, used) = read_integer(line, 4)?;
            of_table(index)?;
            digits(&line[used..])
        }
        _ => None,
    }
}

fn read_integer(bytes: &[u8], bits: u8) -> Option<(u64, usize)> {
    let most = (1u64 << bits) - 1;
    let value = u64::from(*bytes.first()?) & most;
    if value < most {
        return Some((value, 1));
    }
    // One byte more reaches far beyond the static table.
    let more = *bytes.get(1)?;
    (more < 128).then(|| (most + u64::from(more), 2))
}

/// Three digits as a string literal, plain or in Huffman's code (RFC 7541 section 5.2).
fn digits(literal: &[u8]) -> Option<u16> {
    let (length, used) = read_integer(literal, 7)?;
    let text = literal.get(used..used + usize::try_from(length).ok()?)?;
    let huffman = literal[0] & 0x80 != 0;
    let digits = if huffman { huffman_digits(text)? } else { text.try_into().ok()? };
    let plain: [u8; 3] = digits;
    std::str::from_utf8(&plain).ok()?.parse().ok().filter(|code| (100..600).contains(code))
}

/// RFC 7541 appendix B: `0`, `1` and `2` have five bits, the other digits six.
fn huffman_digits(text: &[u8]) -> Option<[u8; 3]> {
    let bits = text
        .iter()
        .try_fold(0u32, |sum, byte| (sum < 1 << 16).then_some((sum << 8) | u32::from(*byte)))?;
    let (mut left, mut digits) = (8 * text.len(), [0; 3]);
    for digit in &mut digits {
        let top = |count: usize| Some((bits >> left.checked_sub(count)?) & ((1 << count) - 1));
        (*digit, left) = match (top(5)?, top(6)) {
            (code @ 0..=2, _) => (b'0' + code as u8, left - 5),
            (_, Some(code @ 0b01_1001..=0b01_1111)) => (b'3' + (code - 0b01_1001) as u8, left - 6),
            _ => return None,
        };
    }
    Some(digits)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![kind];
        varint(&mut frame, payload.len() as u64);
        frame.extend_from_slice(payload);
        frame
    }

    fn read(bytes: &[u8]) -> Result<Option<u16>, BadAnswer> {
        let mut frames = Frames::default();
        frames.feed(bytes).map(|()| frames.status())
    }

    #[test]
    fn rfc9204_4_5_a_status_is_read_in_each_form() {
        for (fields, code) in [
            (&[0, 0, 0xc0 | 25][..], 200),
            (&[0, 0, 0xff, 0][..], 100),
            (&[0, 0, 0xff, 7][..], 425),
            (&[0, 0, 0x5f, 9, 3, b'2', b'0', b'6'][..], 206),
            // 429 in Huffman's code: 011010 00010 011111, and seven bits of padding.
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
    }

    #[test]
    fn rfc9114_4_1_an_answer_is_a_head_then_a_body_then_perhaps_trailers() {
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
    fn rfc9204_appendix_b_1_a_request_names_what_it_asks_for() {
        let bytes = request("h:4433", "/10k");
        assert_eq!(bytes[..2], [1, bytes.len() as u8 - 2]);
        assert_eq!(bytes[2..14], [0, 0, 0xd1, 0xd7, 0x50, 6, b'h', b':', b'4', b'4', b'3', b'3']);
        assert_eq!(bytes[14..21], [0x51, 4, b'/', b'1', b'0', b'k', 0xdd]);
        assert_eq!(bytes[21..24], [0x5f, 80, 17]);
        assert!(bytes.ends_with(concat!("firstflight/", env!("CARGO_PKG_VERSION")).as_bytes()));
    }

    proptest! {
        #[test]
        fn how_it_is_cut_makes_no_difference(cuts in proptest::collection::vec(1usize..40, 1..20)) {
            let bytes = [
                frame(0x21, b"grease"),
                frame(1, &[0, 0, 0xc0 | 24]),
                frame(1, &[&[0, 0, 0xc0 | 25][..], &[0x23; 90]].concat()),
                frame(0, &[b'x'; 70]),
                frame(0, b"y"),
            ]
            .concat();
            let (mut frames, mut rest) = (Frames::default(), &bytes[..]);
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
        fn any_bytes_are_an_answer_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes);
        }
    }
}
