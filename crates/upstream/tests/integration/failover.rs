//! HTTP/2 servers that have not processed a request (RFC 9113 section 8.7).

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use firstflight_upstream::{Protocol, ServerHealth};
use http::Response;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::peer::Peer;
use crate::pool::{pool, send};

/// The start of a server's preface.
const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";

/// Frames that end the first stream: a GOAWAY that excludes it, or RST_STREAM.
const GOAWAY: &[u8] = b"\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\0";
const REFUSED: &[u8] = b"\0\0\x04\x03\0\0\0\0\x01\0\0\0\x07";
const INTERNAL_ERROR: &[u8] = b"\0\0\x04\x03\0\0\0\0\x01\0\0\0\x02";

/// Reads the first request's HEADERS, and responds with a frame.
async fn refuse(mut stream: TcpStream, frame: &[u8]) {
    stream.write_all(SETTINGS).await.unwrap();
    stream.read_exact(&mut [0; 24]).await.unwrap();
    let mut kind = 0;
    while kind != 1 {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        kind = head[3];
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        stream.read_exact(&mut vec![0; length as usize]).await.unwrap();
    }
    stream.write_all(frame).await.unwrap();
    let _ = stream.read_to_end(&mut Vec::new()).await;
}

#[tokio::test]
async fn rfc9113_8_7_an_unprocessed_request_is_retried_on_another_server() {
    for (frame, method, body, retried) in [
        (REFUSED, "POST", "", true),
        (GOAWAY, "DELETE", "", true),
        (REFUSED, "POST", "text", false),
        (INTERNAL_ERROR, "POST", "", false),
        (INTERNAL_ERROR, "GET", "", true),
    ] {
        let refusing = Peer::raw(move |stream| refuse(stream, frame)).await;
        let peer = Peer::http2().await;
        let pool = pool(&[&refusing, &peer], |config| config.protocol = Protocol::Http2);
        let response = send(&pool, method, body).await;
        let what = format!("{frame:?} {method} {body}: {response:?}");
        assert_eq!(response.is_ok(), retried, "{what}");
        assert_eq!(pool.status().retries, u64::from(retried), "{what}");
    }
}

/// The only server of a pool restarts, or permits no further request on a connection.
#[tokio::test]
async fn rfc9113_8_7_the_only_server_gets_an_unprocessed_request_on_a_new_connection() {
    for (frame, method) in [(GOAWAY, "GET"), (GOAWAY, "POST"), (REFUSED, "GET"), (REFUSED, "POST")]
    {
        let first = AtomicBool::new(true);
        let peer = Peer::raw(move |stream| {
            let first = first.swap(false, Ordering::Relaxed);
            async move {
                if first {
                    return refuse(stream, frame).await;
                }
                let service = service_fn(async |_| {
                    Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("served"))))
                });
                let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service);
                drop(serving.await);
            }
        })
        .await;
        let pool = pool(&[&peer], |config| config.protocol = Protocol::Http2);
        assert_eq!(send(&pool, method, "").await.unwrap(), "served", "{frame:?} {method}");
        let status = pool.status();
        let server = &status.servers[0];
        assert_eq!((status.retries, server.totals.refused), (1, 1), "{frame:?} {method}");
        assert_eq!(server.state, ServerHealth::Up);
    }
}
