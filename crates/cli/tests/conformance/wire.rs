//! A TLS client that sends what it is told, byte for byte, and has no opinion on HTTP.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::running::{PATIENCE, Serve};

/// Makes connections to one server. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Dialer {
    address: SocketAddr,
    config: Arc<ClientConfig>,
}

/// One TLS connection.
pub(crate) struct Wire(StreamOwned<ClientConnection, TcpStream>);

/// How a connection stood when it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The server takes more.
    Open,
    /// It has closed, or reset, the connection.
    Closed,
}

impl Dialer {
    /// For a server's own address, trusting its certificate, offering one protocol (ALPN).
    pub(crate) fn new(server: &Serve, protocol: &str) -> Self {
        Self { address: server.address, config: Arc::new(config(&server.cert, protocol)) }
    }

    /// A connection whose handshake is complete.
    pub(crate) fn connect(&self) -> io::Result<Wire> {
        let tcp = TcpStream::connect(self.address)?;
        tcp.set_nodelay(true)?;
        tcp.set_read_timeout(Some(PATIENCE))?;
        tcp.set_write_timeout(Some(Duration::from_secs(2)))?;
        let name = ServerName::try_from("localhost").unwrap();
        let tls = ClientConnection::new(self.config.clone(), name).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(tls, tcp);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(Wire(stream))
    }
}

impl Wire {
    /// Sends bytes. An error of the kind `TimedOut`: the server takes nothing for now.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let sent = self.0.write_all(bytes).and_then(|()| self.0.flush());
        sent.map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => ErrorKind::TimedOut.into(),
            _ => error,
        })
    }

    /// Reads what comes until the server closes, or `enough` says that it need not.
    pub(crate) fn read_until(&mut self, enough: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let (mut all, mut chunk) = (Vec::new(), vec![0; 16384]);
        let began = Instant::now();
        while !enough(&all) {
            match self.0.read(&mut chunk) {
                Ok(0) => break,
                Ok(count) => all.extend_from_slice(&chunk[..count]),
                // An end without close_notify, or a reset, ends it as well.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    panic!("nothing within {PATIENCE:?}: {}", String::from_utf8_lossy(&all))
                }
                Err(_) => break,
            }
            assert!(began.elapsed() < 2 * PATIENCE, "the server goes on and on");
        }
        all
    }

    /// Reads to the end of the connection.
    pub(crate) fn read_to_end(&mut self) -> Vec<u8> {
        self.read_until(|_| false)
    }

    /// Takes what has come by now, without waiting, to the end of `all`.
    pub(crate) fn take(&mut self, all: &mut Vec<u8>) -> State {
        self.0.sock.set_nonblocking(true).unwrap();
        let mut chunk = [0; 16384];
        let state = loop {
            match self.0.read(&mut chunk) {
                Ok(0) => break State::Closed,
                Ok(count) => all.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break State::Open,
                Err(_) => break State::Closed,
            }
        };
        self.0.sock.set_nonblocking(false).unwrap();
        state
    }

    /// The bare socket: the connection stays open, and its TLS is forgotten here.
    pub(crate) fn into_socket(self) -> TcpStream {
        let (_, tcp) = self.0.into_parts();
        tcp
    }
}

/// A client that trusts this certificate alone.
fn config(cert: &Path, protocol: &str) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(cert).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    config
}
