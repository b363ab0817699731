//! QUIC connections between quinn and itself, with rustls: small ones, datagram by datagram.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use firstflight_fuzz::{Event, Flags, UDP};
use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig,
    Event as Told, ServerConfig, StreamEvent, TransportConfig,
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::Outcome;

/// A client and a server, to connect more than once.
pub struct Pair {
    client: ClientConfig,
    server: Arc<ServerConfig>,
    log: Arc<Log>,
}

#[derive(Debug, Default)]
struct Log(Mutex<String>);

impl rustls::KeyLog for Log {
    fn log(&self, label: &str, random: &[u8], secret: &[u8]) {
        let mut log = self.0.lock().expect("a log");
        *log += label;
        for bytes in [random, secret] {
            log.push(' ');
            for byte in bytes {
                let _ = write!(log, "{byte:02x}");
            }
        }
        log.push('\n');
    }
}

struct Side {
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
}

const ADDRESSES: [SocketAddr; 2] = [
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 40_000),
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 443),
];

impl Pair {
    pub fn new() -> Outcome<Self> {
        let log = Arc::new(Log::default());
        let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
        let mut roots = rustls::RootCertStore::empty();
        roots.add(issued.cert.der().clone())?;
        let ring = Arc::new(rustls::crypto::ring::default_provider());
        let versions = &[&rustls::version::TLS13];
        let mut client = rustls::ClientConfig::builder_with_provider(ring.clone())
            .with_protocol_versions(versions)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        client.enable_early_data = true;
        client.key_log = log.clone();
        let key = PrivatePkcs8KeyDer::from(issued.signing_key.serialize_der());
        let mut server = rustls::ServerConfig::builder_with_provider(ring)
            .with_protocol_versions(versions)?
            .with_no_client_auth()
            .with_single_cert(vec![issued.cert.der().clone()], PrivateKeyDer::Pkcs8(key))?;
        server.max_early_data_size = u32::MAX;
        for alpn in [&mut client.alpn_protocols, &mut server.alpn_protocols] {
            *alpn = vec![b"h3".to_vec()];
        }
        let mut transport = TransportConfig::default();
        transport.mtu_discovery_config(None);
        let transport = Arc::new(transport);
        let mut client = ClientConfig::new(Arc::new(QuicClientConfig::try_from(client)?));
        client.transport_config(transport.clone());
        let mut server = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(server)?));
        server.transport_config(transport);
        Ok(Self { client, server: Arc::new(server), log })
    }

    /// A connection as a capture; with early data from the second on.
    pub fn connect(&self, retry: bool) -> Outcome<Vec<u8>> {
        let (mut capture, mut now) = (Vec::new(), Instant::now());
        let endpoint =
            |server| Endpoint::new(Arc::new(EndpointConfig::default()), server, true, None);
        let mut sides = [None, Some(self.server.clone())]
            .map(|server| Side { endpoint: endpoint(server), connection: None });
        let client = self.client.clone();
        let made = sides[0].endpoint.connect(now, client, ADDRESSES[1], "localhost")?;
        sides[0].connection = Some(made);
        let mut asked = false;
        for _round_trip in 0..12 {
            for from in 0..2 {
                now += Duration::from_millis(10);
                asked |= sides[from].talk(from, asked, now)?;
                for datagram in sides[from].datagrams(now) {
                    note(&mut capture, from, &datagram);
                    let response = sides[1 - from].hear(ADDRESSES[from], &datagram, retry, now)?;
                    if let Some(response) = response {
                        note(&mut capture, 1 - from, &response);
                        sides[from].hear(ADDRESSES[1 - from], &response, false, now)?;
                    }
                }
            }
        }
        let secrets = std::mem::take(&mut *self.log.0.lock().expect("a log"));
        let flags = Flags(Flags::SECRETS);
        let body = secrets.as_bytes();
        Event { flags, gap: 0, seq: 0, ack: 0, options: 0, body }.write(&mut capture);
        Ok(capture)
    }
}

fn note(capture: &mut Vec<u8>, from: usize, body: &[u8]) {
    let flags = Flags(if from == 0 { 0 } else { Flags::TO_CLIENT });
    Event { flags, gap: 10_000, seq: 0, ack: 0, options: UDP, body }.write(capture);
}

impl Side {
    /// Asks as soon as it can, answers, closes; whether it has asked.
    fn talk(&mut self, side: usize, asked: bool, now: Instant) -> Outcome<bool> {
        let Some((_, connection)) = &mut self.connection else { return Ok(false) };
        let may_ask = connection.has_0rtt() || !connection.is_handshaking();
        if side == 0 && !asked && may_ask {
            let stream = connection.streams().open(Dir::Bi).ok_or("no stream")?;
            connection.send_stream(stream).write(b"\x01\x02hi")?;
            connection.send_stream(stream).finish()?;
            return Ok(true);
        }
        let (mut opened, mut answered) = (false, false);
        while let Some(told) = connection.poll() {
            opened |= matches!(told, Told::Stream(StreamEvent::Opened { .. }));
            answered |= matches!(told, Told::Stream(StreamEvent::Readable { .. }));
        }
        if side == 1 && opened {
            let stream = connection.streams().accept(Dir::Bi).ok_or("no stream")?;
            connection.send_stream(stream).write(b"\x01\x01h\x00\x04page")?;
            connection.send_stream(stream).finish()?;
        }
        if side == 0 && answered {
            connection.close(now, 0x100u32.into(), Default::default());
        }
        Ok(false)
    }

    fn datagrams(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let Some((handle, connection)) = &mut self.connection else { return Vec::new() };
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(*handle, event) {
                connection.handle_event(event);
            }
        }
        connection.handle_timeout(now);
        let mut all = Vec::new();
        let mut buffer = Vec::new();
        while let Some(transmit) = connection.poll_transmit(now, 1, &mut buffer) {
            all.push(buffer[..transmit.size].to_vec());
            buffer.clear();
        }
        all
    }

    /// Gives the datagram with which an endpoint answers without a connection.
    fn hear(
        &mut self,
        from: SocketAddr,
        datagram: &[u8],
        retry: bool,
        now: Instant,
    ) -> Outcome<Option<Vec<u8>>> {
        let mut buffer = Vec::new();
        let data = BytesMut::from(datagram);
        match self.endpoint.handle(now, from, None, None, data, &mut buffer) {
            Some(DatagramEvent::ConnectionEvent(_, event)) => {
                if let Some((_, connection)) = &mut self.connection {
                    connection.handle_event(event);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                if retry && !incoming.remote_address_validated() {
                    let transmit = self.endpoint.retry(incoming, &mut buffer)?;
                    return Ok(Some(buffer[..transmit.size].to_vec()));
                }
                let made = self.endpoint.accept(incoming, now, &mut buffer, None);
                self.connection = Some(made.map_err(|error| error.cause)?);
            }
            Some(DatagramEvent::Response(_)) | None => {}
        }
        Ok(None)
    }
}
