//! A scripted ACME authority, for responses that Pebble does not give.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use firstflight_tls::{Acceptor, AcceptorConfig, Identity, TlsStream};
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use crate::acme::{AcmeConfig, Directory};

/// Returns the response to a path, or `None` for the regular one. `BASE` in a body or a location is
/// replaced by the authority's URL.
pub(crate) type StubBehaviour = fn(&str) -> Option<Response<String>>;

pub(crate) struct StubAuthority {
    address: SocketAddr,
    files: tempfile::TempDir,
    /// Requested paths, and the payload of each request.
    requests: Arc<Mutex<Vec<(String, String)>>>,
}

impl StubAuthority {
    pub(crate) async fn start(behaviour: StubBehaviour) -> Self {
        let files = tempfile::tempdir().unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let names = vec!["127.0.0.1".to_owned()];
        let certificate = rcgen::CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
        std::fs::write(files.path().join("own.pem"), certificate.pem()).unwrap();
        let identity =
            Identity::from_pem(certificate.pem().as_bytes(), key.serialize_pem().as_bytes());
        let acceptor = Acceptor::new(AcceptorConfig::new(identity.unwrap())).unwrap();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::<Mutex<Vec<_>>>::default();
        let shared = requests.clone();
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let (acceptor, requests) = (acceptor.clone(), shared.clone());
                tokio::spawn(async move {
                    let tls = TlsStream::accept(&acceptor, tcp, false).await.ok()?;
                    let service =
                        service_fn(|request| response(request, address, behaviour, &requests));
                    http1::Builder::new().serve_connection(TokioIo::new(tls), service).await.ok()
                });
            }
        });
        Self { address, files, requests }
    }

    pub(crate) fn config(&self) -> AcmeConfig {
        AcmeConfig {
            directory: self.directory(),
            terms_agreed: true,
            state: self.files.path().join("acme"),
            authority: Some(self.path("own.pem")),
            ..AcmeConfig::default()
        }
    }

    /// The payloads that came to a path.
    pub(crate) fn payloads(&self, path: &str) -> Vec<String> {
        let requests = self.requests.lock().unwrap();
        requests.iter().filter(|(at, _)| at == path).map(|(_, payload)| payload.clone()).collect()
    }

    fn directory(&self) -> Directory {
        format!("https://{}/dir", self.address).parse().unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }
}

async fn response(
    request: Request<Incoming>,
    address: SocketAddr,
    behaviour: StubBehaviour,
    requests: &Mutex<Vec<(String, String)>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let head = request.method() == Method::HEAD;
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    requests.lock().unwrap().push((path.clone(), payload(&body)));
    let base = format!("https://{address}");
    let regular = || match path.as_str() {
        "/dir" => Response::new(format!(
            r#"{{"newNonce": "{base}/nonce", "newAccount": "{base}/account",
                "newOrder": "{base}/order", "renewalInfo": "{base}/renewal"}}"#
        )),
        "/account" => {
            let response = Response::builder().status(201).header("location", format!("{base}/me"));
            response.body("{}".to_owned()).unwrap()
        }
        "/nonce" => Response::new(String::new()),
        _ => problem(404, "malformed", "nothing is there"),
    };
    let mut response =
        behaviour(&path).unwrap_or_else(regular).map(|body| body.replace("BASE", &base));
    if let Some(location) = response.headers_mut().get_mut("location") {
        *location = location.to_str().unwrap().replace("BASE", &base).parse().unwrap();
    }
    response.headers_mut().insert("replay-nonce", "nonce".parse().unwrap());
    Ok(response.map(|body| Full::from(if head { String::new() } else { body })))
}

/// The payload of a signed request (RFC 7515 section 7.2.2).
fn payload(body: &[u8]) -> String {
    let signed = serde_json::from_slice::<serde_json::Value>(body).unwrap_or_default();
    let payload = URL_SAFE_NO_PAD.decode(signed["payload"].as_str().unwrap_or_default());
    String::from_utf8(payload.unwrap_or_default()).unwrap()
}

/// RFC 8555 section 6.7.
pub(crate) fn problem(status: u16, kind: &str, detail: &str) -> Response<String> {
    let body = serde_json::json!({
        "type": format!("urn:ietf:params:acme:error:{kind}"), "detail": detail
    });
    let response = Response::builder().status(status);
    response.header("content-type", "application/problem+json").body(body.to_string()).unwrap()
}

pub(crate) fn plain(status: u16, body: impl Into<String>) -> Response<String> {
    Response::builder()
        .status(status)
        .header("content-type", "text/html")
        .body(body.into())
        .unwrap()
}

pub(crate) fn with_retry_after(mut response: Response<String>, retry: &str) -> Response<String> {
    response.headers_mut().insert("retry-after", retry.parse().unwrap());
    response
}
