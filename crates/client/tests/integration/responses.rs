//! Responses that a server writes byte by byte.

use firstflight_client::{Request, Target};
use firstflight_tls::TlsStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::{ClientDir, ServerBehaviour, acceptor, send};

/// Responds to the request of each connection with `response`, and leaves it to the client to close.
async fn start(alpn: &'static str, response: Vec<u8>) -> Target {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}/", listener.local_addr().unwrap().port());
    let acceptor = acceptor(&ServerBehaviour { alpn, ..ServerBehaviour::default() });
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let mut tls = TlsStream::accept(&acceptor, socket, true).await.unwrap();
            let mut buffer = [0; 4096];
            // The client reads only after it has written its request.
            assert!(tls.read(&mut buffer).await.unwrap() > 0);
            tls.write_all(&response).await.unwrap();
            tls.flush().await.unwrap();
            while tls.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
        }
    });
    Target::parse(&url).unwrap()
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// RFC 9113 section 4.1.
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
}

/// SETTINGS, and a head with status 200 and these fields, encoded.
fn head(fields: &[u8]) -> Vec<u8> {
    // RFC 7541 appendix A: 8 is `:status: 200`.
    let fields = [&[0x88], fields].concat();
    [frame(SETTINGS, 0, 0, &[]), frame(HEADERS, END_HEADERS, 1, &fields)].concat()
}

#[tokio::test]
async fn rfc9113_8_1_only_end_stream_ends_a_body() {
    let start_of_body = [head(&[]), frame(DATA, 0, 1, b"hell")].concat();
    let no_error = frame(RST_STREAM, 0, 1, &[0; 4]);
    let cases = [
        (no_error.clone(), 18, "hell"),
        // No stream was processed.
        (frame(GOAWAY, 0, 0, &[0; 8]), 18, "hell"),
        // A response that is complete before the request is.
        ([frame(DATA, END_STREAM, 1, b"o"), no_error].concat(), 0, "hello"),
    ];
    for (end, code, expected) in cases {
        let url = start("h2", [start_of_body.clone(), end].concat()).await;
        // More than a stream's window (RFC 9113 section 6.9.2).
        let body = vec![b'x'; 1 << 17].into();
        let post = Request { method: http::Method::POST, body, ..Request::get(url) };
        let (report, body) = send(&ClientDir::new().client(|_| {}), post).await;
        assert_eq!((report.exit_code(), body.as_str()), (code, expected), "{:?}", report.error);
    }
}

#[tokio::test]
async fn http2_resets_have_curls_exit_codes() {
    let settings = frame(SETTINGS, 0, 0, &[]);
    // RFC 9113 section 7: INTERNAL_ERROR.
    let reset = frame(RST_STREAM, 0, 1, &[0, 0, 0, 2]);
    let within = [head(&[]), frame(DATA, 0, 1, b"hell")].concat();
    let goaway = frame(GOAWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 2]);
    for (response, code) in [
        ([settings.clone(), reset.clone()].concat(), 92),
        ([within, reset].concat(), 92),
        ([settings, goaway].concat(), 16),
    ] {
        let request = Request::get(start("h2", response).await);
        let (report, _) = send(&ClientDir::new().client(|_| {}), request).await;
        assert_eq!(report.exit_code(), code, "{:?}", report.error);
    }
}

#[tokio::test]
async fn large_heads_are_read() {
    // 33 bytes each (RFC 9113 section 6.5.2), 19 800 together.
    let many = head(&b"\x00\x01a\x00".repeat(600));
    let over_http2 = [many, frame(DATA, END_STREAM, 1, b"hello")].concat();
    let many = "a: b\r\n".repeat(600);
    let over_http1 = format!("HTTP/1.1 200 OK\r\n{many}Content-Length: 5\r\n\r\nhello");
    for (alpn, response) in [("h2", over_http2), ("http/1.1", over_http1.into_bytes())] {
        let request = Request::get(start(alpn, response).await);
        let (report, body) = send(&ClientDir::new().client(|_| {}), request).await;
        assert_eq!((report.exit_code(), body.as_str()), (0, "hello"), "{:?}", report.error);
        assert_eq!(report.head.unwrap().headers.get_all("a").iter().count(), 600);
    }
}
