//! Responds to the challenges of an ACME authority, over HTTP and in TLS handshakes.

use std::sync::Arc;

use bytes::Bytes;
use firstflight_certificates::acme::ChallengeResponses;
use firstflight_telemetry::metrics::{AcmeChallenge, Metrics};
use firstflight_tls::{ChallengeCertificates, Identity};
use http::{HeaderValue, Method, Request, Response, header};
use http_body_util::{BodyExt, Full};

use crate::context::ResponseBody;

/// The responses to an authority's challenges.
#[derive(Clone)]
pub(crate) struct AcmeChallenges {
    responses: ChallengeResponses,
    metrics: Arc<Metrics>,
}

impl AcmeChallenges {
    /// `responses`: those of the orders in progress.
    pub(crate) fn new(responses: ChallengeResponses, metrics: Arc<Metrics>) -> Self {
        Self { responses, metrics }
    }

    /// The response to an authority's request (RFC 8555 section 8.3), whatever its host. Returns
    /// `None` if the request is not a challenge, or no order is in progress.
    pub(crate) fn respond<B>(&self, request: &Request<B>) -> Option<Response<ResponseBody>> {
        if self.responses.is_idle() {
            return None;
        }
        let token = token(request)?;
        let body = Full::new(Bytes::from(self.responses.http(token)?));
        self.metrics.acme.challenges.count(AcmeChallenge::Http01);
        let mut response = Response::new(body.map_err(|never| match never {}).boxed_unsync());
        let kind = HeaderValue::from_static("application/octet-stream");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        Some(response)
    }
}

impl ChallengeCertificates for AcmeChallenges {
    fn certificate(&self, server_name: &str) -> Option<Identity> {
        let identity = self.responses.tls_alpn(server_name)?;
        self.metrics.acme.challenges.count(AcmeChallenge::TlsAlpn01);
        Some(identity)
    }
}

fn token<B>(request: &Request<B>) -> Option<&str> {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    is_read.then(|| request.uri().path().strip_prefix("/.well-known/acme-challenge/"))?
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
