//! Requests whose bodies come late, stop, or have an unknown length.

use std::future::poll_fn;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use firstflight_upstream::{
    Body, BodyError, Pool, PoolConfig, Protocol, SendOptions, ServerHealth,
};
use futures_util::{StreamExt, stream};
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::peer::{Peer, ok};
use crate::pool::{TEST_TIMEOUT, pool, settled, text};

#[tokio::test]
async fn an_incomplete_upload_does_not_count_against_the_server() {
    let peer = Peer::raw(|mut stream| async move {
        crate::peer::head(&mut stream).await;
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
    })
    .await;
    let pool = pool(&[&peer], |config| {
        config.response_timeout = Some(Duration::from_millis(100));
    });
    let local = ([192, 0, 2, 9], 443).into();
    let options = SendOptions { client: local, local, once: false, observer: &() };
    for silent in [true, false] {
        for _ in 0..3 {
            let half = stream::once(async { Ok(Frame::data(Bytes::from("half"))) });
            let rest = async move {
                match silent {
                    true => std::future::pending().await,
                    false => Err::<Frame<Bytes>, BodyError>("gone".into()),
                }
            };
            let body = StreamBody::new(half.chain(stream::once(rest))).boxed_unsync();
            let request = Request::post("/").header("host", "a.test").body(body).unwrap();
            let error = pool.send(request, &options).await.unwrap_err();
            let expected = if silent { "client_stalled" } else { "client_gone" };
            assert_eq!(error.name(), expected, "{error:?}");
        }
    }
    let server = pool.status().servers.remove(0);
    assert_eq!((server.state, server.totals.abandoned), (ServerHealth::Up, 6));
}

/// A request whose client sends only a first part of the body.
fn half_a_request() -> Request<Body> {
    let half = stream::once(async { Ok::<_, BodyError>(Frame::data(Bytes::from("half"))) });
    let body = StreamBody::new(half.chain(stream::pending())).boxed_unsync();
    Request::post("/").header("host", "a.test").body(body).unwrap()
}

#[tokio::test]
async fn rfc9112_9_5_an_upload_without_progress_ends_after_its_response() {
    let (closed, mut closes) = mpsc::unbounded_channel();
    let peer = Peer::raw(move |mut stream| {
        let closed = closed.clone();
        async move {
            crate::peer::head(&mut stream).await;
            stream.write_all(&crate::peer::response("404 Not Found", "")).await.unwrap();
            let _ = stream.read_to_end(&mut Vec::new()).await;
            closed.send(()).unwrap();
        }
    })
    .await;
    let pool = pool(&[&peer], |config| {
        config.response_timeout = Some(Duration::from_secs(2));
    });
    let local = ([192, 0, 2, 9], 443).into();
    let options = SendOptions { client: local, local, once: false, observer: &() };
    let response = pool.send(half_a_request(), &options).await.unwrap();
    assert_eq!(response.status(), StatusCode::NOT_FOUND);
    response.into_body().collect().await.unwrap();
    // The request counts as long as it holds a connection.
    assert_eq!(pool.status().servers[0].in_flight, 1);
    timeout(TEST_TIMEOUT, closes.recv()).await.unwrap();
    settled(&pool).await;
    let server = pool.status().servers.remove(0);
    assert_eq!((server.cached_connections, server.state), (0, ServerHealth::Up));
}

#[tokio::test]
async fn rfc9113_8_1_an_upload_without_progress_ends_after_its_response() {
    let (ended, mut ends) = mpsc::unbounded_channel();
    let peer = Peer::http2_with(move |request| {
        let ended = ended.clone();
        tokio::spawn(async move {
            ended.send(request.into_body().collect().await.is_err()).unwrap();
        });
        async { Response::new(Full::default()) }
    })
    .await;
    let pool = pool(&[&peer], |config| {
        config.protocol = Protocol::Http2;
        config.response_timeout = Some(Duration::from_secs(2));
    });
    let local = ([192, 0, 2, 9], 443).into();
    let options = SendOptions { client: local, local, once: false, observer: &() };
    let response = pool.send(half_a_request(), &options).await.unwrap();
    response.into_body().collect().await.unwrap();
    assert_eq!(pool.status().servers[0].in_flight, 1);
    assert_eq!(timeout(TEST_TIMEOUT, ends.recv()).await.unwrap(), Some(true));
    settled(&pool).await;
    // Other requests continue on the connection.
    assert_eq!(pool.status().servers[0].cached_connections, 1);
}

/// The server does not read the body, so hyper never polls for the next part.
#[tokio::test]
async fn rfc9113_5_2_an_upload_that_waits_for_its_server_is_dropped() {
    let (unread, mut unread_bodies) = mpsc::unbounded_channel();
    let peer = Peer::http2_with(move |request| {
        unread.send(request.into_body()).unwrap();
        async { Response::new(Full::default()) }
    })
    .await;
    let pool = pool(&[&peer], |config| {
        config.protocol = Protocol::Http2;
        config.response_timeout = Some(Duration::from_secs(1));
    });
    let (sender, receiver) = mpsc::channel::<Bytes>(1);
    let parts = stream::unfold(receiver, |mut receiver| async {
        let part = receiver.recv().await?;
        Some((Ok::<_, BodyError>(Frame::data(part)), receiver))
    });
    let request = Request::post("/").header("host", "a.test");
    let request = request.body(StreamBody::new(parts).boxed_unsync());
    let uploading = tokio::spawn(async move {
        // Ends when the body is dropped.
        while sender.send(Bytes::from_static(&[0; 16_384])).await.is_ok() {}
    });
    let local = ([192, 0, 2, 9], 443).into();
    let options = SendOptions { client: local, local, once: false, observer: &() };
    let response = pool.send(request.unwrap(), &options).await.unwrap();
    response.into_body().collect().await.unwrap();
    timeout(TEST_TIMEOUT, uploading).await.expect("the body is dropped").unwrap();
    drop(unread_bodies.recv().await);
    settled(&pool).await;
}

#[tokio::test]
async fn an_upload_may_continue_after_its_response() {
    let peer = Peer::raw(|mut stream| async move {
        while crate::peer::head(&mut stream).await.is_some() {
            stream.write_all(&ok("early")).await.unwrap();
            let mut body = Vec::new();
            while !body.ends_with(b"0\r\n\r\n") {
                body.push(stream.read_u8().await.unwrap());
            }
        }
    })
    .await;
    let pool = pool(&[&peer], |_| ());
    let local = ([192, 0, 2, 9], 443).into();
    let options = SendOptions { client: local, local, once: false, observer: &() };
    for _ in 0..2 {
        let (rest, parts) = mpsc::unbounded_channel::<Result<_, BodyError>>();
        let parts = stream::unfold(parts, |mut parts| async { Some((parts.recv().await?, parts)) });
        let request = Request::post("/").header("host", "a.test");
        let request = request.body(StreamBody::new(parts).boxed_unsync()).unwrap();
        rest.send(Ok(Frame::data(Bytes::from("half")))).unwrap();
        let response = pool.send(request, &options).await.unwrap();
        assert_eq!(text(response.into_body().collect().await.unwrap()), "early");
        assert_eq!(pool.status().servers[0].in_flight, 1);
        rest.send(Ok(Frame::data(Bytes::from("rest")))).unwrap();
        drop(rest);
        settled(&pool).await;
        assert_eq!(pool.status().servers[0].cached_connections, 1);
    }
    assert_eq!(pool.status().servers[0].connections, 1);
}

#[tokio::test]
async fn rfc9112_9_5_a_response_before_the_end_of_an_upload_is_delivered() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let (arrived, arrives) = std::sync::mpsc::channel();
    let (closed, closes) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.extend(byte);
            }
            // A part of the body is not read, so closing resets the connection.
            stream.peek(&mut [0]).unwrap();
            let response = b"HTTP/1.1 413 Content Too Large\r\nConnection: close\r\n\
                Content-Length: 5\r\n\r\nlarge";
            stream.write_all(response).unwrap();
            arrived.send(()).unwrap();
            drop(stream);
            closed.send(()).unwrap();
        }
    });
    let pool = Pool::new("test", PoolConfig::new(vec![address])).unwrap();
    let (arrives, closes) = (Arc::new(Mutex::new(arrives)), Arc::new(Mutex::new(closes)));
    let local = ([192, 0, 2, 9], 443).into();
    let options = SendOptions { client: local, local, once: false, observer: &() };
    for _ in 0..4 {
        let (arrives, closes) = (arrives.clone(), closes.clone());
        let first = stream::once(async { Ok(Frame::data(Bytes::from("first"))) });
        // Blocks the thread of the connection, so that it writes before it reads the response.
        let second = stream::once(poll_fn(move |cx| {
            if arrives.lock().unwrap().try_recv().is_err() {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            closes.lock().unwrap().recv().unwrap();
            Poll::Ready(Ok::<_, BodyError>(Frame::data(Bytes::from("second"))))
        }));
        let rest = stream::repeat_with(|| Ok(Frame::data(Bytes::from("rest"))));
        let body = StreamBody::new(first.chain(second).chain(rest)).boxed_unsync();
        let request = Request::post("/").header("host", "a.test").body(body).unwrap();
        let response = pool.send(request, &options).await.unwrap();
        assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(text(response.into_body().collect().await.unwrap()), "large");
    }
    settled(&pool).await;
    let server = pool.status().servers.remove(0);
    assert_eq!((server.state, server.totals.broken), (ServerHealth::Up, 0));
}

#[tokio::test]
async fn an_incomplete_upload_during_a_response_does_not_count_against_the_server() {
    let peer = Peer::raw(|mut stream| async move {
        crate::peer::head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf").await.unwrap();
        let _ = stream.read_to_end(&mut Vec::new()).await;
    })
    .await;
    let pool = pool(&[&peer], |config| config.body_timeout = Duration::from_millis(100));
    let local = ([192, 0, 2, 9], 443).into();
    let options = SendOptions { client: local, local, once: false, observer: &() };
    for breaks in [true, false] {
        for _ in 0..3 {
            let (break_off, broken) = oneshot::channel::<()>();
            let half = stream::once(async { Ok(Frame::data(Bytes::from("half"))) });
            let rest = stream::once(async {
                let _ = broken.await;
                Err::<Frame<Bytes>, BodyError>("gone".into())
            });
            let body = StreamBody::new(half.chain(rest)).boxed_unsync();
            let request = Request::post("/").header("host", "a.test").body(body).unwrap();
            let mut response = pool.send(request, &options).await.unwrap().into_body();
            assert_eq!(response.frame().await.unwrap().unwrap().into_data().unwrap(), "half");
            let _silent = match breaks {
                true => break_off.send(()).err().map(|()| unreachable!()),
                false => Some(break_off),
            };
            assert!(response.frame().await.unwrap().is_err());
        }
    }
    let totals = pool.status().servers.remove(0).totals;
    assert_eq!((totals.abandoned, totals.bodies_broken, totals.bodies_stalled), (6, 0, 0));
}

#[tokio::test]
async fn rfc9112_6_1_a_body_of_unknown_length_is_sent_with_every_method() {
    let seen = Arc::<Mutex<Vec<String>>>::default();
    let recorded = seen.clone();
    let peer = Peer::raw(move |mut stream| {
        let recorded = recorded.clone();
        async move {
            while let Some(head) = crate::peer::head(&mut stream).await {
                let mut body = Vec::new();
                while !body.ends_with(b"0\r\n\r\n") {
                    body.push(stream.read_u8().await.unwrap());
                }
                let coding = head.contains(&"transfer-encoding: chunked".to_owned());
                let body = String::from_utf8(body).unwrap();
                recorded.lock().unwrap().push(format!("{} {coding} {body}", head[0]));
                stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
            }
        }
    })
    .await;
    let pool = pool(&[&peer], |config| config.response_timeout = Some(Duration::from_secs(5)));
    let local = ([192, 0, 2, 9], 443).into();
    let options = SendOptions { client: local, local, once: false, observer: &() };
    for method in ["GET", "HEAD", "OPTIONS", "TRACE", "DELETE", "POST"] {
        let body = stream::once(async { Ok::<_, BodyError>(Frame::data(Bytes::from("hello"))) });
        let body = StreamBody::new(body).boxed_unsync();
        let request = Request::builder().method(method).uri("/").header("host", "a.test");
        let response = pool.send(request.body(body).unwrap(), &options).await.unwrap();
        assert_eq!(response.status(), StatusCode::NO_CONTENT, "{method}");
        let seen = seen.lock().unwrap().pop().unwrap();
        assert_eq!(seen, format!("{method} / HTTP/1.1 true 5\r\nhello\r\n0\r\n\r\n"));
    }
}
