//! Upstream servers.

use std::convert::Infallible;
use std::future::Future;
use std::net::Ipv4Addr;

use bytes::Bytes;
use firstflight_upstream::ServerAddress;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A server that ends with the test's runtime.
pub(crate) struct Peer {
    pub(crate) address: ServerAddress,
}

impl Peer {
    /// Sends `response` to each request; its argument is the lines of the request head.
    pub(crate) async fn http1(
        response: impl Fn(Vec<String>) -> Vec<u8> + Clone + Send + Sync + 'static,
    ) -> Self {
        Self::raw(move |mut stream| {
            let response = response.clone();
            async move {
                while let Some(lines) = head(&mut stream).await {
                    let length =
                        lines.iter().find_map(|line| line.strip_prefix("content-length: "));
                    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
                    stream.read_exact(&mut body).await.unwrap();
                    if stream.write_all(&response(lines)).await.is_err() {
                        return;
                    }
                }
            }
        })
        .await
    }

    /// Handles each connection with `serve`.
    pub(crate) async fn raw<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (listener, address) = listen().await;
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream));
            }
        });
        Self { address }
    }

    /// Echoes each request over HTTP/2.
    pub(crate) async fn http2() -> Self {
        Self::http2_with(|request| async {
            let requested = format!("{} {} ", request.method(), request.uri());
            let body = request.into_body().collect().await.unwrap().to_bytes();
            Response::new(Full::new([requested.as_bytes(), &body].concat().into()))
        })
        .await
    }

    /// Responds to each request over HTTP/2 with `respond`.
    pub(crate) async fn http2_with<F>(
        respond: impl Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
    {
        Self::raw(move |stream| {
            let respond = respond.clone();
            let service = service_fn(move |request| {
                let response = respond(request);
                async { Ok::<_, Infallible>(response.await) }
            });
            let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service);
            async { drop(serving.await) }
        })
        .await
    }

    /// An address where nothing listens.
    pub(crate) async fn dead() -> Self {
        Self { address: listen().await.1 }
    }
}

async fn listen() -> (TcpListener, ServerAddress) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    (listener, address)
}

/// The lines of a request's head, or `None` at the end of the connection.
pub(crate) async fn head(stream: &mut (impl AsyncRead + Unpin)) -> Option<Vec<String>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    Some(String::from_utf8(head).unwrap().lines().map(str::to_owned).collect())
}

/// An HTTP/1.1 response.
pub(crate) fn response(status: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// A response with status 200.
pub(crate) fn ok(body: &str) -> Vec<u8> {
    response("200 OK", body)
}
