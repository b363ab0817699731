//! A baseline for `firstflight_bench` over QUIC: quinn's state machines with their own provider
//! (rustls on ring). One thread, one socket, no timeouts, no histogram; prints one line of JSON.
//!
//!     bare_quic ADDRESS full|resumed|0-RTT CONNECTIONS SECONDS
//!
//! Each connection requests `/` by HTTP/3 and reads to the end of the stream. The server's
//! certificate is not verified. `scripts/load-client` compares the two.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{
    ClientConfig, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig, EndpointEvent,
    Event, StreamEvent, StreamId, TransportConfig, VarInt,
};
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue,
};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, NamedGroup, SignatureScheme};

type Failed = Box<dyn std::error::Error>;

fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, kind, connections, seconds] = arguments.as_slice() else {
        return Err("usage: bare_quic ADDRESS full|resumed|0-RTT CONNECTIONS SECONDS".into());
    };
    let max_open = connections.parse()?;
    let mut client = Client::new(address.parse()?, kind)?;
    if kind != "full" {
        // A few full handshakes for tickets. Afterwards each connection receives its own.
        client.drive(max_open, Duration::from_millis(100))?;
    }
    let (before, start) = (cpu_micros(), Instant::now());
    let counts = client.drive(max_open, Duration::from_secs_f64(seconds.parse()?))?;
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_micros() - before);
    println!(
        "{{\"kind\":\"{kind}\",\"completed\":{},\"early\":{},\"failed\":{},\
         \"seconds\":{seconds:.3},\"rate\":{:.1},\"client_us\":{:.2}}}",
        counts.completed,
        counts.early,
        counts.failed,
        counts.completed as f64 / seconds,
        cpu as f64 / counts.completed.max(1) as f64,
    );
    Ok(())
}

#[derive(Default)]
struct Counts {
    completed: u64,
    early: u64,
    failed: u64,
}

struct Client {
    address: SocketAddr,
    config: ClientConfig,
    endpoint: Endpoint,
    socket: UdpSocket,
    state: UdpSocketState,
    tickets: Arc<Tickets>,
    wants_tickets: bool,
    request: Vec<u8>,
    /// Indexed by connection handle.
    open: Vec<Option<Box<Connection>>>,
    send_buffer: Vec<u8>,
}

struct Connection {
    quic: quinn_proto::Connection,
    request: Option<StreamId>,
    responded: bool,
    has_ticket: bool,
}

impl Client {
    fn new(address: SocketAddr, kind: &str) -> Result<Self, Failed> {
        let tickets = Arc::new(Tickets::default());
        let mut provider = ring::default_provider();
        provider.kx_groups.retain(|group| group.name() == NamedGroup::X25519);
        let provider = Arc::new(provider);
        let mut tls = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate(provider)))
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"h3".to_vec()];
        tls.enable_early_data = kind == "0-RTT";
        tls.resumption = match kind {
            "full" => Resumption::disabled(),
            _ => Resumption::store(Arc::clone(&tickets) as Arc<dyn ClientSessionStore>),
        };
        let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
        let mut transport = TransportConfig::default();
        transport.mtu_discovery_config(None).initial_mtu(1452);
        config.transport_config(Arc::new(transport));
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        let state = UdpSocketState::new((&socket).into())?;
        Ok(Self {
            address,
            config,
            endpoint: Endpoint::new(Arc::new(EndpointConfig::default()), None, false, None),
            socket,
            state,
            tickets,
            wants_tickets: kind != "full",
            request: request(address),
            open: Vec::new(),
            send_buffer: Vec::new(),
        })
    }

    /// Keeps `max_open` connections open for this time.
    fn drive(&mut self, max_open: usize, time: Duration) -> Result<Counts, Failed> {
        let end = Instant::now() + time;
        let mut counts = Counts::default();
        for _ in 0..max_open {
            self.start_connection()?;
        }
        let mut received = vec![0; 32 * 64 * 1024];
        while self.open.iter().any(Option::is_some) {
            self.wait()?;
            let mut touched = self.receive(&mut received);
            let now = Instant::now();
            for (index, connection) in self.open.iter_mut().enumerate() {
                let Some(connection) = connection else { continue };
                if connection.quic.poll_timeout().is_some_and(|due| due <= now) {
                    connection.quic.handle_timeout(now);
                    touched.push(index);
                }
            }
            touched.sort_unstable();
            touched.dedup();
            for index in touched {
                if self.step(index, &mut counts) && Instant::now() < end {
                    self.start_connection()?;
                }
            }
        }
        Ok(counts)
    }

    fn start_connection(&mut self) -> Result<(), Failed> {
        let config = self.config.clone();
        let (handle, quic) =
            self.endpoint.connect(Instant::now(), config, self.address, "localhost")?;
        let mut connection =
            Box::new(Connection { quic, request: None, responded: false, has_ticket: false });
        if connection.quic.has_0rtt() {
            connection.send_request(&self.request);
        }
        if self.open.len() <= handle.0 {
            self.open.resize_with(handle.0 + 1, || None);
        }
        self.open[handle.0] = Some(connection);
        self.send(handle.0);
        Ok(())
    }

    /// Waits for a datagram or a timer.
    fn wait(&mut self) -> Result<(), Failed> {
        let now = Instant::now();
        let due = self.open.iter_mut().flatten().filter_map(|open| open.quic.poll_timeout()).min();
        let timeout = due.map_or(1000, |due| due.saturating_duration_since(now).as_millis() + 1);
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::from(timeout.min(1000) as u16))?;
        Ok(())
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Vec<usize> {
        let mut touched = Vec::new();
        let mut metas = [RecvMeta::default(); 32];
        let mut buffers = buffer.chunks_exact_mut(64 * 1024);
        let mut slices: [IoSliceMut<'_>; 32] =
            std::array::from_fn(|_| IoSliceMut::new(buffers.next().unwrap()));
        let count = self.state.recv((&self.socket).into(), &mut slices, &mut metas).unwrap_or(0);
        for (slice, meta) in slices.iter().zip(&metas[..count]) {
            let mut received = BytesMut::from(&slice[..meta.len]);
            while !received.is_empty() {
                let data = received.split_to(meta.stride.min(received.len()));
                self.send_buffer.clear();
                let now = Instant::now();
                let event =
                    self.endpoint.handle(now, meta.addr, None, None, data, &mut self.send_buffer);
                let Some(DatagramEvent::ConnectionEvent(handle, event)) = event else { continue };
                let Some(connection) = &mut self.open[handle.0] else { continue };
                let before = self.tickets.count();
                connection.quic.handle_event(event);
                connection.has_ticket |= self.tickets.count() > before;
                touched.push(handle.0);
            }
        }
        touched
    }

    /// Processes events. Returns whether the connection has ended.
    fn step(&mut self, index: usize, counts: &mut Counts) -> bool {
        let Some(connection) = &mut self.open[index] else { return false };
        let lost = connection.advance(&self.request);
        let done = connection.responded && (connection.has_ticket || !self.wants_tickets);
        if done {
            counts.completed += 1;
            let early = connection.quic.has_0rtt() && connection.quic.accepted_0rtt();
            counts.early += u64::from(early);
            connection.quic.close(Instant::now(), VarInt::from_u32(0x100), Bytes::new());
        }
        while let Some(event) = connection.quic.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(ConnectionHandle(index), event) {
                connection.quic.handle_event(event);
            }
        }
        self.send(index);
        if done || lost {
            counts.failed += u64::from(!done);
            self.open[index] = None;
            self.endpoint.handle_event(ConnectionHandle(index), EndpointEvent::drained());
        }
        done || lost
    }

    fn send(&mut self, index: usize) {
        let Some(connection) = &mut self.open[index] else { return };
        loop {
            self.send_buffer.clear();
            let now = Instant::now();
            let Some(sent) = connection.quic.poll_transmit(now, 10, &mut self.send_buffer) else {
                break;
            };
            let transmit = Transmit {
                destination: sent.destination,
                ecn: None,
                contents: &self.send_buffer,
                segment_size: sent.segment_size,
                src_ip: None,
            };
            // A failure counts as packet loss.
            let _ = self.state.send((&self.socket).into(), &transmit);
        }
    }
}

impl Connection {
    /// Processes events. Returns whether the connection was lost.
    fn advance(&mut self, request: &[u8]) -> bool {
        while let Some(event) = self.quic.poll() {
            match event {
                Event::Connected if self.request.is_none() || !self.quic.accepted_0rtt() => {
                    self.send_request(request);
                }
                Event::Stream(StreamEvent::Readable { id }) if self.request == Some(id) => {
                    let mut stream = self.quic.recv_stream(id);
                    let Ok(mut chunks) = stream.read(true) else { continue };
                    while let Ok(chunk) = chunks.next(usize::MAX) {
                        self.responded |= chunk.is_none();
                        if chunk.is_none() {
                            break;
                        }
                    }
                    let _ = chunks.finalize();
                }
                Event::ConnectionLost { .. } => return true,
                _ => {}
            }
        }
        false
    }

    fn send_request(&mut self, request: &[u8]) {
        if let Some(control) = self.quic.streams().open(Dir::Uni) {
            // Empty SETTINGS (RFC 9114 section 6.2.1).
            let _ = self.quic.send_stream(control).write(&[0, 4, 0]);
        }
        self.request = self.quic.streams().open(Dir::Bi);
        if let Some(id) = self.request {
            let _ = self.quic.send_stream(id).write(request);
            let _ = self.quic.send_stream(id).finish();
        }
    }
}

/// A HEADERS frame with GET, https, this authority and `/` (RFC 9204 appendix A).
fn request(address: SocketAddr) -> Vec<u8> {
    let authority = address.to_string();
    let mut fields = vec![0, 0, 0xc0 | 17, 0xc0 | 23, 0x50, authority.len() as u8];
    fields.extend_from_slice(authority.as_bytes());
    fields.push(0xc0 | 1);
    [&[1, fields.len() as u8][..], &fields].concat()
}

/// Uses the newest ticket first, and each once.
#[derive(Debug, Default)]
struct Tickets(Mutex<(VecDeque<Tls13ClientSessionValue>, u64)>);

impl Tickets {
    fn count(&self) -> u64 {
        self.0.lock().unwrap().1
    }
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, _: ServerName<'static>, _: NamedGroup) {}

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, _: ServerName<'static>, _: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, _: ServerName<'static>, ticket: Tls13ClientSessionValue) {
        let mut tickets = self.0.lock().unwrap();
        tickets.0.push_back(ticket);
        tickets.1 += 1;
        if tickets.0.len() > 1024 {
            tickets.0.pop_front();
        }
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.0.lock().unwrap().0.pop_back()
    }
}

#[derive(Debug)]
struct AcceptAnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// CPU time of this process so far.
fn cpu_micros() -> i64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("our own usage");
    (usage.user_time() + usage.system_time()).num_microseconds()
}
