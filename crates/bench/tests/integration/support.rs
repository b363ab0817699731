//! A server in this process, and a proxy in front of it that misbehaves.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use firstflight_bench::{Exchange, Limit, LoadConfig, LoadError, LoadResult, Model};
use firstflight_config::{CertificateSource, Content, ServerConfig};
use firstflight_server::Server;
use firstflight_tls::Trust;
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// A server that runs until the test ends.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) certificate: PathBuf,
    _dir: TempDir,
    _runtime: Runtime,
}

impl TestServer {
    /// Serves a page at `/`.
    pub(crate) fn files(change: impl FnOnce(&mut ServerConfig)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("index.html"), "x".repeat(1000)).unwrap();
        let content = Content::files(dir.path().to_owned());
        Self::start(dir, content, change)
    }

    /// Responds to pings.
    pub(crate) fn ping_pong() -> Self {
        Self::start(tempfile::tempdir().unwrap(), Content::PingPong, |_| {})
    }

    fn start(dir: TempDir, content: Content, change: impl FnOnce(&mut ServerConfig)) -> Self {
        let certificate = dir.path().join("certificate");
        let mut config = ServerConfig::new("127.0.0.1:0".parse().unwrap(), content);
        config.certificate =
            CertificateSource::SelfSigned { names: Vec::new(), save: Some(certificate.clone()) };
        change(&mut config);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let server = runtime.block_on(Server::bind(config)).unwrap();
        let address = server.local_addrs()[0];
        runtime.spawn(server.run(std::future::pending()));
        Self { address, certificate, _dir: dir, _runtime: runtime }
    }

    /// A load of this many connections, four at a time, that trust its certificate.
    pub(crate) fn load(&self, connections: u64) -> LoadConfig {
        load(self.address, self.certificate.clone(), connections)
    }
}

fn load(address: SocketAddr, certificate: PathBuf, connections: u64) -> LoadConfig {
    LoadConfig {
        exchange: Exchange::get("localhost", "/"),
        trust: Trust::File(certificate),
        model: Model::Closed { connections: 4 },
        limit: Limit::Connections(connections),
        // Long enough never to matter on a loaded machine.
        timeout: Duration::from_secs(30),
        ..LoadConfig::new(vec![address], "localhost")
    }
}

/// Runs a load without progress reports.
pub(crate) fn run(config: &LoadConfig) -> Result<LoadResult, LoadError> {
    firstflight_bench::run(config, |_| ControlFlow::Continue(()))
}

/// What the proxy does with a connection.
#[derive(Clone, Copy)]
pub(crate) enum Behaviour {
    /// Forwards the connection to the server.
    Pass,
    /// Forwards the connection after this time.
    Delay(Duration),
    /// Sends nothing until the client closes.
    Stall,
    /// Resets the connection.
    Reset,
    /// Sends a fatal alert (handshake_failure, RFC 8446 section 6.2).
    Alert,
    /// Closes the connection after the first bytes of the server.
    Truncate,
}

/// Starts a proxy in front of a server. `behaviour` takes the index of the connection.
pub(crate) fn start_proxy(
    server: &TestServer,
    behaviour: impl Fn(usize) -> Behaviour + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    start_proxy_on(listener, server, Duration::ZERO, behaviour);
    address
}

/// Starts a proxy on a listener, which accepts nothing during the pause.
pub(crate) fn start_proxy_on(
    listener: TcpListener,
    server: &TestServer,
    pause: Duration,
    behaviour: impl Fn(usize) -> Behaviour + Send + 'static,
) {
    let target = server.address;
    thread::spawn(move || {
        thread::sleep(pause);
        for (index, client) in listener.incoming().enumerate() {
            let (client, behaviour) = (client.unwrap(), behaviour(index));
            thread::spawn(move || handle(client, target, behaviour));
        }
    });
}

fn handle(mut client: TcpStream, target: SocketAddr, behaviour: Behaviour) {
    match behaviour {
        Behaviour::Pass => pass(client, target, usize::MAX),
        Behaviour::Truncate => pass(client, target, 1),
        Behaviour::Delay(time) => {
            thread::sleep(time);
            pass(client, target, usize::MAX);
        }
        Behaviour::Stall => drop(client.read_to_end(&mut Vec::new())),
        // Closing with unread bytes resets.
        Behaviour::Reset => drop(client.peek(&mut [0])),
        Behaviour::Alert => {
            let _ = client.write_all(&[21, 3, 3, 0, 2, 2, 40]);
            let _ = client.read_to_end(&mut Vec::new());
        }
    }
}

/// Forwards bytes. Stops after this number of reads from the server.
fn pass(client: TcpStream, target: SocketAddr, reads: usize) {
    let server = TcpStream::connect(target).unwrap();
    let (client, server) = (Arc::new(client), Arc::new(server));
    let up = {
        let (client, server) = (client.clone(), server.clone());
        thread::spawn(move || copy(&client, &server, usize::MAX))
    };
    copy(&server, &client, reads);
    if reads != usize::MAX {
        let _ = client.shutdown(Shutdown::Both);
    }
    let _ = up.join();
}

fn copy(mut from: &TcpStream, mut to: &TcpStream, reads: usize) {
    let mut buffer = [0; 16 * 1024];
    for _ in 0..reads {
        match from.read(&mut buffer) {
            Ok(count) if count > 0 && to.write_all(&buffer[..count]).is_ok() => {}
            _ => break,
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
