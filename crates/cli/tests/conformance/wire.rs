//! A TLS client that sends arbitrary bytes, and knows no HTTP.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::http2;
use crate::running::{Serve, TEST_TIMEOUT};

/// Makes connections to one server. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Dialer {
    address: SocketAddr,
    config: Arc<ClientConfig>,
}

/// One TLS connection.
pub(crate) struct Wire(StreamOwned<ClientConnection, TcpStream>);

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The server still reads.
    Open,
    /// The server has closed or reset the connection.
    Closed,
}

impl Dialer {
    /// Connects to a server, trusts its certificate, and offers one ALPN protocol.
    pub(crate) fn new(server: &Serve, protocol: &str) -> Self {
        Self { address: server.address, config: Arc::new(config(&server.cert, protocol)) }
    }

    /// Like [`Self::new`], but resumes a session and sends early data.
    pub(crate) fn early(server: &Serve, protocol: &str) -> Self {
        let mut config = config(&server.cert, protocol);
        config.resumption = rustls::client::Resumption::in_memory_sessions(8);
        config.enable_early_data = true;
        Self { address: server.address, config: Arc::new(config) }
    }

    /// A connection whose handshake is complete.
    pub(crate) fn connect(&self) -> io::Result<Wire> {
        let mut stream = self.open()?;
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(Wire(stream))
    }

    /// Sends bytes on a new connection: as early data, up to the server's limit, if the dialer
    /// sends early data; otherwise after the handshake.
    ///
    /// # Panics
    /// If the server refuses the early data.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<Wire> {
        if !self.config.enable_early_data {
            let mut wire = self.connect()?;
            // The server may close the connection before everything is sent.
            let _ = wire.send(bytes);
            return Ok(wire);
        }
        let mut stream = self.open()?;
        let count = match stream.conn.early_data() {
            Some(mut early) => early.write(bytes)?,
            None => {
                self.fetch_session()?;
                return self.send(bytes);
            }
        };
        while stream.conn.is_handshaking() {
            if stream.conn.complete_io(&mut stream.sock).is_err() {
                return Ok(Wire(stream));
            }
        }
        assert!(stream.conn.is_early_data_accepted(), "the server refuses early data");
        let mut wire = Wire(stream);
        let _ = wire.send(&bytes[count..]);
        Ok(wire)
    }

    /// Waits for a ticket, which comes before the end of the first response. The proxy does not
    /// forward this request.
    fn fetch_session(&self) -> io::Result<()> {
        let mut wire = self.connect()?;
        match &self.config.alpn_protocols[0][..] {
            b"h2" => {
                wire.send(&[http2::hello(&[]), http2::get(1, "*")].concat())?;
                let ends = |frames: &[u8]| http2::frames(frames).iter().any(|frame| frame.ends(1));
                wire.read_until(ends);
            }
            _ => {
                wire.send(b"GET * HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
                wire.read_to_end();
            }
        }
        Ok(())
    }

    fn open(&self) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
        let tcp = TcpStream::connect(self.address)?;
        tcp.set_nodelay(true)?;
        tcp.set_read_timeout(Some(TEST_TIMEOUT))?;
        tcp.set_write_timeout(Some(Duration::from_secs(2)))?;
        let name = ServerName::try_from("localhost").unwrap();
        let tls = ClientConnection::new(self.config.clone(), name).map_err(io::Error::other)?;
        Ok(StreamOwned::new(tls, tcp))
    }
}

impl Wire {
    /// Sends bytes. Fails with `TimedOut` if the server does not read.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let sent = self.0.write_all(bytes).and_then(|()| self.0.flush());
        sent.map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => ErrorKind::TimedOut.into(),
            _ => error,
        })
    }

    /// Reads until the server closes, or `enough` returns true for the bytes so far.
    pub(crate) fn read_until(&mut self, enough: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let (mut all, mut chunk) = (Vec::new(), vec![0; 16384]);
        let started = Instant::now();
        while !enough(&all) {
            match self.0.read(&mut chunk) {
                Ok(0) => break,
                Ok(count) => all.extend_from_slice(&chunk[..count]),
                // An end without close_notify, or a reset, ends it as well.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    panic!("nothing within {TEST_TIMEOUT:?}: {}", String::from_utf8_lossy(&all))
                }
                Err(_) => break,
            }
            assert!(started.elapsed() < 2 * TEST_TIMEOUT, "the server does not stop sending");
        }
        all
    }

    /// Reads to the end of the connection.
    pub(crate) fn read_to_end(&mut self) -> Vec<u8> {
        self.read_until(|_| false)
    }

    /// Appends the bytes received so far to `all`, without waiting.
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

    /// The bare socket. The connection stays open, but its TLS state is dropped.
    pub(crate) fn into_socket(self) -> TcpStream {
        let (_, tcp) = self.0.into_parts();
        tcp
    }
}

/// A client that trusts only this certificate.
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
