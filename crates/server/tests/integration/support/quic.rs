//! An HTTP/3 client that works step by step, and a relay that records and delays datagrams.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use firstflight_quic::{ClientCrypto, Remembered, ResetKey, ResumptionInbox};
use firstflight_tls::{CipherPolicy, ConnectorConfig, Handshake, Trust};
use h3::client::{RequestStream, SendRequest};
use h3::error::StreamError;
use h3_quinn::{BidiStream, OpenStreams};
use http::{HeaderMap, Method, Request, StatusCode};
use quinn::udp::{Transmit, UdpSockRef, UdpSocketState};
use quinn::{ClientConfig, Endpoint, EndpointConfig, TransportConfig, ZeroRttAccepted};
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::TEST_TIMEOUT;

/// A connection with HTTP/3.
pub(crate) struct Quic {
    pub(crate) endpoint: Endpoint,
    pub(crate) connection: quinn::Connection,
    inbox: ResumptionInbox,
    accepted: Option<ZeroRttAccepted>,
    pub(crate) requests: SendRequest<OpenStreams, Bytes>,
    /// Ends when the connection does.
    pub(crate) driver: JoinHandle<h3::error::ConnectionError>,
    /// Keeps the relay running, if the connection uses one.
    _relay: Option<UdpRelay>,
}

/// A response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

pub(crate) type Stream = RequestStream<BidiStream<Bytes>, Bytes>;

/// The configuration of one connection, and where its tickets are stored.
pub(crate) fn config(alpn: &str, remembered: Remembered) -> (ClientConfig, ResumptionInbox) {
    config_with("localhost", alpn, remembered, CipherPolicy::default())
}

fn config_with(
    host: &str,
    alpn: &str,
    remembered: Remembered,
    ciphers: CipherPolicy,
) -> (ClientConfig, ResumptionInbox) {
    let crypto = ClientCrypto::new(ConnectorConfig {
        alpn: vec![alpn.as_bytes().to_vec()],
        ciphers,
        ..ConnectorConfig::new(Trust::Anyone)
    });
    let (crypto, tokens, inbox) = crypto.unwrap().for_connection(host, remembered).unwrap();
    let mut config = ClientConfig::new(crypto);
    let mut transport = TransportConfig::default();
    // Merged datagrams could not be counted.
    transport.enable_segmentation_offload(false);
    config.transport_config(Arc::new(transport)).token_store(tokens);
    (config, inbox)
}

pub(crate) fn endpoint() -> Endpoint {
    let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let config = EndpointConfig::new(Arc::new(ResetKey::new([1; 32])));
    Endpoint::new(config, None, socket, Arc::new(quinn::TokioRuntime)).unwrap()
}

async fn http(
    connection: &quinn::Connection,
) -> (JoinHandle<h3::error::ConnectionError>, SendRequest<OpenStreams, Bytes>) {
    let quic = h3_quinn::Connection::new(connection.clone());
    let (mut driver, requests) =
        h3::client::builder().send_grease(false).build(quic).await.unwrap();
    let closed = async move { std::future::poll_fn(|cx| driver.poll_close(cx)).await };
    (tokio::spawn(closed), requests)
}

impl Quic {
    /// Connects, with early data if there is a session for it; the handshake may be incomplete.
    pub(crate) async fn connect(address: SocketAddr, remembered: Remembered) -> Self {
        Self::connect_with(address, "localhost", remembered, CipherPolicy::default()).await
    }

    /// Connects with this host as server name (SNI), or without one if it is an address.
    pub(crate) async fn connect_to(
        host: &str,
        address: SocketAddr,
        remembered: Remembered,
    ) -> Self {
        Self::connect_with(address, host, remembered, CipherPolicy::default()).await
    }

    /// Connects with a ClientHello that fits into one datagram: without post-quantum keys.
    pub(crate) async fn connect_small(address: SocketAddr, remembered: Remembered) -> Self {
        let groups = Some("X25519".to_owned());
        let ciphers = CipherPolicy { groups, ..Default::default() };
        Self::connect_with(address, "localhost", remembered, ciphers).await
    }

    async fn connect_with(
        address: SocketAddr,
        host: &str,
        remembered: Remembered,
        ciphers: CipherPolicy,
    ) -> Self {
        let early = remembered.early_data;
        let (config, inbox) = config_with(host, "h3", remembered, ciphers);
        let endpoint = endpoint();
        let connecting = endpoint.connect_with(config, address, host).unwrap();
        let (connection, accepted) = match early {
            true => {
                let (connection, accepted) =
                    connecting.into_0rtt().unwrap_or_else(|_| panic!("early data is possible"));
                (connection, Some(accepted))
            }
            false => (timeout(TEST_TIMEOUT, connecting).await.unwrap().unwrap(), None),
        };
        let (driver, requests) = http(&connection).await;
        Self { endpoint, connection, inbox, accepted, requests, driver, _relay: None }
    }

    /// Sends an early request that the server refuses, and starts HTTP/3 once the client knows.
    pub(crate) async fn refused(address: SocketAddr, remembered: Remembered, target: &str) -> Self {
        Self::refused_as("localhost", address, remembered, target).await
    }

    /// Like [`refused`](Self::refused), with this server name (SNI).
    pub(crate) async fn refused_as(
        host: &str,
        address: SocketAddr,
        remembered: Remembered,
        target: &str,
    ) -> Self {
        Self::refused_over(UdpRelay::to(address).await, host, remembered, target).await
    }

    /// Like [`refused_as`](Self::refused_as), over this relay.
    pub(crate) async fn refused_over(
        relay: UdpRelay,
        host: &str,
        remembered: Remembered,
        target: &str,
    ) -> Self {
        relay.hold_server_datagrams();
        let (config, inbox) = config_with(host, "h3", remembered, CipherPolicy::default());
        let endpoint = endpoint();
        let connecting = endpoint.connect_with(config, relay.address, host).unwrap();
        let (connection, accepted) =
            connecting.into_0rtt().unwrap_or_else(|_| panic!("early data is possible"));
        // The library would close the connection together with the refused streams.
        let mut control = connection.open_uni().await.unwrap();
        control.write_all(&[0, 4, 0]).await.unwrap();
        let (mut send, _recv) = connection.open_bi().await.unwrap();
        send.write_all(&head("GET", target)).await.unwrap();
        send.finish().unwrap();
        relay.wait_for_server_bytes(1200).await;
        relay.release_server_datagrams().await;
        assert!(!timeout(TEST_TIMEOUT, accepted).await.expect("the handshake ends"), "refused");
        let (driver, requests) = http(&connection).await;
        Self { endpoint, connection, inbox, accepted: None, requests, driver, _relay: Some(relay) }
    }

    /// Whether the server accepted early data, once the handshake is complete.
    pub(crate) async fn accepted(&mut self) -> bool {
        let accepted =
            self.accepted.take().expect("early data was sent, and its result not read yet");
        timeout(TEST_TIMEOUT, accepted).await.expect("the handshake ends")
    }

    pub(crate) fn handshake(&self) -> Handshake {
        *self.connection.handshake_data().unwrap().downcast::<Handshake>().unwrap()
    }

    /// The session and token with which a later connection sends early data and needs no address
    /// validation.
    pub(crate) async fn remember(&self) -> Remembered {
        let waiting = async {
            let (mut resumptions, mut tokens) = (Vec::new(), Vec::new());
            while resumptions.is_empty() || tokens.is_empty() {
                resumptions.extend(self.inbox.take_resumptions());
                tokens.extend(self.inbox.take_tokens());
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let resumption = resumptions.pop();
            let early_data = resumption
                .as_ref()
                .is_some_and(|resumption| resumption.session.early_data_capable());
            Remembered { resumption, token: tokens.pop(), early_data }
        };
        timeout(TEST_TIMEOUT, waiting).await.expect("a ticket and a token come")
    }

    /// Sends a request's head and, without a body, its end.
    pub(crate) async fn send_head(&mut self, request: Request<()>, ends: bool) -> Stream {
        let mut stream = self.requests.send_request(request).await.unwrap();
        if ends {
            stream.finish().await.unwrap();
        }
        stream
    }

    /// Sends a request without a body. Returns `None` if the server's SETTINGS arrived first and do
    /// not allow a head of this size.
    pub(crate) async fn send_head_unless_rejected(
        &mut self,
        request: Request<()>,
    ) -> Option<Stream> {
        match self.requests.send_request(request).await {
            Err(StreamError::HeaderTooBig { .. }) => None,
            sent => {
                let mut stream = sent.unwrap();
                stream.finish().await.unwrap();
                Some(stream)
            }
        }
    }

    pub(crate) async fn request(
        &mut self,
        method: Method,
        target: &str,
    ) -> Result<Reply, StreamError> {
        let stream = self.send_head(request(method, target), true).await;
        timeout(TEST_TIMEOUT, read(stream)).await.unwrap_or_else(|_| {
            panic!("the server does not respond to {target}: {:?}", self.connection.stats())
        })
    }

    pub(crate) async fn get(&mut self, target: &str) -> Reply {
        self.request(Method::GET, target).await.unwrap()
    }

    /// Closes the connection, and waits until the close has been sent.
    pub(crate) async fn close(self) {
        self.connection.close(0x100_u32.into(), b"");
        let _ = timeout(Duration::from_secs(2), self.endpoint.wait_idle()).await;
    }
}

pub(crate) fn request(method: Method, target: &str) -> Request<()> {
    let uri = format!("https://localhost{target}");
    Request::builder().method(method).uri(uri).body(()).unwrap()
}

/// A HEADERS frame, with literals of names in QPACK's static table (RFC 9204 section 4.5.4).
pub(crate) fn head(method: &str, target: &str) -> Vec<u8> {
    let mut block = vec![0, 0, 0xd7];
    for (name, value) in [(0x50, "localhost"), (0x51, target), (0x5f, method)] {
        block.push(name);
        if name == 0x5f {
            block.push(0);
        }
        block.push(u8::try_from(value.len()).unwrap());
        block.extend(value.as_bytes());
    }
    [vec![1, u8::try_from(block.len()).unwrap()], block].concat()
}

/// Reads a response to its end.
pub(crate) async fn reply(stream: Stream) -> Result<Reply, StreamError> {
    timeout(TEST_TIMEOUT, read(stream)).await.expect("the server responds")
}

async fn read(mut stream: Stream) -> Result<Reply, StreamError> {
    let (head, ()) = stream.recv_response().await?.into_parts();
    let mut body = Vec::new();
    while let Some(mut data) = stream.recv_data().await? {
        body.extend_from_slice(&data.copy_to_bytes(data.remaining()));
    }
    stream.recv_trailers().await?;
    Ok(Reply { status: head.status, headers: head.headers, body: body.into() })
}

/// A session that allows early data, and a token, from a full handshake. Tickets allow no early data
/// while the node has not reached its store.
pub(crate) async fn remembered(address: SocketAddr) -> Remembered {
    let end = Instant::now() + TEST_TIMEOUT;
    loop {
        let remembered = first_visit(address).await;
        if remembered.early_data {
            return remembered;
        }
        assert!(Instant::now() < end, "no ticket allows early data");
        sleep(Duration::from_millis(20)).await;
    }
}

/// A session and a token from a full handshake.
pub(crate) async fn first_visit(address: SocketAddr) -> Remembered {
    let mut client = Quic::connect(address, Remembered::default()).await;
    assert!(client.get("/?session").await.status.is_success());
    let remembered = client.remember().await;
    client.close().await;
    remembered
}

/// A relay between one client and the server.
pub(crate) struct UdpRelay {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
    client_side: Arc<UdpSocket>,
    server_side: Arc<UdpSocket>,
    tasks: [JoinHandle<()>; 2],
}

#[derive(Default)]
struct State {
    /// All datagrams of the client, and of the server.
    up: Vec<Vec<u8>>,
    down: Vec<Vec<u8>>,
    /// Whether the client's datagrams are dropped.
    drops_client_datagrams: bool,
    /// Whether the server's datagrams are delayed.
    holds_server_datagrams: bool,
    /// How long the client's datagrams after the next one are delayed.
    client_delay: Option<Duration>,
    /// The delayed datagrams of the server.
    held: Vec<Vec<u8>>,
    client: Option<SocketAddr>,
}

impl UdpRelay {
    pub(crate) async fn to(server: SocketAddr) -> Self {
        let client_side = Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap());
        let server_side = Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap());
        server_side.connect(server).await.unwrap();
        let address = client_side.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State::default()));
        let up = {
            let (client_side, server_side, state) =
                (client_side.clone(), server_side.clone(), state.clone());
            tokio::spawn(async move {
                let mut buffer = vec![0; 65_536];
                while let Ok((count, from)) = client_side.recv_from(&mut buffer).await {
                    let (drops, pause) = {
                        let mut state = state.lock().unwrap();
                        // A server of another test may still send to the client of an earlier relay
                        // that had this port.
                        if *state.client.get_or_insert(from) != from {
                            continue;
                        }
                        state.up.push(buffer[..count].to_vec());
                        (state.drops_client_datagrams, state.client_delay.take())
                    };
                    if !drops {
                        let _ = server_side.send(&buffer[..count]).await;
                    }
                    if let Some(pause) = pause {
                        tokio::time::sleep(pause).await;
                    }
                }
            })
        };
        let down = {
            let (client_side, server_side, state) =
                (client_side.clone(), server_side.clone(), state.clone());
            tokio::spawn(async move {
                let mut buffer = vec![0; 65_536];
                loop {
                    // An error reports an ICMP message for an earlier datagram.
                    let Ok(count) = server_side.recv(&mut buffer).await else { continue };
                    let (hold, to) = {
                        let mut state = state.lock().unwrap();
                        state.down.push(buffer[..count].to_vec());
                        if state.holds_server_datagrams {
                            state.held.push(buffer[..count].to_vec());
                        }
                        (state.holds_server_datagrams, state.client)
                    };
                    if let (false, Some(to)) = (hold, to) {
                        let _ = client_side.send_to(&buffer[..count], to).await;
                    }
                }
            })
        };
        Self { address, state, client_side, server_side, tasks: [up, down] }
    }

    /// Delays the server's datagrams from now on.
    pub(crate) fn hold_server_datagrams(&self) {
        self.state.lock().unwrap().holds_server_datagrams = true;
    }

    /// Delays the client's datagrams after the next one.
    pub(crate) fn delay_after_next_client_datagram(&self, pause: Duration) {
        self.state.lock().unwrap().client_delay = Some(pause);
    }

    /// Starts or stops dropping the client's datagrams.
    pub(crate) fn drop_client_datagrams(&self, drops: bool) {
        self.state.lock().unwrap().drops_client_datagrams = drops;
    }

    /// Delivers the delayed datagrams of the server, and later ones.
    pub(crate) async fn release_server_datagrams(&self) {
        let (held, client) = {
            let mut state = self.state.lock().unwrap();
            state.holds_server_datagrams = false;
            (std::mem::take(&mut state.held), state.client.unwrap())
        };
        for datagram in held {
            self.client_side.send_to(&datagram, client).await.unwrap();
        }
    }

    /// Drops the delayed datagrams of the server, and delivers later ones.
    pub(crate) fn drop_held_server_datagrams(&self) {
        let mut state = self.state.lock().unwrap();
        state.held.clear();
        state.holds_server_datagrams = false;
    }

    /// Waits until the server has sent this many bytes.
    pub(crate) async fn wait_for_server_bytes(&self, bytes: usize) {
        let waiting = async {
            while self.server_datagrams().iter().map(Vec::len).sum::<usize>() < bytes {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(TEST_TIMEOUT, waiting).await.expect("the server sends this many bytes");
    }

    /// Delivers the client's datagrams from the `sent`th on, which are dropped otherwise, until the
    /// server has sent this many further bytes.
    pub(crate) async fn inject_until_response(&self, mut sent: usize, bytes: usize) {
        let count = || self.server_datagrams().iter().map(Vec::len).sum::<usize>();
        let end = count() + bytes;
        let injecting = async {
            while count() < end {
                for datagram in &self.client_datagrams()[sent..] {
                    self.inject(datagram).await;
                    sent += 1;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(TEST_TIMEOUT, injecting).await.expect("the server responds");
    }

    /// The datagrams that the client has sent.
    pub(crate) fn client_datagrams(&self) -> Vec<Vec<u8>> {
        self.state.lock().unwrap().up.clone()
    }

    /// The datagrams that the server has sent.
    pub(crate) fn server_datagrams(&self) -> Vec<Vec<u8>> {
        self.state.lock().unwrap().down.clone()
    }

    /// The server's datagrams after a short pause. None may mean that the server is slow.
    pub(crate) async fn server_datagrams_after_pause(&self) -> Vec<Vec<u8>> {
        tokio::time::sleep(Duration::from_millis(50)).await;
        self.server_datagrams()
    }

    /// Sends a datagram to the server in place of the client.
    pub(crate) async fn inject(&self, datagram: &[u8]) {
        self.server_side.send(datagram).await.unwrap();
    }

    /// Sends datagrams of one length as a batch (GSO), which the server receives merged over
    /// loopback.
    pub(crate) fn inject_merged(&self, datagrams: &[Vec<u8>]) {
        let socket = UdpSockRef::from(&*self.server_side);
        let batch = Transmit {
            destination: self.server_side.peer_addr().unwrap(),
            ecn: None,
            contents: &datagrams.concat(),
            segment_size: Some(datagrams[0].len()),
            src_ip: None,
        };
        UdpSocketState::new(socket)
            .unwrap()
            .send(UdpSockRef::from(&*self.server_side), &batch)
            .unwrap();
    }
}

impl Drop for UdpRelay {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}
