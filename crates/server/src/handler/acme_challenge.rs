//! What the server answers to an authority that looks whether names lead here.

use std::sync::Arc;

use bytes::Bytes;
use firstflight_certificates::acme::Answers;
use firstflight_telemetry::metrics::{AcmeChallenge, Metrics};
use firstflight_tls::{ChallengeCertificates, Identity, TlsStream};
use http::{HeaderValue, Method, Request, Response, header};
use http_body_util::{BodyExt, Full};
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, timeout_at};

use crate::certificates::acme::Acme;
use crate::handler::response::ResponseBody;
use crate::http::socket::Socket;

/// The certificates of pending challenges.
pub(crate) struct Challenges {
    answers: Answers,
    metrics: Arc<Metrics>,
}

impl Acme {
    /// What is shown in handshakes.
    pub(crate) fn challenges(&self) -> Arc<dyn ChallengeCertificates> {
        Arc::new(Challenges { answers: self.answers.clone(), metrics: self.metrics.clone() })
    }

    /// The answer to an authority's request (RFC 8555 section 8.3), whatever its host. `None`: it
    /// is none, or nobody is to ask now.
    pub(crate) fn answer<B>(&self, request: &Request<B>) -> Option<Response<ResponseBody>> {
        if self.answers.is_idle() {
            return None;
        }
        let token = token(request)?;
        let body = Full::new(Bytes::from(self.answers.http(token)?));
        self.metrics.acme.challenges.count(AcmeChallenge::Http01);
        let mut answer = Response::new(body.map_err(|never| match never {}).boxed_unsync());
        let kind = HeaderValue::from_static("application/octet-stream");
        answer.headers_mut().insert(header::CONTENT_TYPE, kind);
        Some(answer)
    }
}

impl ChallengeCertificates for Challenges {
    fn certificate(&self, server_name: &str) -> Option<Identity> {
        let identity = self.answers.tls_alpn(server_name)?;
        self.metrics.acme.challenges.count(AcmeChallenge::TlsAlpn01);
        Some(identity)
    }
}

/// Ends an authority's connection: its handshake is all that there is to it (RFC 8737 section 3).
pub(crate) async fn end_question(mut stream: TlsStream<Socket>, socket: Socket, deadline: Instant) {
    let _ = timeout_at(deadline, stream.shutdown()).await;
    socket.linger().await;
}

fn token<B>(request: &Request<B>) -> Option<&str> {
    let asks = matches!(*request.method(), Method::GET | Method::HEAD);
    asks.then(|| request.uri().path().strip_prefix("/.well-known/acme-challenge/"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc8555_8_3_the_token_is_what_follows_the_well_known_path() {
        let token_of = |method: &str, target: &str| {
            let request = Request::builder().method(method).uri(target).body(()).unwrap();
            token(&request).map(str::to_owned)
        };
        let path = "/.well-known/acme-challenge/abc";
        assert_eq!(token_of("GET", path).as_deref(), Some("abc"));
        assert_eq!(token_of("GET", &format!("http://a.test{path}?x")).as_deref(), Some("abc"));
        assert_eq!(token_of("POST", path), None);
        assert_eq!(token_of("GET", "/.well-known/acme-challenge"), None);
        assert_eq!(token_of("GET", "/x/.well-known/acme-challenge/abc"), None);
    }
}
