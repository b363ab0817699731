//! HTTP/3 of an attacker (RFC 9114, RFC 9204): frames and header blocks on plain QUIC streams.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use quinn::{Connection, Endpoint, EndpointConfig, SendStream};
use quinn_proto::crypto::rustls::QuicClientConfig;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::runtime::Runtime;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::http2::{Field, integer};
use crate::running::{Serve, TEST_TIMEOUT};

pub(crate) const DATA: u64 = 0;
pub(crate) const HEADERS: u64 = 1;
pub(crate) const SETTINGS: u64 = 4;

/// The first byte of the control stream (RFC 9114 section 6.2.1).
const CONTROL: u64 = 0;

/// A client of one server.
pub(crate) struct Client {
    pub(crate) runtime: Runtime,
    config: quinn::ClientConfig,
    server: SocketAddr,
    early: bool,
}

/// A connection that has sent its settings. It is closed when this is dropped.
pub(crate) struct Link {
    pub(crate) connection: Connection,
    /// The control stream, which must stay open.
    pub(crate) control: Mutex<SendStream>,
    _endpoint: Endpoint,
}

impl Client {
    /// Trusts this server's certificate.
    pub(crate) fn new(server: &Serve) -> Self {
        Self::with(server, false)
    }

    /// A client that sends requests as early data.
    pub(crate) fn early(server: &Serve) -> Self {
        Self::with(server, true)
    }

    fn with(server: &Serve, early: bool) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&server.cert).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"h3".to_vec()];
        tls.enable_early_data = early;
        let config = QuicClientConfig::try_from(tls).unwrap();
        let mut config = quinn::ClientConfig::new(Arc::new(config));
        let mut transport = quinn::TransportConfig::default();
        transport.keep_alive_interval(Some(Duration::from_millis(500)));
        config.transport_config(Arc::new(transport));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        Self { runtime, config, server: server.address, early }
    }

    /// A connection whose handshake is complete.
    pub(crate) fn connect(&self) -> Link {
        self.wait(async {
            let (endpoint, connecting) = self.open();
            Link::new(connecting.await.unwrap(), endpoint).await
        })
    }

    /// A connection during its handshake, if there is a session with early data, and a future that
    /// tells whether the server has accepted it.
    fn connect_early(&self) -> Option<(Link, quinn::ZeroRttAccepted)> {
        self.wait(async {
            let (endpoint, connecting) = self.open();
            let (connection, accepted) = connecting.into_0rtt().ok()?;
            Some((Link::new(connection, endpoint).await, accepted))
        })
    }

    fn open(&self) -> (Endpoint, quinn::Connecting) {
        // Must be called within the runtime, by `wait`.
        let local: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
        let socket = std::net::UdpSocket::bind(local).unwrap();
        let runtime = Arc::new(quinn::TokioRuntime);
        let endpoint = Endpoint::new(EndpointConfig::default(), None, socket, runtime).unwrap();
        let connecting = endpoint.connect_with(self.config.clone(), self.server, "localhost");
        (endpoint, connecting.unwrap())
    }

    /// Sends one request on a new connection, as early data if the client does that. Returns
    /// whether the status was 200.
    pub(crate) fn request(&self, fields: &[Field], body: &[Vec<u8>], trailers: &[Field]) -> bool {
        let mut bytes = frame(HEADERS, &block(fields));
        for data in body {
            bytes.extend(frame(DATA, data));
        }
        if !trailers.is_empty() {
            bytes.extend(frame(HEADERS, &block(trailers)));
        }
        if !self.early {
            return self.send(&self.connect(), &bytes);
        }
        let Some((link, accepted)) = self.connect_early() else {
            // A ticket comes with the first response at the latest. The proxy does not forward
            // this request.
            self.send(&self.connect(), &frame(HEADERS, &get("*")));
            return self.request(fields, body, trailers);
        };
        let served = self.send(&link, &bytes);
        assert!(self.wait(accepted), "the server refuses early data");
        served
    }

    fn send(&self, link: &Link, bytes: &[u8]) -> bool {
        self.wait(async {
            let (mut send, mut recv) = link.connection.open_bi().await.unwrap();
            // The server may stop either direction.
            let _ = send.write_all(bytes).await;
            let _ = send.finish();
            recv.read_to_end(1 << 20).await.is_ok_and(|response| is_ok(&response))
        })
    }

    pub(crate) fn wait<T>(&self, what: impl Future<Output = T>) -> T {
        self.runtime.block_on(async { timeout(TEST_TIMEOUT, what).await.expect("it hangs") })
    }
}

impl Link {
    async fn new(connection: Connection, endpoint: Endpoint) -> Self {
        let mut control = connection.open_uni().await.unwrap();
        let hello = [varint(CONTROL), frame(SETTINGS, &[])].concat();
        control.write_all(&hello).await.unwrap();
        Self { connection, control: Mutex::new(control), _endpoint: endpoint }
    }
}

/// A frame of any kind (RFC 9114 section 7.1).
pub(crate) fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
    [&varint(kind), &varint(payload.len() as u64), payload].concat()
}

/// RFC 9000 section 16.
pub(crate) fn varint(value: u64) -> Vec<u8> {
    match value {
        0..0x40 => vec![value as u8],
        0x40..0x4000 => (value as u16 | 0x4000).to_be_bytes().to_vec(),
        0x4000..0x4000_0000 => (value as u32 | 0x8000_0000).to_be_bytes().to_vec(),
        _ => (value | 0xc000_0000_0000_0000).to_be_bytes().to_vec(),
    }
}

/// A header block, with all fields literal (RFC 9204 section 4.5.6).
pub(crate) fn block(fields: &[(impl AsRef<[u8]>, impl AsRef<[u8]>)]) -> Vec<u8> {
    let mut block = vec![0, 0];
    for (name, value) in fields {
        let (name, value) = (name.as_ref(), value.as_ref());
        integer(&mut block, 3, 0x20, name.len());
        block.extend(name);
        integer(&mut block, 7, 0, value.len());
        block.extend(value);
    }
    block
}

/// The block of a GET.
pub(crate) fn get(path: &str) -> Vec<u8> {
    block(&[(":method", "GET"), (":scheme", "https"), (":authority", "localhost"), (":path", path)])
}

/// Whether a response's last head has the status 200, in the static table (RFC 9204 appendix A).
fn is_ok(mut response: &[u8]) -> bool {
    let mut ok = false;
    while let Some((kind, rest)) = number(response) {
        let Some((length, rest)) = number(rest) else { break };
        let Some(payload) = rest.get(..length as usize) else { break };
        if kind == HEADERS {
            ok = payload.get(2) == Some(&(0xc0 | 25));
        }
        response = &rest[length as usize..];
    }
    ok
}

fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let first = *bytes.first()?;
    let length = 1 << (first >> 6);
    let (number, rest) = bytes.split_at_checked(length)?;
    let value = number.iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
    Some((value & ((1 << (8 * length - 2)) - 1), rest))
}
