//! A server on the endpoint, and clients on quinn.

use std::io::{self, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use firstflight_endpoint::{Connection, DatagramSocket, Endpoint, Socket};
use firstflight_quic::{AddressTokens, ClientCrypto, Remembered, ResetKey, ResumptionInbox};
use firstflight_quic::{ServerCrypto, SpentTokens};
use firstflight_tickets::{Schedule, TicketKeys, UnixTime};
use firstflight_tls::{
    AcceptorConfig, ConnectorConfig, Identity, OpenedTicket, TicketSealer, Trust,
};
use quinn_proto::{EndpointConfig, IdleTimeout, ServerConfig, TransportConfig};
use quinn_proto::{ValidationTokenConfig, VarInt};
use quinn_udp::{RecvMeta, Transmit};
use tokio::time::timeout;

/// A server's endpoint and its configuration.
pub(crate) struct Server {
    pub(crate) endpoint: Endpoint,
    pub(crate) address: SocketAddr,
    config: ServerConfig,
    crypto: Arc<ServerCrypto>,
}

impl Server {
    pub(crate) fn new() -> Self {
        Self::on(|socket| socket)
    }

    /// With a layer above its socket.
    pub(crate) fn on<S: DatagramSocket>(layer: impl FnOnce(Socket) -> S) -> Self {
        Self::with(layer, |_| {})
    }

    /// As [`Server::on`], with changed transport settings.
    pub(crate) fn with<S: DatagramSocket>(
        layer: impl FnOnce(Socket) -> S,
        change: impl FnOnce(&mut TransportConfig),
    ) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = socket.local_addr().unwrap();
        let (config, crypto) = server_config(change);
        let socket = Arc::new(layer(Socket::new(socket).unwrap()));
        let endpoint = EndpointConfig::new(Arc::new(ResetKey::new([1; 32])));
        let endpoint = Endpoint::new(endpoint, config.clone(), socket);
        Self { endpoint, address, config, crypto }
    }

    /// The configuration of a connection, which accepts early data.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        let mut config = self.config.clone();
        config.crypto = self.crypto.for_connection(Box::new(|_| true), None);
        Arc::new(config)
    }

    /// Accepts the next connection.
    pub(crate) async fn accept(&self) -> Connection {
        let incoming = within(self.endpoint.accept()).await.unwrap();
        incoming.accept_with(self.config()).unwrap()
    }

    /// A client and its connection on this side, both after the handshake.
    pub(crate) async fn pair(&self, client: &Client) -> (quinn::Connection, Connection) {
        let connecting = client.connect(self.address);
        let server = self.accept().await;
        let client = within(connecting).await.unwrap();
        within(server.handshake_complete()).await.unwrap();
        (client, server)
    }

    /// Returns what it reads from each stream of each connection.
    pub(crate) fn echo(&self) {
        let (endpoint, config) = (self.endpoint.clone(), self.config());
        tokio::spawn(async move {
            while let Some(incoming) = endpoint.accept().await {
                let Ok(connection) = incoming.accept_with(config.clone()) else { continue };
                tokio::spawn(echo(connection));
            }
        });
    }
}

/// Returns what it reads from each stream.
pub(crate) async fn echo(connection: Connection) {
    while let Ok((mut send, mut recv)) = connection.accept_bi().await {
        tokio::spawn(async move {
            let request = recv.read_to_end(4 << 20).await.unwrap();
            send.write_all(&request).await.unwrap();
            send.finish().unwrap();
        });
    }
}

/// A client's endpoint.
pub(crate) struct Client {
    endpoint: quinn::Endpoint,
}

impl Client {
    pub(crate) fn new() -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let config = EndpointConfig::new(Arc::new(ResetKey::new([2; 32])));
        let runtime = Arc::new(quinn::TokioRuntime);
        Self { endpoint: quinn::Endpoint::new(config, None, socket, runtime).unwrap() }
    }

    pub(crate) fn connect(&self, address: SocketAddr) -> quinn::Connecting {
        self.connect_with(address, Remembered::default()).0
    }

    pub(crate) fn connect_with(
        &self,
        address: SocketAddr,
        remembered: Remembered,
    ) -> (quinn::Connecting, ResumptionInbox) {
        let tls =
            ConnectorConfig { alpn: vec![b"test".to_vec()], ..ConnectorConfig::new(Trust::Anyone) };
        let crypto = ClientCrypto::new(tls).unwrap();
        let (crypto, tokens, inbox) = crypto.for_connection("localhost", remembered).unwrap();
        let mut config = quinn::ClientConfig::new(crypto);
        config.token_store(tokens);
        (self.endpoint.connect_with(config, address, "localhost").unwrap(), inbox)
    }
}

/// Sends a request on a new stream, and reads the response.
pub(crate) async fn request(connection: &quinn::Connection, request: &[u8]) -> Vec<u8> {
    let (mut send, mut recv) = within(connection.open_bi()).await.unwrap();
    let writing = async {
        send.write_all(request).await.unwrap();
        send.finish().unwrap();
    };
    let reading = async { recv.read_to_end(4 << 20).await.unwrap() };
    within(async { tokio::join!(writing, reading) }).await.1
}

fn server_config(change: impl FnOnce(&mut TransportConfig)) -> (ServerConfig, Arc<ServerCrypto>) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let mut tls = AcceptorConfig::new(Identity::from_pem(cert.as_bytes(), key.as_bytes()).unwrap());
    tls.alpn = vec![b"test".to_vec()];
    tls.early_data = true;
    tls.sealer = Some(Arc::new(Unsealed));
    let crypto = ServerCrypto::new(tls).unwrap();
    let refusing = crypto.for_connection(Box::new(|_| false), None);
    let keys = Arc::new(TicketKeys::in_process(Schedule::default(), now()));
    let mut config = ServerConfig::new(refusing, Arc::new(AddressTokens::new(keys, now)));
    let mut validation = ValidationTokenConfig::default();
    validation.sent(1).log(Arc::new(SpentTokens::new(1 << 10, now)));
    let mut transport = TransportConfig::default();
    transport.max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(30_000))));
    change(&mut transport);
    config.transport_config(Arc::new(transport)).validation_token_config(validation);
    (config, crypto)
}

/// Issues tickets without encryption.
struct Unsealed;

impl TicketSealer for Unsealed {
    fn max_overhead(&self) -> usize {
        0
    }

    fn seal(&self, session: &[u8]) -> Option<Vec<u8>> {
        Some(session.to_vec())
    }

    fn open(&self, ticket: &[u8]) -> OpenedTicket {
        OpenedTicket::Session(ticket.to_vec())
    }
}

fn now() -> UnixTime {
    UnixTime::from(std::time::SystemTime::now())
}

/// A layer that counts, loses or rejects sent datagrams, and changes or fails to receive datagrams that
/// arrive.
pub(crate) struct Layer {
    pub(crate) socket: Socket,
    pub(crate) state: Arc<LayerState>,
}

#[derive(Default)]
pub(crate) struct LayerState {
    /// The percentage of send calls that are lost. Pseudorandom, since probes may have a regular interval.
    pub(crate) lose: usize,
    /// Each send call whose number is a multiple of this finds the socket full; 0: none.
    pub(crate) full: usize,
    /// Send calls so far.
    pub(crate) calls: AtomicUsize,
    /// Send calls after this number are lost; 0: none.
    pub(crate) last: AtomicUsize,
    pub(crate) is_full: AtomicBool,
    /// How many calls to receive fail.
    pub(crate) failures: AtomicUsize,
    /// Where received datagrams seem to come from and to go to.
    pub(crate) change: Option<fn(&mut RecvMeta)>,
    /// Buffers received.
    pub(crate) received: AtomicUsize,
}

impl DatagramSocket for Layer {
    fn socket(&self) -> &Socket {
        &self.socket
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let call = self.state.calls.fetch_add(1, Ordering::SeqCst) + 1;
        let is_turn = |every: usize| every > 0 && call.is_multiple_of(every);
        if is_turn(self.state.full) {
            self.state.is_full.store(true, Ordering::SeqCst);
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let drawn = call.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let last = self.state.last.load(Ordering::SeqCst);
        if drawn % 100 < self.state.lose || last > 0 && call > last {
            return Ok(());
        }
        self.socket.try_send(transmit)
    }

    fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let one_less = |failures: usize| failures.checked_sub(1);
        let failures = &self.state.failures;
        if failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok() {
            return Poll::Ready(Err(io::ErrorKind::OutOfMemory.into()));
        }
        let count = ready!(self.socket.poll_receive(cx, buffers, meta))?;
        if let Some(change) = self.state.change {
            meta.iter_mut().take(count).for_each(change);
        }
        self.state.received.fetch_add(count, Ordering::SeqCst);
        Poll::Ready(Ok(count))
    }

    /// Reports once that a full socket is still full, and wakes the task.
    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.state.is_full.swap(false, Ordering::SeqCst) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.socket.poll_writable(cx)
    }
}

/// Limits how long a test waits.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(30), future).await.expect("within half a minute")
}
