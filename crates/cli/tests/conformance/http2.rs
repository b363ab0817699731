//! HTTP/2 frames and header blocks of an attacker (RFC 9113, RFC 7541), without checks or state.

/// RFC 9113 section 3.4.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const ACK: u8 = 1;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// A field's name and value, of any bytes.
pub(crate) type Field = (Vec<u8>, Vec<u8>);

/// A frame of any kind.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The start of a connection: the preface and the settings, by identifier and value.
pub(crate) fn hello(settings: &[(u16, u32)]) -> Vec<u8> {
    let mut payload = Vec::new();
    for (identifier, value) in settings {
        payload.extend(identifier.to_be_bytes());
        payload.extend(value.to_be_bytes());
    }
    [PREFACE, &frame(SETTINGS, 0, 0, &payload)].concat()
}

/// A field, literal and not indexed (RFC 7541 section 6.2.2).
pub(crate) fn field(name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Vec<u8> {
    let (name, value) = (name.as_ref(), value.as_ref());
    let mut block = vec![0];
    integer(&mut block, 7, 0, name.len());
    block.extend(name);
    integer(&mut block, 7, 0, value.len());
    block.extend(value);
    block
}

/// A literal field for the dynamic table (RFC 7541 section 6.2.1).
pub(crate) fn indexed_field(name: &str, value: &[u8]) -> Vec<u8> {
    let mut block = field(name, value);
    block[0] = 0x40;
    block
}

/// The header block of a request without Content-Length.
pub(crate) fn request(method: &str, path: &str) -> Vec<u8> {
    let fields =
        [(":method", method), (":scheme", "https"), (":authority", "localhost"), (":path", path)];
    fields.iter().flat_map(|(name, value)| field(name, value)).collect()
}

/// A complete GET on a stream.
pub(crate) fn get(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &request("GET", path))
}

/// An integer with a prefix (RFC 7541 section 5.1), which QPACK has too.
pub(crate) fn integer(out: &mut Vec<u8>, prefix: u32, first: u8, value: usize) {
    let max = (1 << prefix) - 1;
    if value < max {
        return out.push(first | value as u8);
    }
    out.push(first | max as u8);
    let mut rest = value - max;
    while rest >= 128 {
        out.push((rest % 128) as u8 | 128);
        rest /= 128;
    }
    out.push(rest as u8);
}

/// A frame that a server sent: kind, flags, stream, payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: &'a [u8],
}

impl Frame<'_> {
    /// Whether it ends this stream, normally or by a reset.
    pub(crate) fn ends(&self, stream: u32) -> bool {
        let ended = matches!(self.kind, DATA | HEADERS) && self.flags & END_STREAM != 0;
        self.stream == stream && (ended || self.kind == RST_STREAM)
    }

    /// A number at this offset of the payload.
    pub(crate) fn number(&self, offset: usize) -> u32 {
        let bytes = self.payload.get(offset..offset + 4);
        bytes.map_or(u32::MAX, |bytes| u32::from_be_bytes(bytes.try_into().unwrap()))
    }
}

/// The complete frames in bytes that a server sent.
pub(crate) fn frames(mut bytes: &[u8]) -> Vec<Frame<'_>> {
    let mut frames = Vec::new();
    while bytes.len() >= 9 {
        let length =
            usize::from(bytes[0]) << 16 | usize::from(bytes[1]) << 8 | usize::from(bytes[2]);
        let Some(payload) = bytes.get(9..9 + length) else { break };
        let stream = u32::from_be_bytes(bytes[5..9].try_into().unwrap()) & 0x7fff_ffff;
        frames.push(Frame { kind: bytes[3], flags: bytes[4], stream, payload });
        bytes = &bytes[9 + length..];
    }
    frames
}

/// The status in a response's header block, if it is an entry of the static table or a literal, as
/// in the first response of a connection.
pub(crate) fn status(block: &[u8]) -> Option<u16> {
    // A change of the table's size may come first.
    let start = block.iter().position(|byte| byte & 0xe0 != 0x20)?;
    let block = &block[start..];
    match *block.first()? {
        byte @ 0x88..=0x8e => Some([200, 204, 206, 304, 400, 404, 500][usize::from(byte - 0x88)]),
        // A literal whose name is `:status`, its value of three digits plain or by Huffman.
        0x48 | 0x08 | 0x18 => match block.get(1..)? {
            [3, digits @ ..] => std::str::from_utf8(digits.get(..3)?).ok()?.parse().ok(),
            [0x82, bits @ ..] => huffman_status(bits.get(..2)?),
            [0x83, bits @ ..] => huffman_status(bits.get(..3)?),
            _ => None,
        },
        _ => None,
    }
}

/// Three digits by RFC 7541 appendix B: 0 to 2 have five bits, 3 to 9 have six.
fn huffman_status(bytes: &[u8]) -> Option<u16> {
    let mut bits =
        bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| u16::from(byte >> bit & 1)));
    let mut number = 0;
    for _ in 0..3 {
        let mut code = 0;
        for _ in 0..5 {
            code = code << 1 | bits.next()?;
        }
        let digit = match code {
            0..=2 => code,
            _ => (code << 1 | bits.next()?).checked_sub(0x19)? + 3,
        };
        number = number * 10 + digit;
    }
    Some(number)
}
