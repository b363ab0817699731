//! A minimal server that responds to challenges.

use firstflight_certificates::acme::ChallengeResponses;
use firstflight_testkit::PebblePlan;
use firstflight_tls::{Acceptor, AcceptorConfig, TlsStream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Serves the responses on two ports for as long as the test runs.
pub(crate) async fn respond_to_challenges(
    responses: &ChallengeResponses,
    names: &'static [&'static str],
) -> PebblePlan {
    let (http, http_port) = listen().await;
    let (tls, tls_port) = listen().await;
    let (http_responses, tls_responses) = (responses.clone(), responses.clone());
    tokio::spawn(async move {
        while let Ok((stream, _)) = http.accept().await {
            tokio::spawn(respond_http(stream, http_responses.clone()));
        }
    });
    tokio::spawn(async move {
        while let Ok((stream, _)) = tls.accept().await {
            tokio::spawn(respond_tls(stream, tls_responses.clone(), names));
        }
    });
    PebblePlan { http_port, tls_port, ..PebblePlan::default() }
}

async fn listen() -> (TcpListener, u16) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// RFC 8555 section 8.3.
async fn respond_http(mut stream: TcpStream, responses: ChallengeResponses) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).ok()?;
    let path = head.split(' ').nth(1)?;
    let token = path.strip_prefix("/.well-known/acme-challenge/")?;
    let response = match responses.http(token) {
        Some(body) => format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()),
        None => "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_owned(),
    };
    stream.write_all(response.as_bytes()).await.ok()
}

/// RFC 8737 section 3. The server name is searched in the bytes of the ClientHello.
async fn respond_tls(
    stream: TcpStream,
    responses: ChallengeResponses,
    names: &[&str],
) -> Option<()> {
    let mut hello = [0; 4096];
    let length = stream.peek(&mut hello).await.ok()?;
    let has = |word: &str| hello[..length].windows(word.len()).any(|it| it == word.as_bytes());
    // The longest first: a name may be the suffix of another.
    let mut names = names.to_vec();
    names.sort_by_key(|name| std::cmp::Reverse(name.len()));
    let identity = responses.tls_alpn(names.into_iter().find(|name| has(name))?)?;
    let alpn = vec![b"acme-tls/1".to_vec()];
    let config = AcceptorConfig { alpn, ..AcceptorConfig::new(identity) };
    let mut stream = TlsStream::accept(&Acceptor::new(config).ok()?, stream, false).await.ok()?;
    stream.read_u8().await.ok().map(|_| ())
}
