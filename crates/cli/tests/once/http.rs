//! A minimal HTTP/1.1 and HTTP/2 client for one GET. The request is written in one piece, so that
//! all of it is early data.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Sends a GET, reads the whole response and returns its status.
pub(crate) async fn exchange<S>(stream: &mut S, is_http2: bool, target: &str) -> io::Result<u16>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    match is_http2 {
        true => {
            stream.write_all(&http2_request(target)).await?;
            stream.flush().await?;
            http2_response(stream).await
        }
        false => {
            stream.write_all(http1_request(target).as_bytes()).await?;
            stream.flush().await?;
            http1_response(stream).await
        }
    }
}

/// A complete HTTP/1.1 request, the last one on its connection.
pub(crate) fn http1_request(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
}

/// Reads to the end of the connection.
async fn http1_response<S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<u16> {
    let mut all = Vec::new();
    let ended = stream.read_to_end(&mut all).await;
    status_of(&all).ok_or_else(|| {
        let ended = ended.err();
        ended.unwrap_or_else(|| io::Error::other("the server closed without a response"))
    })
}

/// The status in a response of HTTP/1.1.
pub(crate) fn status_of(response: &[u8]) -> Option<u16> {
    let line = response.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    std::str::from_utf8(line).ok()?.parse().ok()
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Preface, empty settings and the request on stream 1 (RFC 9113 section 3.4). Fields are indexed
/// or literal without indexing (RFC 7541 section 6).
fn http2_request(target: &str) -> Vec<u8> {
    let mut block = vec![0x82, 0x87];
    for (name, value) in [(1, "localhost"), (4, target)] {
        block.extend([name, u8::try_from(value.len()).unwrap()]);
        block.extend(value.as_bytes());
    }
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[]));
    bytes.extend(frame(HEADERS, END_STREAM | END_HEADERS, 1, &block));
    bytes
}

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    [&[0, 0, length, kind, flags, 0, 0, 0, stream], payload].concat()
}

/// Reads to the end of stream 1.
async fn http2_response<S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<u16> {
    let mut status = None;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        stream.read_exact(&mut payload).await?;
        let (kind, flags) = (head[3], head[4]);
        match kind {
            HEADERS => status = http2_status(&payload),
            RST_STREAM | GOAWAY if status.is_none() => {
                return Err(io::Error::other(format!("frame {kind} {payload:?}")));
            }
            _ => {}
        }
        if matches!(kind, HEADERS | DATA) && flags & END_STREAM != 0 {
            return status.ok_or_else(|| io::Error::other("unknown :status"));
        }
    }
}

/// Decodes the first field of a block, `:status`: an entry of the static table, or a literal that
/// uses the name of one (RFC 7541 appendix A), with plain or Huffman-coded digits.
fn http2_status(block: &[u8]) -> Option<u16> {
    const INDEXED: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];
    match block {
        [index @ 0x88..=0x8e, ..] => Some(INDEXED[usize::from(index - 0x88)]),
        // RFC 7541 appendix B: "425" is 011010 00010 011011.
        [0x08..=0x0e | 0x48..=0x4e, 0x83, 0x68, 0x4d, 0xff, ..] => Some(425),
        [0x08..=0x0e | 0x48..=0x4e, 3, digits @ ..] => {
            std::str::from_utf8(digits.get(..3)?).ok()?.parse().ok()
        }
        _ => None,
    }
}
