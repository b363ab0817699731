//! A small server with TLS 1.3 and early data that records its requests.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ServerConfig, ServerConnection};
use rustls::{HandshakeKind, StreamOwned};

/// The name in the server's certificate.
pub(crate) const NAME: &str = "browser.test";

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReceivedRequest {
    pub path: String,
    pub early: bool,
    pub resumed: bool,
}

/// Listens on loopback as long as the tests run.
pub(crate) struct Server {
    pub address: SocketAddr,
    /// Its certificate, PEM.
    pub trust: PathBuf,
    requests: Arc<Mutex<Vec<ReceivedRequest>>>,
}

impl Server {
    pub(crate) fn start(directory: &std::path::Path) -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(vec![NAME.to_owned()]).unwrap().self_signed(&key).unwrap();
        let trust = directory.join("trust.pem");
        std::fs::write(&trust, certificate.pem()).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        config.max_early_data_size = 16 << 10;
        // A browser with two connections for a page uses two tickets.
        config.send_tls13_tickets = 4;
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let received = Arc::clone(&requests);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (config, received) = (Arc::clone(&config), Arc::clone(&received));
                // The browser reports a connection that fails.
                thread::spawn(move || serve(stream, config, &received));
            }
        });
        Self { address, trust, requests }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("https://{NAME}:{}{path}", self.address.port())
    }

    /// Requests for a path.
    pub(crate) fn requests(&self, path: &str) -> Vec<ReceivedRequest> {
        let requests = self.requests.lock().unwrap();
        requests.iter().filter(|request| request.path == path).cloned().collect()
    }
}

/// Serves one connection.
fn serve(mut stream: TcpStream, config: Arc<ServerConfig>, received: &Mutex<Vec<ReceivedRequest>>) {
    let _ = stream.set_read_timeout(Some(Duration::from_secs(60)));
    let Ok(mut connection) = ServerConnection::new(config) else { return };
    let mut request = Vec::new();
    while connection.is_handshaking() && !is_complete(&request) {
        if step(&mut connection, &mut stream).is_err() {
            return;
        }
        // A browser sends its request as early data only until the handshake is complete. So nothing
        // is sent before the whole early request has arrived.
        while let Some(mut early) = connection.early_data() {
            let _ = early.read_to_end(&mut request);
            if is_complete(&request) {
                break;
            }
            if receive(&mut connection, &mut stream).is_err() {
                return;
            }
        }
    }
    let mut early = !request.is_empty();
    let mut stream = StreamOwned::new(connection, stream);
    loop {
        let mut bytes = [0; 4096];
        while !is_complete(&request) {
            match stream.read(&mut bytes) {
                Ok(0) | Err(_) => return,
                Ok(n) => request.extend_from_slice(&bytes[..n]),
            }
        }
        let text = String::from_utf8_lossy(&request).into_owned();
        let path = text.split(' ').nth(1).unwrap_or_default().to_owned();
        // Requests after this point are not early: the handshake ends here.
        if stream.flush().is_err() {
            return;
        }
        let resumed = stream.conn.handshake_kind() == Some(HandshakeKind::Resumed);
        received.lock().unwrap().push(ReceivedRequest { path: path.clone(), early, resumed });
        if response(&mut stream, &path).is_err() {
            return;
        }
        request.clear();
        early = false;
    }
}

fn is_complete(request: &[u8]) -> bool {
    request.windows(4).any(|four| four == b"\r\n\r\n")
}

/// Sends pending data, and receives.
fn step(connection: &mut ServerConnection, stream: &mut TcpStream) -> io::Result<()> {
    while connection.wants_write() {
        connection.write_tls(stream)?;
    }
    receive(connection, stream)
}

fn receive(connection: &mut ServerConnection, stream: &mut TcpStream) -> io::Result<()> {
    if connection.read_tls(stream)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let processed = connection.process_new_packets();
    processed.map(drop).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn response(stream: &mut StreamOwned<ServerConnection, TcpStream>, path: &str) -> io::Result<()> {
    let (status, kind, body) = match path {
        "/" => ("200 OK", "text/html", PAGE),
        "/slow" => ("200 OK", "text/html", SLOW_PAGE),
        "/picture" => ("200 OK", "image/svg+xml", PICTURE),
        "/late-picture" => {
            thread::sleep(Duration::from_secs(1));
            ("200 OK", "image/svg+xml", PICTURE)
        }
        "/never" => ("200 OK", "text/html", ""),
        _ => ("404 Not Found", "text/html", "<h1>Nothing here</h1>"),
    };
    // Announces a byte that is never sent.
    let length = if path == "/never" { 1 } else { body.len() };
    write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\
         cache-control: max-age=60\r\n\r\n{body}"
    )?;
    stream.flush()
}

const PAGE: &str = "<!doctype html><title>A page</title><h1>Hello</h1><img src=/picture>";

/// Its picture arrives a second late.
const SLOW_PAGE: &str = "<!doctype html><h1>Wait</h1><img src=/late-picture>";

const PICTURE: &str = "<svg xmlns='http://www.w3.org/2000/svg' width='300' height='200'>\
                       <rect width='300' height='200' fill='green'/></svg>";
