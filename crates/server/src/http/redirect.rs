//! HTTP without TLS: each response redirects to the same URL with `https`.
//!
//! 308 keeps the method and the body. The redirect goes to the requested host, which has to be a
//! site's name if sites have names, so a forged link cannot redirect elsewhere. There is no early
//! data here and no access log line, because the client returns over HTTPS. A connection has one
//! request.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;

use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::context::{ResponseBody, ShutdownStage, wait_for_stage};
use crate::handler::response::{discard, plain};
use crate::http::ServerContext;
use crate::route::validation;

/// Serves one connection. `https_port`: the port of the redirect's URL.
pub(crate) async fn serve(
    shared: Arc<ServerContext>,
    tcp: TcpStream,
    https_port: impl Fn() -> u16,
) {
    let mut stop = shared.shutdown.subscribe();
    let limits = shared.snapshot().limits.clone();
    let service = service_fn(|mut request: Request<hyper::body::Incoming>| {
        let has_site = |host: &str| shared.snapshot().is_known_host(host);
        // ACME authorities validate domains over plain HTTP (RFC 8555 section 8.3).
        let challenge = shared.challenges.respond(&request);
        let redirect = || respond(&request, https_port(), has_site);
        let response = challenge.unwrap_or_else(redirect);
        let limit = limits.header_timeout;
        async move {
            // Unread bytes would reset the connection, and the client could lose the response (RFC
            // 9112 section 9.6).
            let _ = discard(&mut request, limit).await;
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_header_size(limits.header_size)
        .keep_alive(false)
        // A client that has sent its request may close its direction.
        .half_close(true)
        .serve_connection(TokioIo::new(tcp), service);
    let serving = async {
        let mut connection = pin!(connection);
        tokio::select! {
            _ = &mut connection => return,
            () = wait_for_stage(&mut stop, ShutdownStage::Draining) => {
                connection.as_mut().graceful_shutdown();
            }
        }
        tokio::select! {
            _ = connection => {}
            () = wait_for_stage(&mut stop, ShutdownStage::Abort) => {}
        }
    };
    // Once the head is read, the library waits without a limit for a client that reads nothing.
    let _ = timeout(limits.header_timeout + limits.idle_timeout, serving).await;
}

fn respond<B>(
    request: &Request<B>,
    https_port: u16,
    has_site: impl Fn(&str) -> bool,
) -> Response<ResponseBody> {
    let Ok(Some(host)) = validation::host(request) else { return plain(StatusCode::BAD_REQUEST) };
    if !has_site(&host) {
        return plain(StatusCode::MISDIRECTED_REQUEST);
    }
    let Some(location) = location(request, &host, https_port) else {
        return plain(StatusCode::BAD_REQUEST);
    };
    let mut response = plain(StatusCode::PERMANENT_REDIRECT);
    response.headers_mut().insert(header::LOCATION, location);
    response
}

/// The same URL with `https`. Returns `None` for a target without a path, such as `*`.
fn location<B>(request: &Request<B>, host: &str, https_port: u16) -> Option<HeaderValue> {
    let target = request.uri().path_and_query()?.as_str();
    if !target.starts_with('/') {
        return None;
    }
    let host = match host.contains(':') {
        true => format!("[{host}]"),
        false => host.to_owned(),
    };
    let port = match https_port {
        443 => String::new(),
        port => format!(":{port}"),
    };
    HeaderValue::try_from(format!("https://{host}{port}{target}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redirected(method: &str, target: &str, host: &str, https_port: u16) -> (u16, String) {
        let request = Request::builder().method(method).uri(target).header(header::HOST, host);
        let has_site = |host: &str| host != "stranger.test";
        let response = respond(&request.body(()).unwrap(), https_port, has_site);
        let location = response.headers().get(header::LOCATION);
        let location = location.map_or("", |location| location.to_str().unwrap()).to_owned();
        (response.status().as_u16(), location)
    }

    #[test]
    fn redirects_keep_path_query_and_the_requested_host() {
        for (target, host, port, location) in [
            ("/", "example.test", 443, "https://example.test/"),
            ("/a%20b/?q=1&r", "Example.test:80", 443, "https://example.test/a%20b/?q=1&r"),
            ("/", "example.test:8080", 8443, "https://example.test:8443/"),
            ("/x", "[::1]:80", 443, "https://[::1]/x"),
            ("//evil.test/x", "example.test", 443, "https://example.test//evil.test/x"),
            ("http://example.test/x", "other.test", 443, "https://example.test/x"),
        ] {
            assert_eq!(
                redirected("POST", target, host, port),
                (308, location.to_owned()),
                "{target}"
            );
        }
    }

    #[test]
    fn unknown_hosts_are_not_redirected() {
        for (method, target, host, status) in [
            ("GET", "/", "stranger.test", 421),
            ("GET", "http://stranger.test/", "example.test", 421),
            ("GET", "/", "example.test@evil.test", 400),
            ("GET", "/", "evil.test/", 400),
            ("GET", "/", "", 400),
            ("OPTIONS", "*", "example.test", 400),
            ("CONNECT", "example.test:443", "example.test:443", 400),
        ] {
            assert_eq!(
                redirected(method, target, host, 443),
                (status, String::new()),
                "{target} {host}"
            );
        }
    }
}
