//! What the tests share: a server of ours in this process, and a front before it that misbehaves.

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
pub(crate) struct Rig {
    pub(crate) address: SocketAddr,
    pub(crate) certificate: PathBuf,
    _dir: TempDir,
    _runtime: Runtime,
}

impl Rig {
    /// Serves a page at `/`.
    pub(crate) fn files(change: impl FnOnce(&mut ServerConfig)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("index.html"), "x".repeat(1000)).unwrap();
        let content = Content::files(dir.path().to_owned());
        Self::start(dir, content, change)
    }

    /// Answers pings.
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

    /// So many connections to it, four at a time, that trust it.
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

/// Runs it without looking at its progress.
pub(crate) fn run(config: &LoadConfig) -> Result<LoadResult, LoadError> {
    firstflight_bench::run(config, |_| ControlFlow::Continue(()))
}

/// What the front does with a connection.
#[derive(Clone, Copy)]
pub(crate) enum Deed {
    /// Passes it on to the server.
    Pass,
    /// Passes it on after this time.
    Late(Duration),
    /// Says nothing until the client goes.
    Stall,
    /// Resets it.
    Reset,
    /// Sends a fatal alert (handshake_failure, RFC 8446 section 6.2).
    Alert,
    /// Closes it after the server's first bytes.
    Cut,
}

/// A front before a server: what it does with each connection follows from its number.
pub(crate) fn front(server: &Rig, deed: impl Fn(usize) -> Deed + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    front_at(listener, server, Duration::ZERO, deed);
    address
}

/// The same with a listener of its own, which accepts nothing for a while.
pub(crate) fn front_at(
    listener: TcpListener,
    server: &Rig,
    pause: Duration,
    deed: impl Fn(usize) -> Deed + Send + 'static,
) {
    let target = server.address;
    thread::spawn(move || {
        thread::sleep(pause);
        for (index, client) in listener.incoming().enumerate() {
            let (client, deed) = (client.unwrap(), deed(index));
            thread::spawn(move || treat(client, target, deed));
        }
    });
}

fn treat(mut client: TcpStream, target: SocketAddr, deed: Deed) {
    match deed {
        Deed::Pass => pass(client, target, usize::MAX),
        Deed::Cut => pass(client, target, 1),
        Deed::Late(time) => {
            thread::sleep(time);
            pass(client, target, usize::MAX);
        }
        Deed::Stall => drop(client.read_to_end(&mut Vec::new())),
        // Closing with unread bytes resets.
        Deed::Reset => drop(client.peek(&mut [0])),
        Deed::Alert => {
            let _ = client.write_all(&[21, 3, 3, 0, 2, 2, 40]);
            let _ = client.read_to_end(&mut Vec::new());
        }
    }
}

/// Passes bytes on, but so many reads of the server's at most.
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
