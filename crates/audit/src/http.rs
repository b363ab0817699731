//! The part of HTTP/1.1 that an audit needs: parsing responses (RFC 9112).

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// The header field `server`.
    pub(crate) software: String,
    /// The header field `location`.
    pub(crate) location: Option<String>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    /// Whether the request was executed: 425 says that it was not.
    pub(crate) fn executed(&self) -> bool {
        self.status != TOO_EARLY
    }

    /// A field of a witness' body, which is a JSON object.
    pub(crate) fn field(&self, name: &str) -> Option<serde_json::Value> {
        let body: serde_json::Value = serde_json::from_slice(&self.body).ok()?;
        body.get(name).cloned()
    }
}

/// RFC 8470 section 5.2.
pub(crate) const TOO_EARLY: u16 = 425;

/// The length of the response at the start of `bytes`, for fuzzing. `None` if it is incomplete or
/// invalid.
#[doc(hidden)]
pub fn response_length(bytes: &[u8]) -> Option<usize> {
    parse(bytes).ok()?.map(|(_, length)| length)
}

/// Parses the response at the start of `bytes`. Returns it with its length, or `None` if it is
/// incomplete.
pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Response, usize)>, NotHttp> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut head = httparse::Response::new(&mut headers);
    let start = match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() < MAX_RESPONSE_BYTES => return Ok(None),
        _ => return Err(NotHttp),
    };
    let status = head.code.ok_or(NotHttp)?;
    let field = |name: &str| {
        let mut found = head.headers.iter().filter(|field| field.name.eq_ignore_ascii_case(name));
        found.next().map(|field| String::from_utf8_lossy(field.value).into_owned())
    };
    let rest = &bytes[start..];
    let body = match (field("content-length"), field("transfer-encoding")) {
        _ if status < 200 || status == 204 || status == 304 => Some((Vec::new(), 0)),
        (_, Some(coding)) if coding.eq_ignore_ascii_case("chunked") => chunked(rest)?,
        (Some(length), None) => {
            let length: usize = length.parse().map_err(|_| NotHttp)?;
            rest.get(..length).map(|body| (body.to_vec(), length))
        }
        // The body ends with the connection; an audit needs only the head.
        _ => Some((rest.to_vec(), rest.len())),
    };
    let Some((body, length)) = body else {
        return if bytes.len() < MAX_RESPONSE_BYTES { Ok(None) } else { Err(NotHttp) };
    };
    let software = field("server").unwrap_or_default();
    let response = Response { status, software, location: field("location"), body };
    Ok(Some((response, start + length)))
}

/// The bytes are not an HTTP response, or it is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotHttp;

/// Decodes a chunked body (RFC 9112 section 7.1) without trailers. Returns it with its
/// encoded length.
fn chunked(bytes: &[u8]) -> Result<Option<(Vec<u8>, usize)>, NotHttp> {
    let (mut body, mut at) = (Vec::new(), 0);
    loop {
        let (start, size) = match httparse::parse_chunk_size(&bytes[at..]) {
            Ok(httparse::Status::Complete((start, size))) => (at + start, size as usize),
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err(NotHttp),
        };
        if size > MAX_RESPONSE_BYTES {
            return Err(NotHttp);
        }
        let Some(chunk) = bytes.get(start..start + size + 2) else { return Ok(None) };
        body.extend_from_slice(&chunk[..size]);
        at = start + size + 2;
        if size == 0 {
            return Ok(Some((body, at)));
        }
    }
}

/// Longer responses are invalid: an audit should request something small.
const MAX_RESPONSE_BYTES: usize = 4 << 20;
const MAX_HEADERS: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_responses_need_more_bytes() {
        let first = b"HTTP/1.1 200 OK\r\nServer: a\r\nContent-Length: 3\r\n\r\nabc";
        for length in 0..first.len() {
            assert_eq!(parse(&first[..length]), Ok(None), "{length}");
        }
        let two = [&first[..], b"HTTP/1.1 425 Too Early\r\n"].concat();
        let (response, length) = parse(&two).unwrap().unwrap();
        assert_eq!((length, response.status, &*response.body), (first.len(), 200, &b"abc"[..]));
        assert!(response.executed());
        assert_eq!(parse(b"SSH-2.0-OpenSSH\r\n"), Err(NotHttp));
    }

    #[test]
    fn rfc9112_7_1_chunks_are_joined() {
        let text = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
        let (response, length) = parse(text).unwrap().unwrap();
        assert_eq!((&*response.body, length), (&b"abcde"[..], text.len()));
        assert_eq!(parse(&text[..text.len() - 1]), Ok(None));
    }

    #[test]
    fn rfc8470_5_2_too_early_is_no_execution() {
        let text = b"HTTP/1.1 425 Too Early\r\nContent-Length: 0\r\n\r\n";
        assert!(!parse(text).unwrap().unwrap().0.executed());
    }

    #[test]
    fn a_witness_counts_in_json() {
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n{\"executions\": 2}";
        let (response, _) = parse(text).unwrap().unwrap();
        assert_eq!(response.field("executions"), Some(2.into()));
        assert_eq!(response.field("early_data"), None);
    }
}
