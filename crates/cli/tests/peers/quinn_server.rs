//! quinn's server on rustls with its stateful sessions, without which rustls has no early data. It is
//! the witness itself.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use firstflight_audit::Witness;
use quinn::{Endpoint, EndpointConfig, Incoming, ServerConfig, TokioRuntime};
use quinn_proto::crypto::rustls::QuicServerConfig;
use rustls::server::{ServerSessionMemoryCache, StoresServerSessions};
use tokio::runtime::Runtime;

use crate::rustls_server;

/// A running server. It ends when this is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    endpoint: Endpoint,
    sessions: Arc<dyn StoresServerSessions>,
    _runtime: Runtime,
}

impl Server {
    pub(crate) fn start(cert: &Path, key: &Path) -> Self {
        let sessions: Arc<dyn StoresServerSessions> = ServerSessionMemoryCache::new(1000);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let entered = runtime.enter();
        let config = config(cert, key, sessions.clone(), true);
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let endpoint =
            Endpoint::new(EndpointConfig::default(), Some(config), socket, Arc::new(TokioRuntime))
                .unwrap();
        let address = endpoint.local_addr().unwrap();
        runtime.spawn(accept(endpoint.clone(), Arc::default()));
        drop(entered);
        Self { address, endpoint, sessions, _runtime: runtime }
    }

    /// Switches early data on or off for new connections.
    pub(crate) fn set_early_data(&self, cert: &Path, key: &Path, on: bool) {
        self.endpoint.set_server_config(Some(config(cert, key, self.sessions.clone(), on)));
    }
}

fn config(
    cert: &Path,
    key: &Path,
    sessions: Arc<dyn StoresServerSessions>,
    early_data: bool,
) -> ServerConfig {
    let mut tls = rustls_server::config(cert, key, sessions);
    tls.alpn_protocols = vec![b"h3".to_vec()];
    // The only two values that QUIC allows (RFC 9001 section 4.6.1).
    tls.max_early_data_size = if early_data { u32::MAX } else { 0 };
    ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).unwrap()))
}

async fn accept(endpoint: Endpoint, witness: Arc<Mutex<Witness>>) {
    while let Some(incoming) = endpoint.accept().await {
        tokio::spawn(serve(incoming, witness.clone()));
    }
}

/// Responds to requests, early ones at once, until the connection ends.
async fn serve(incoming: Incoming, witness: Arc<Mutex<Witness>>) {
    let Ok(mut connecting) = incoming.accept() else { return };
    // The ClientHello says how many streams there may be.
    if connecting.handshake_data().await.is_err() {
        return;
    }
    let Ok((connection, _)) = connecting.into_0rtt() else { return };
    let http = h3_quinn::Connection::new(connection);
    let Ok(mut http) = h3::server::Connection::<_, Bytes>::new(http).await else { return };
    while let Ok(Some(request)) = http.accept().await {
        let Ok((head, mut stream)) = request.resolve_request().await else { continue };
        let count = witness.lock().unwrap().count(head.uri().query().unwrap_or_default());
        let body = serde_json::json!({ "executions": count, "early_data": null }).to_string();
        let head = http::Response::new(());
        let _ = stream.send_response(head).await;
        let _ = stream.send_data(body.into()).await;
        let _ = stream.finish().await;
    }
}
