//! A server with rustls and its stateful sessions, without which rustls has no early data. It is the
//! witness itself.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use firstflight_audit::{Witness, witness_response};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ServerSessionMemoryCache, StoresServerSessions};
use rustls::{ServerConfig, ServerConnection};

/// A running server. Its threads end with the process.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    config: Arc<Mutex<Arc<ServerConfig>>>,
    sessions: Arc<dyn StoresServerSessions>,
}

impl Server {
    pub(crate) fn start(cert: &Path, key: &Path) -> Self {
        let sessions: Arc<dyn StoresServerSessions> = ServerSessionMemoryCache::new(1000);
        let config = Arc::new(Mutex::new(config_over_tcp(cert, key, sessions.clone(), true)));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (current, witness) = (config.clone(), Arc::new(Mutex::new(Witness::default())));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (config, witness) = (current.lock().unwrap().clone(), witness.clone());
                thread::spawn(move || serve(config, stream, &witness));
            }
        });
        Self { address, config, sessions }
    }

    /// Switches early data on or off for new connections.
    pub(crate) fn set_early_data(&self, cert: &Path, key: &Path, on: bool) {
        *self.config.lock().unwrap() = config_over_tcp(cert, key, self.sessions.clone(), on);
    }
}

/// A configuration without early data.
pub(crate) fn config(
    cert: &Path,
    key: &Path,
    sessions: Arc<dyn StoresServerSessions>,
) -> ServerConfig {
    let certificate = CertificateDer::from_pem_file(cert).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], PrivateKeyDer::from_pem_file(key).unwrap())
        .unwrap();
    config.session_storage = sessions;
    config
}

fn config_over_tcp(
    cert: &Path,
    key: &Path,
    sessions: Arc<dyn StoresServerSessions>,
    early_data: bool,
) -> Arc<ServerConfig> {
    let mut config = config(cert, key, sessions);
    config.max_early_data_size = if early_data { 16_384 } else { 0 };
    config.send_half_rtt_data = true;
    Arc::new(config)
}

/// Responds to requests, early ones at once, until the connection ends.
fn serve(config: Arc<ServerConfig>, mut stream: TcpStream, witness: &Mutex<Witness>) {
    let mut connection = ServerConnection::new(config).unwrap();
    let mut received = Vec::new();
    loop {
        while connection.wants_write() {
            if connection.write_tls(&mut stream).is_err() {
                return;
            }
        }
        if !matches!(connection.read_tls(&mut stream), Ok(1..)) {
            return;
        }
        let result = connection.process_new_packets();
        if let Some(mut early) = connection.early_data() {
            let _ = early.read_to_end(&mut received);
        }
        // Returns `WouldBlock` after the last byte.
        let _ = connection.reader().read_to_end(&mut received);
        while let Ok(Some((response, length))) =
            witness_response(&mut witness.lock().unwrap(), &received)
        {
            received.drain(..length);
            let _ = connection.writer().write_all(response.as_bytes());
        }
        if result.is_err() {
            let _ = connection.write_tls(&mut stream);
            return;
        }
    }
}
