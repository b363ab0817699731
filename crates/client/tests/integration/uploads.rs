//! Bodies that a server responds to before it has read them.

use std::future::Future;
use std::net::SocketAddr;

use firstflight_client::{EarlyPolicy, Request, Target};
use firstflight_tls::TlsStream;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{ClientDir, ServerBehaviour, acceptor, send};

/// Far more than the buffers of the sockets hold.
const BODY_BYTES: usize = 8 << 20;

/// Responds to each connection over TLS or plain TCP.
async fn start<F>(tls: bool, respond: fn(Box<dyn Duplex>) -> F) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = acceptor(&ServerBehaviour::default());
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let stream: Box<dyn Duplex> = match tls {
                true => Box::new(TlsStream::accept(&acceptor, socket, true).await.unwrap()),
                false => Box::new(socket),
            };
            tokio::spawn(respond(stream));
        }
    });
    address
}

trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}
impl Duplex for TcpStream {}
impl Duplex for TlsStream<TcpStream> {}

fn post(tls: bool, address: SocketAddr) -> Request {
    let scheme = if tls { "https" } else { "http" };
    let target = Target::parse(&format!("{scheme}://localhost:{}/", address.port())).unwrap();
    let mut request = Request::get(target);
    request.method = http::Method::POST;
    request.body = vec![b'x'; BODY_BYTES].into();
    request
}

/// Reads the head of a request. The rest of what was read belongs to the body.
async fn read_head(stream: &mut Box<dyn Duplex>) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        stream.read_buf(&mut bytes).await.unwrap();
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            return bytes.split_off(end + 4);
        }
    }
}

/// Sends back what it reads, piece by piece.
async fn echo(mut stream: Box<dyn Duplex>) {
    let mut piece = read_head(&mut stream).await;
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {BODY_BYTES}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut remaining = BODY_BYTES;
    loop {
        stream.write_all(&piece).await.unwrap();
        stream.flush().await.unwrap();
        remaining -= piece.len();
        if remaining == 0 {
            return;
        }
        piece.clear();
        stream.read_buf(&mut piece).await.unwrap();
    }
}

/// Refuses the body and closes without reading it, which resets the connection.
async fn refuse(mut stream: Box<dyn Duplex>) {
    read_head(&mut stream).await;
    let response = b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 3\r\n\r\nbig";
    stream.write_all(response).await.unwrap();
    stream.flush().await.unwrap();
}

#[tokio::test]
async fn rfc9112_9_5_a_response_is_read_while_the_body_is_written() {
    for tls in [false, true] {
        let (dir, address) = (ClientDir::new(), start(tls, echo).await);
        for turn in ["full", "early"] {
            let client = dir.client(|config| config.early_data = EarlyPolicy::AnyMethod);
            let (report, body) = send(&client, post(tls, address)).await;
            assert_eq!(report.exit_code(), 0, "{turn}, TLS {tls}: {:?}", report.error);
            assert_eq!((report.status(), body.len()), (200, BODY_BYTES));
        }
    }
}

#[tokio::test]
async fn rfc9112_9_5_a_response_that_refuses_the_body_is_reported() {
    for tls in [false, true] {
        let (dir, address) = (ClientDir::new(), start(tls, refuse).await);
        for turn in 0..8 {
            let (report, body) = send(&dir.client(|_| {}), post(tls, address)).await;
            assert_eq!(report.exit_code(), 0, "{turn}, TLS {tls}: {:?}", report.error);
            assert_eq!((report.status(), body.as_str()), (413, "big"));
        }
    }
}

/// Without a response, the failure of the write is the error.
#[tokio::test]
async fn a_connection_that_ends_within_the_body_has_curls_exit_code() {
    async fn close(mut stream: Box<dyn Duplex>) {
        read_head(&mut stream).await;
    }
    let (dir, address) = (ClientDir::new(), start(false, close).await);
    let (report, _) = send(&dir.client(|_| {}), post(false, address)).await;
    assert!(matches!(report.exit_code(), 55 | 56), "{:?}", report.error);
}
