//! ClientHello and request leave in one write, before anything is read.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use firstflight_client::{Exchange, Request, SharedStream, Stream, connect_tls, http_get};
use firstflight_tls::{ConnectOptions, Connector, ConnectorConfig, EarlyData, TlsStream, Trust};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::support::{Server, ServerBehaviour};

/// Records the length of each write before the first byte is read.
struct WriteRecorder {
    socket: TcpStream,
    writes: Arc<Mutex<Vec<usize>>>,
    read: bool,
}

impl AsyncRead for WriteRecorder {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.socket).poll_read(cx, buffer);
        self.read |= !buffer.filled().is_empty();
        result
    }
}

impl AsyncWrite for WriteRecorder {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.socket).poll_write(cx, data);
        if let (false, Poll::Ready(Ok(count))) = (self.read, &result) {
            self.writes.lock().unwrap().push(*count);
        }
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

#[tokio::test]
async fn a_get_over_http1_leaves_in_one_write() {
    assert_one_write("http/1.1", b"").await;
}

#[tokio::test]
async fn a_get_over_http2_leaves_in_one_write() {
    assert_one_write("h2", b"").await;
}

#[tokio::test]
async fn a_post_over_http1_leaves_in_one_write() {
    assert_one_write("http/1.1", b"body").await;
}

#[tokio::test]
async fn a_post_over_http2_leaves_in_one_write() {
    assert_one_write("h2", b"body").await;
}

async fn assert_one_write(alpn: &'static str, body: &'static [u8]) {
    let server = Server::start(ServerBehaviour { alpn, ..ServerBehaviour::default() }).await;
    let mut config = ConnectorConfig::new(Trust::Anyone);
    config.alpn = vec![alpn.as_bytes().to_vec()];
    let connector = Connector::new(config).unwrap();
    let offer = ConnectOptions { host: "localhost".into(), ..ConnectOptions::default() };
    let connected = connect_tls(&connector, &offer, server.address, false).await.unwrap();
    let request = Request::get(server.url("/"));
    let response = http_get(connected, &request, 100).await.unwrap();
    assert_eq!(response.body, b"hello");
    let mut sessions = response.sessions;
    if sessions.is_empty() {
        sessions = response.exchange.close(Duration::from_secs(5)).await;
    }

    let socket = TcpStream::connect(server.address).await.unwrap();
    let writes = Arc::new(Mutex::new(Vec::new()));
    let recorder = WriteRecorder { socket, writes: writes.clone(), read: false };
    let offer = ConnectOptions { session: sessions.pop(), early_data: true, ..offer };
    let tls = TlsStream::connect(&connector, recorder, &offer).await.unwrap();
    assert!(tls.in_early_data());
    assert!(writes.lock().unwrap().is_empty(), "nothing leaves before the request");
    let stream = SharedStream::new(Stream::Tls(Box::new(tls)));
    let mut exchange = Exchange::open(stream.clone(), alpn == "h2").await.unwrap();
    let mut request = Request::get(server.url("/early"));
    if !body.is_empty() {
        request.method = http::Method::POST;
        request.body = body.into();
    }
    let (head, _) = exchange.send(&request).await.unwrap();
    assert_eq!(head.status, 200);
    assert_eq!(stream.facts().unwrap().early_data, EarlyData::Accepted);
    let writes = writes.lock().unwrap().clone();
    assert_eq!(writes.len(), 1, "one write before the first response: {writes:?}");
    assert!(writes[0] > stream.early_bytes() + 200, "with the ClientHello: {writes:?}");
    assert!(server.take_requests().last().unwrap().early);
}
