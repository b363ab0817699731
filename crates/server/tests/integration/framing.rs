//! HTTP/1.1 requests whose end servers may disagree about, with and without early data.

use std::convert::Infallible;
use std::sync::Arc;

use firstflight_config::{Action, Content, Route};
use firstflight_upstream::Protocol;
use futures_util::stream;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::body::Bytes;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;

use crate::support::{Client, RunningServer, connect_tls, fetch, start_upstream};

const FOLLOWING_REQUESTS: &str = "GET /second HTTP/1.1\r\nHost: h\r\n\r\n\
                    GET /third HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";

/// Trailer sections with a line that ends in a bare LF.
const BARE_LF: [&str; 4] = ["\n", "X: a\n\r\n", "X: a\n\n", "X: a\r\n\n"];

fn chunked(method: &str, trailers: &str) -> String {
    format!(
        "{method} /first HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
         5\r\nhello\r\n0\r\n{trailers}{FOLLOWING_REQUESTS}"
    )
}

async fn send_early(server: &RunningServer, requests: &str) -> String {
    let session = server.session("http/1.1").await;
    let client = Client::prepare("http/1.1", Some(&session), requests.as_bytes());
    client.run(server.address).await
}

#[tokio::test]
async fn rfc9112_7_1_2_a_bare_lf_in_a_trailer_section_smuggles_no_request() {
    let upstream = start_upstream();
    for server in
        [RunningServer::proxy(&upstream, |_| ()).await, RunningServer::files(|_| ()).await]
    {
        for trailers in BARE_LF {
            let requests = chunked("POST", trailers);
            for response in
                [fetch(server.address, &requests).await, send_early(&server, &requests).await]
            {
                assert!(response.starts_with("HTTP/1.1 400 "), "{requests:?}: {response}");
                assert_eq!(response.matches("HTTP/1.1 ").count(), 1, "{requests:?}: {response}");
            }
        }
        server.stop().await;
    }
    assert!(upstream.recorded("second").is_empty() && upstream.recorded("third").is_empty());
}

#[tokio::test]
async fn rfc9110_6_5_trailers_follow_a_response_of_known_length() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let service = service_fn(|_| async {
            let trailers = HeaderMap::from_iter([(header::ETAG, HeaderValue::from_static("t"))]);
            let frames = [Frame::data(Bytes::from("hello")), Frame::trailers(trailers)];
            let body = StreamBody::new(stream::iter(frames.map(Ok::<_, Infallible>)));
            Response::builder().header("content-length", 5).header("trailer", "etag").body(body)
        });
        let (tcp, _) = listener.accept().await.unwrap();
        let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        serving.serve_connection(TokioIo::new(tcp), service).await.unwrap();
    });
    let mut content = Content::upstream(&url).unwrap();
    let Content::Sites(sites) = &mut content else { panic!("an upstream is a site") };
    sites.upstreams.values_mut().for_each(|pool| pool.protocol = Protocol::Http2);
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let server = RunningServer::start(dir, content, |_| ()).await;
    let io = TokioIo::new(connect_tls(server.address, "h2").await);
    let (mut client, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("https://localhost/").header("te", "trailers");
    let request = request.body(Empty::<Bytes>::new()).unwrap();
    let response = client.send_request(request).await.unwrap();
    assert_eq!(response.headers()["content-length"], "5");
    let body = response.into_body().collect().await.unwrap();
    assert_eq!(body.trailers().map(|trailers| &trailers["etag"]).unwrap(), "t");
    drop(client);
    let log = server.stop().await;
    assert_eq!(log[0]["complete"], true, "{log:?}");
}

#[tokio::test]
async fn rfc9110_6_4_1_responses_without_content_have_none_in_any_http_version() {
    let server = RunningServer::files(|config| {
        let Content::Sites(sites) = &mut config.content else { panic!("files are a site") };
        for code in [204, 205, 304] {
            let status = Action::Status(StatusCode::from_u16(code).unwrap());
            sites.sites[0].routes.push(Route::new(format!("/{code}"), status));
        }
    })
    .await;
    let io = TokioIo::new(connect_tls(server.address, "h2").await);
    let (mut client, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    for (method, target, status, length) in [
        ("HEAD", "/missing", 404, Some("14")),
        ("HEAD", "/", 200, Some("6")),
        ("GET", "/204", 204, None),
        ("GET", "/304", 304, None),
    ] {
        let request = Request::builder().method(method);
        let request = request.uri(format!("https://h{target}")).body(Empty::<Bytes>::new());
        // This client treats content as a protocol error.
        let response = client.send_request(request.unwrap()).await.unwrap();
        let head = (response.status().as_u16(), response.headers().get(header::CONTENT_LENGTH));
        assert_eq!((head.0, head.1.map(|length| length.to_str().unwrap())), (status, length));
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert!(body.is_empty(), "{method} {target}: {body:?}");
        let text = format!("{method} {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        let response = fetch(server.address, &text).await.to_ascii_lowercase();
        assert!(response.ends_with("\r\n\r\n"), "{response}");
        let field = response.lines().find_map(|line| line.strip_prefix("content-length: "));
        assert_eq!(field, length, "{response}");
    }
    // RFC 9110 section 15.3.6.
    let text = "GET /205 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    let response = fetch(server.address, text).await;
    assert!(response.contains("content-length: 0\r\n"), "{response}");
    assert!(response.ends_with("\r\n\r\n"), "{response}");
    server.stop().await;
}

#[tokio::test]
async fn rfc9112_7_1_2_requests_after_a_trailer_section_have_their_own_responses() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, |_| ()).await;
    let requests = chunked("POST", "X: a\r\nY: b\r\n\r\n");
    for response in [fetch(server.address, &requests).await, send_early(&server, &requests).await] {
        assert_eq!(response.matches("HTTP/1.1 200 ").count(), 3, "{response}");
    }
    for word in ["first", "second", "third"] {
        assert_eq!(upstream.recorded(word).len(), 2, "{word}");
    }
}

#[tokio::test]
async fn rfc9112_6_1_a_get_keeps_its_body_of_unknown_length() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, |_| ()).await;
    for method in ["GET", "OPTIONS", "DELETE"] {
        let requests = chunked(method, "\r\n");
        for response in
            [fetch(server.address, &requests).await, send_early(&server, &requests).await]
        {
            assert_eq!(response.matches("HTTP/1.1 200 ").count(), 3, "{response}");
        }
        let recorded: Vec<_> = upstream
            .recorded("first")
            .into_iter()
            .filter(|recorded| recorded.method == method)
            .collect();
        assert_eq!(recorded.len(), 2, "{method}");
        assert!(recorded.iter().all(|recorded| recorded.body == "hello"), "{method}: {recorded:?}");
    }
}
