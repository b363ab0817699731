//! WebSocket: a request that becomes a tunnel to an upstream, which speaks HTTP/1.1. The client
//! asks by an upgrade (RFC 6455) or, over HTTP/2, by an extended CONNECT (RFC 8441).

use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{
    Extensions, HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version,
    header, request,
};
use hyper::ext::Protocol;
use hyper::upgrade::OnUpgrade;
use sha1::{Digest, Sha1};

use crate::handler::response::{ResponseBody, empty, plain};
use crate::handler::tunnel::Tunnel;

/// How a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// RFC 6455 section 4.1.
    Upgrade,
    /// RFC 8441 section 5.
    Connect,
}

/// Whether a request asks for a WebSocket. Other protocols are asked for in vain: `h2c` would be a
/// way around all that is decided request by request.
pub(crate) fn asked<B>(request: &Request<B>) -> Option<Asked> {
    let headers = request.headers();
    match (request.version(), request.method()) {
        (Version::HTTP_11, &Method::GET) => {
            let asks = lists(headers, &header::UPGRADE, "websocket")
                && lists(headers, &header::CONNECTION, "upgrade");
            asks.then_some(Asked::Upgrade)
        }
        (Version::HTTP_2, &Method::CONNECT) => {
            let protocol = request.extensions().get::<Protocol>()?;
            protocol.as_str().eq_ignore_ascii_case("websocket").then_some(Asked::Connect)
        }
        _ => None,
    }
}

/// Makes a request, from which all that concerns one connection was removed, the question to the
/// upstream. Returns the answer that its key asks for, where the key is ours.
pub(crate) fn ask(head: &mut request::Parts, asked: Asked) -> Option<HeaderValue> {
    head.method = Method::GET;
    let headers = &mut head.headers;
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.remove(header::CONTENT_LENGTH);
    if asked == Asked::Upgrade {
        return None;
    }
    // RFC 8441 section 5: HTTP/2 has neither key nor accept.
    let mut random = [0; 16];
    getrandom::fill(&mut random).expect("the system gives random bytes");
    let key = STANDARD.encode(random);
    let accept = accept(&key);
    headers.insert(header::SEC_WEBSOCKET_KEY, visible(&key));
    headers.insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
    Some(accept)
}

/// The answer to the client, and the tunnel behind it if the upstream agrees. `expected`: see
/// [`ask`].
pub(crate) fn answer(
    mut answer: Response<ResponseBody>,
    asked: Asked,
    client: OnUpgrade,
    expected: Option<&HeaderValue>,
) -> (Response<ResponseBody>, Option<Tunnel>) {
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        // To a CONNECT it would say that the tunnel is there.
        let misleading = asked == Asked::Connect && answer.status().is_success();
        return (if misleading { plain(StatusCode::BAD_GATEWAY) } else { answer }, None);
    }
    let headers = answer.headers();
    let agreed = lists(headers, &header::UPGRADE, "websocket")
        && expected.is_none_or(|accept| headers.get(header::SEC_WEBSOCKET_ACCEPT) == Some(accept));
    if !agreed {
        return (plain(StatusCode::BAD_GATEWAY), None);
    }
    let upstream = hyper::upgrade::on(&mut answer);
    let (mut head, body) = answer.into_parts();
    head.extensions = Extensions::new();
    for name in [header::CONNECTION, header::UPGRADE, header::CONTENT_LENGTH] {
        head.headers.remove(name);
    }
    match asked {
        Asked::Upgrade => {
            head.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
            head.headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        }
        Asked::Connect => {
            head.status = StatusCode::OK;
            head.headers.remove(header::SEC_WEBSOCKET_ACCEPT);
        }
    }
    // The body holds the place on the upstream's server.
    (Response::from_parts(head, empty()), Some(Tunnel::new(client, upstream, body)))
}

/// A tunnel on its way from who opened it to the connection's task, in an answer's extensions.
#[derive(Clone)]
pub(crate) struct Carried(Arc<Mutex<Option<Tunnel>>>);

impl Carried {
    pub(crate) fn new(tunnel: Tunnel) -> Self {
        Self(Arc::new(Mutex::new(Some(tunnel))))
    }

    /// The tunnel behind an answer.
    pub(crate) fn take<B>(answer: &mut Response<B>) -> Option<Tunnel> {
        let carried = answer.extensions_mut().remove::<Self>()?;
        carried.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Whether a field's list has a member, in whatever case.
fn lists(headers: &HeaderMap, name: &HeaderName, member: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|one| one.trim().eq_ignore_ascii_case(member))
}

/// RFC 6455 section 4.2.2, 5.4.
fn accept(key: &str) -> HeaderValue {
    let digest = Sha1::new().chain_update(key).chain_update(GUID).finalize();
    visible(&STANDARD.encode(digest))
}

fn visible(base64: &str) -> HeaderValue {
    HeaderValue::from_str(base64).expect("base64 is visible ASCII")
}

/// RFC 6455 section 1.3.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

#[cfg(test)]
mod tests {
    use super::*;

    fn request(version: Version, method: &str, fields: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::builder().version(version).method(method);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    #[test]
    fn rfc6455_4_1_what_asks_for_a_websocket() {
        let both = [("connection", "keep-alive, Upgrade"), ("upgrade", "WebSocket")];
        let ask = |version, method, fields: &[_]| asked(&request(version, method, fields));
        assert_eq!(ask(Version::HTTP_11, "GET", &both), Some(Asked::Upgrade));
        for (version, method, fields) in [
            (Version::HTTP_10, "GET", &both[..]),
            (Version::HTTP_2, "GET", &both),
            (Version::HTTP_3, "GET", &both),
            (Version::HTTP_11, "POST", &both),
            (Version::HTTP_11, "GET", &both[..1]),
            (Version::HTTP_11, "GET", &both[1..]),
            (Version::HTTP_11, "GET", &[("connection", "upgrade"), ("upgrade", "h2c")]),
            (Version::HTTP_11, "CONNECT", &both),
            (Version::HTTP_2, "CONNECT", &[]),
        ] {
            assert_eq!(ask(version, method, fields), None, "{version:?} {method} {fields:?}");
        }
    }

    #[test]
    fn rfc8441_5_an_extended_connect_asks_too() {
        for (protocol, expected) in [("websocket", Some(Asked::Connect)), ("connect-udp", None)] {
            let mut request = request(Version::HTTP_2, "CONNECT", &[]);
            request.extensions_mut().insert(Protocol::from(protocol));
            assert_eq!(asked(&request), expected);
        }
    }

    #[test]
    fn rfc6455_1_3_the_accept_of_the_example() {
        assert_eq!(accept("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn rfc8441_5_the_key_is_ours_and_has_to_be_answered() {
        let (mut head, ()) = request(Version::HTTP_2, "CONNECT", &[]).into_parts();
        let expected = ask(&mut head, Asked::Connect).unwrap();
        assert_eq!(head.method, Method::GET);
        assert_eq!(expected, accept(head.headers[header::SEC_WEBSOCKET_KEY].to_str().unwrap()));
        let says = |accept: &HeaderValue| {
            let upgrade = Response::builder().status(101).header("upgrade", "websocket");
            let response = upgrade.header("sec-websocket-accept", accept).body(empty()).unwrap();
            let client = hyper::upgrade::on(request(Version::HTTP_2, "CONNECT", &[]));
            let (answer, tunnel) = answer(response, Asked::Connect, client, Some(&expected));
            (answer.status().as_u16(), tunnel.is_some(), answer.headers().len())
        };
        assert_eq!(says(&expected), (200, true, 0));
        assert_eq!(says(&HeaderValue::from_static("other")).0, 502);
    }
}
