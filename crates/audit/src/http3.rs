//! The part of HTTP/3 that an audit needs (RFC 9114), with only the static table of QPACK (RFC
//! 9204): our SETTINGS allow no dynamic table.

use firstflight_wire::{Input, put_varint};

use crate::http::{NotHttp, Response};

/// The start of a client's control stream: its type, and SETTINGS without entries.
pub(crate) const CONTROL_STREAM: [u8; 3] = [0x00, 0x04, 0x00];

/// Encodes a request without content: a HEADERS frame.
pub(crate) fn request(
    method: &str,
    authority: &str,
    path: &str,
    fields: &[(&str, &str)],
) -> Vec<u8> {
    // No dynamic table: required insert count and base are zero.
    let mut section = vec![0, 0];
    match method {
        "GET" => put_integer(&mut section, 0xc0, 6, 17),
        "HEAD" => put_integer(&mut section, 0xc0, 6, 18),
        "POST" => put_integer(&mut section, 0xc0, 6, 20),
        other => put_field(&mut section, ":method", other),
    }
    put_integer(&mut section, 0xc0, 6, 23); // :scheme https
    put_field(&mut section, ":authority", authority);
    put_field(&mut section, ":path", path);
    for (name, value) in fields {
        put_field(&mut section, &name.to_ascii_lowercase(), value);
    }
    let mut frame = Vec::new();
    put_varint(&mut frame, HEADERS);
    put_varint(&mut frame, section.len() as u64);
    frame.extend(section);
    frame
}

/// Parses the whole stream of a response. Interim responses are skipped.
pub(crate) fn parse(stream: &[u8]) -> Result<Response, NotHttp> {
    let mut input = Input(stream);
    let mut response: Option<Response> = None;
    while !input.0.is_empty() {
        let kind = input.varint().ok_or(NotHttp)?;
        let content = input.varint_vec().ok_or(NotHttp)?;
        match (kind, &mut response) {
            (DATA, Some(response)) => response.body.extend_from_slice(content),
            (HEADERS, None) => {
                let found = field_section(content)?;
                response = (found.status >= 200).then_some(found);
            }
            // Trailers and frames that an audit does not need.
            _ => {}
        }
    }
    response.ok_or(NotHttp)
}

/// Whether these bytes are a response, for fuzzing.
#[doc(hidden)]
pub fn is_response(stream: &[u8]) -> bool {
    parse(stream).is_ok()
}

/// Parses the fields that an audit needs from a field section (RFC 9204 section 4.5).
fn field_section(section: &[u8]) -> Result<Response, NotHttp> {
    let mut rest = section;
    let insert_count = integer(&mut rest, 8)?;
    integer(&mut rest, 7)?;
    if insert_count != 0 {
        return Err(NotHttp);
    }
    let mut found =
        Response { status: 0, software: String::new(), location: None, body: Vec::new() };
    while let Some(&first) = rest.first() {
        let (name, value) = match first {
            // Indexed field line, static; then one with a name reference; then a literal name.
            0xc0.. => static_entry(integer(&mut rest, 6)?),
            0x50..0x60 | 0x70..0x80 => {
                let (name, _) = static_entry(integer(&mut rest, 4)?);
                (name, string(&mut rest, 7)?)
            }
            0x20..0x40 => (string(&mut rest, 3)?, string(&mut rest, 7)?),
            _ => return Err(NotHttp),
        };
        match &*name {
            ":status" => found.status = value.parse().map_err(|_| NotHttp)?,
            "server" => found.software = value,
            "location" => found.location = Some(value),
            _ => {}
        }
    }
    if found.status == 0 { Err(NotHttp) } else { Ok(found) }
}

/// The entries of the static table (RFC 9204 appendix A) that an audit needs; others have no name.
fn static_entry(index: u64) -> (String, String) {
    let (name, value) = match index {
        12 => ("location", ""),
        92 => ("server", ""),
        24 => (":status", "103"),
        25 => (":status", "200"),
        26 => (":status", "304"),
        27 => (":status", "404"),
        28 => (":status", "503"),
        63 => (":status", "100"),
        64 => (":status", "204"),
        65 => (":status", "206"),
        66 => (":status", "302"),
        67 => (":status", "400"),
        68 => (":status", "403"),
        69 => (":status", "421"),
        70 => (":status", "425"),
        71 => (":status", "500"),
        _ => ("", ""),
    };
    (name.to_owned(), value.to_owned())
}

/// Parses a string literal: the bit for Huffman coding, then a length with a prefix of `bits` bits.
fn string(rest: &mut &[u8], bits: u32) -> Result<String, NotHttp> {
    let huffman = rest.first().ok_or(NotHttp)? >> bits & 1 == 1;
    let length = usize::try_from(integer(rest, bits)?).map_err(|_| NotHttp)?;
    let bytes = take(rest, length)?;
    match huffman {
        // An audit needs no value with other characters.
        true => Ok(decode_huffman(bytes).unwrap_or_default()),
        false => Ok(String::from_utf8_lossy(bytes).into_owned()),
    }
}

/// Parses an integer with a prefix of `bits` bits (RFC 7541 section 5.1).
fn integer(rest: &mut &[u8], bits: u32) -> Result<u64, NotHttp> {
    let max = (1 << bits) - 1;
    let mut value = u64::from(take(rest, 1)?[0]) & max;
    if value < max {
        return Ok(value);
    }
    for shift in (0..56).step_by(7) {
        let byte = take(rest, 1)?[0];
        value += u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(NotHttp)
}

fn put_integer(out: &mut Vec<u8>, flags: u8, bits: u32, value: usize) {
    let max = (1 << bits) - 1;
    if value < max {
        out.push(flags | value as u8);
        return;
    }
    out.push(flags | max as u8);
    let mut rest = value - max;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// A literal field line with a literal name.
fn put_field(out: &mut Vec<u8>, name: &str, value: &str) {
    put_integer(out, 0x20, 3, name.len());
    out.extend_from_slice(name.as_bytes());
    put_integer(out, 0x00, 7, value.len());
    out.extend_from_slice(value.as_bytes());
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], NotHttp> {
    let (taken, remaining) = rest.split_at_checked(length).ok_or(NotHttp)?;
    *rest = remaining;
    Ok(taken)
}

/// Decodes the Huffman code of RFC 7541 appendix B, with codes of at most 15 bits: printable ASCII
/// without the backslash. The code is canonical: codes of a length are consecutive, in the order of
/// their symbols, so a list of the symbols of each length is enough.
fn decode_huffman(bytes: &[u8]) -> Option<String> {
    let (mut out, mut code, mut length) = (String::new(), 0_u32, 0);
    for bit in bytes.iter().flat_map(|byte| (0..8).rev().map(move |at| byte >> at & 1)) {
        code = code << 1 | u32::from(bit);
        length += 1;
        if let Some(symbol) = huffman_symbol(code, length) {
            out.push(char::from(symbol));
            (code, length) = (0, 0);
        } else if length == 15 {
            return None;
        }
    }
    // The padding is the start of the longest code: ones.
    (length < 8 && code == (1 << length) - 1).then_some(out)
}

fn huffman_symbol(code: u32, length: usize) -> Option<u8> {
    let (mut first_code, mut code_length) = (0, 5);
    for (bits, symbols) in HUFFMAN_SYMBOLS {
        first_code <<= bits - code_length;
        code_length = *bits;
        if length == *bits {
            return symbols.get(code.checked_sub(first_code)? as usize).copied();
        }
        first_code += symbols.len() as u32;
    }
    None
}

const HUFFMAN_SYMBOLS: &[(usize, &[u8])] = &[
    (5, b"012aceiost"),
    (6, b" %-./3456789=A_bdfghlmnpru"),
    (7, b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"),
    (8, b"&*,;XZ"),
    (10, b"!\"()?"),
    (11, b"'+|"),
    (12, b"#>"),
    (13, b"\0$@[]~"),
    (14, b"^}"),
    (15, b"<`{"),
];

const DATA: u64 = 0;
const HEADERS: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc7541_c_4_huffman_coded_strings() {
        for (code, text) in [
            ("f1e3c2e5f23a6ba0ab90f4ff", "www.example.com"),
            ("a8eb10649cbf", "no-cache"),
            ("6402", "302"),
            ("d07abe941054d444a8200595040b8166e082a62d1bff", "Mon, 21 Oct 2013 20:13:21 GMT"),
            ("9d29ad171863c78f0b97c8e9ae82ae43d3", "https://www.example.com"),
        ] {
            assert_eq!(decode_huffman(&hex::decode(code).unwrap()).as_deref(), Some(text));
        }
        assert_eq!(decode_huffman(&[0xff, 0xff, 0xff]), None, "padding of more than seven bits");
    }

    #[test]
    fn rfc7541_c_1_integers() {
        let mut rest: &[u8] = &[0x1f, 0x9a, 0x0a];
        assert_eq!(integer(&mut rest, 5), Ok(1337));
        let mut out = Vec::new();
        put_integer(&mut out, 0, 5, 1337);
        assert_eq!(out, [0x1f, 0x9a, 0x0a]);
        assert_eq!(integer(&mut &[0xff; 20][..], 7), Err(NotHttp));
    }

    #[test]
    fn rfc9114_4_1_a_response() {
        // An interim response, then 425 by its index, server and location, and content in two frames.
        let interim = [1, 3, 0, 0, 0xc0 | 24];
        let mut section = vec![0, 0];
        put_integer(&mut section, 0xc0, 6, 70);
        put_integer(&mut section, 0x50, 4, 92);
        section.extend(b"\x05nginx");
        put_field(&mut section, "location", "/a");
        let head = [&[1, section.len() as u8], &section[..]].concat();
        let stream = [&interim[..], &head, &[0, 2, b'a', b'b', 0x21, 1, 9, 0, 1, b'c']].concat();
        let response = parse(&stream).unwrap();
        assert_eq!((response.status, &*response.software), (425, "nginx"));
        assert_eq!((response.location.as_deref(), &*response.body), (Some("/a"), &b"abc"[..]));
        for end in 0..interim.len() + head.len() {
            assert_eq!(parse(&stream[..end]), Err(NotHttp), "{end}");
        }
        // A dynamic table was not permitted.
        assert_eq!(parse(&[1, 3, 1, 0, 0x80]), Err(NotHttp));
    }

    #[test]
    fn rfc9204_4_5_a_request_is_encoded() {
        let frame = request("GET", "a", "/x?firstflight=1", &[("Early-Data", "1")]);
        assert_eq!(frame[..6], [1, frame[1], 0, 0, 0xd1, 0xd7]);
        assert_eq!(usize::from(frame[1]), frame.len() - 2);
        let text = String::from_utf8_lossy(&frame);
        assert!(text.contains("early-data") && text.contains("/x?firstflight=1"), "{text}");
    }
}
