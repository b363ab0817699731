//! quinn's server with rustls.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::{Duration, SystemTime};

use bytes::{Buf, Bytes};
use http::Response;
use quinn::{Connection, Endpoint, Incoming, TokenLog, TokenReuseError};
use quinn_proto::crypto::rustls::QuicServerConfig;
use rustls::CipherSuite;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ServerSessionMemoryCache, StoresServerSessions};
use tokio::runtime::Runtime;

use super::rustls_client::endpoint;

/// Options of a server.
#[derive(Clone, Copy, Default)]
pub(crate) struct ServerOptions {
    /// Whether every address has to be validated.
    pub(crate) retry: bool,
    /// Whether only ChaCha20-Poly1305 is offered.
    pub(crate) chacha: bool,
    /// Whether keys are updated before every response (RFC 9001 section 6).
    pub(crate) new_keys: bool,
}

/// A received request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Observed {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) body: usize,
    /// Whether it was received before the handshake was complete.
    pub(crate) early: bool,
    /// The client's port.
    pub(crate) from: u16,
    /// Whether its connection started at a validated address.
    pub(crate) validated: bool,
    /// Whether its connection's first packet got a Retry.
    pub(crate) retried: bool,
}

/// A running server, whose responses describe the request.
pub(crate) struct Server {
    pub(crate) port: u16,
    endpoint: Endpoint,
    logged: Arc<Mutex<Vec<Observed>>>,
    sessions: Arc<dyn StoresServerSessions>,
    dir: PathBuf,
    options: ServerOptions,
    _runtime: Runtime,
}

impl Server {
    /// Starts it. Its certificate is cert.pem in `dir`, its key key.pem.
    pub(crate) fn start(dir: &Path, options: ServerOptions) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let sessions: Arc<dyn StoresServerSessions> = ServerSessionMemoryCache::new(100);
        let config = config(dir, options, true, sessions.clone());
        let entered = runtime.enter();
        let endpoint = endpoint(Some(config));
        let port = endpoint.local_addr().unwrap().port();
        let logged = Arc::<Mutex<Vec<Observed>>>::default();
        runtime.spawn(accept(endpoint.clone(), options, logged.clone()));
        drop(entered);
        Self { port, endpoint, logged, sessions, dir: dir.to_owned(), options, _runtime: runtime }
    }

    /// Accepts resumption but refuses early data from now on.
    pub(crate) fn refuse_early_data(&self) {
        let config = config(&self.dir, self.options, false, self.sessions.clone());
        self.endpoint.set_server_config(Some(config));
    }

    /// The list to which requests are added as they arrive.
    pub(crate) fn requests(&self) -> Arc<Mutex<Vec<Observed>>> {
        self.logged.clone()
    }

    /// The requests so far.
    pub(crate) fn logged(&self) -> Vec<Observed> {
        self.logged.lock().unwrap().clone()
    }
}

fn config(
    dir: &Path,
    options: ServerOptions,
    early: bool,
    sessions: Arc<dyn StoresServerSessions>,
) -> quinn::ServerConfig {
    let mut provider = ring::default_provider();
    let initial = provider
        .cipher_suites
        .iter()
        .find(|suite| suite.suite() == CipherSuite::TLS13_AES_128_GCM_SHA256)
        .and_then(|suite| suite.tls13()?.quic_suite())
        .unwrap();
    if options.chacha {
        let chacha = CipherSuite::TLS13_CHACHA20_POLY1305_SHA256;
        provider.cipher_suites.retain(|suite| suite.suite() == chacha);
    }
    let cert = CertificateDer::from_pem_file(dir.join("cert.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(dir.join("key.pem")).unwrap();
    let mut tls = rustls::ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert], key)
        .unwrap();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    tls.session_storage = sessions;
    // The only two values that QUIC allows (RFC 9001 section 4.6.1).
    tls.max_early_data_size = if early { u32::MAX } else { 0 };
    let tls = QuicServerConfig::with_initial(Arc::new(tls), initial).unwrap();
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(tls));
    let mut tokens = quinn::ValidationTokenConfig::default();
    tokens.sent(1).log(Arc::new(UsedTokens::default()));
    config.validation_token_config(tokens);
    config
}

/// Accepts each token once.
#[derive(Default)]
struct UsedTokens(Mutex<HashSet<u128>>);

impl TokenLog for UsedTokens {
    fn check_and_insert(
        &self,
        nonce: u128,
        _: SystemTime,
        _: Duration,
    ) -> Result<(), TokenReuseError> {
        self.0.lock().unwrap().insert(nonce).then_some(()).ok_or(TokenReuseError)
    }
}

async fn accept(endpoint: Endpoint, options: ServerOptions, logged: Arc<Mutex<Vec<Observed>>>) {
    let mut retried = HashSet::new();
    while let Some(incoming) = endpoint.accept().await {
        let from = incoming.remote_address();
        if options.retry && !incoming.remote_address_validated() {
            retried.insert(from);
            incoming.retry().unwrap();
        } else {
            tokio::spawn(serve(incoming, options, retried.contains(&from), logged.clone()));
        }
    }
}

async fn serve(
    incoming: Incoming,
    options: ServerOptions,
    retried: bool,
    logged: Arc<Mutex<Vec<Observed>>>,
) {
    let validated = incoming.remote_address_validated();
    // The number of streams that the client allows is known only after its whole ClientHello, which
    // may need several datagrams.
    let mut connecting = incoming.accept().unwrap();
    if connecting.handshake_data().await.is_err() {
        return;
    }
    let Ok((connection, mut complete)) = connecting.into_0rtt() else { return };
    let mut early = true;
    let http = h3_quinn::Connection::new(connection.clone());
    let Ok(mut http) = h3::server::Connection::<_, Bytes>::new(http).await else { return };
    while let Ok(Some(request)) = http.accept().await {
        // Checked here, because another task would notice it later.
        let mut nobody = Context::from_waker(Waker::noop());
        early = early && Pin::new(&mut complete).poll(&mut nobody).is_pending();
        let facts = Facts { early, validated, retried };
        let (connection, logged) = (connection.clone(), logged.clone());
        tokio::spawn(async move {
            if options.new_keys {
                connection.force_key_update();
            }
            let _ = response(request, facts, &connection, &logged).await;
        });
    }
}

struct Facts {
    early: bool,
    validated: bool,
    retried: bool,
}

async fn response(
    request: h3::server::RequestResolver<h3_quinn::Connection, Bytes>,
    facts: Facts,
    connection: &Connection,
    logged: &Mutex<Vec<Observed>>,
) -> Result<(), h3::error::StreamError> {
    let (head, mut stream) = request.resolve_request().await?;
    let mut body = 0;
    while let Some(data) = stream.recv_data().await? {
        body += data.remaining();
    }
    let target = head.uri().path_and_query().map_or("", |target| target.as_str()).to_owned();
    let method = head.method().to_string();
    let text = format!("{method} {target} {body}\n");
    logged.lock().unwrap().push(Observed {
        method,
        target,
        body,
        early: facts.early,
        from: connection.remote_address().port(),
        validated: facts.validated,
        retried: facts.retried,
    });
    let head = Response::builder().header("content-length", text.len()).body(()).unwrap();
    stream.send_response(head).await?;
    stream.send_data(text.into()).await?;
    stream.finish().await
}
