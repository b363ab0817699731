//! A server and a client over QUIC, and a wire on which everything is possible.

use std::collections::HashMap;
use std::io::Cursor;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use bytes::BytesMut;
use firstflight_quic::{
    AddressTokens, ClientCrypto, EarlyDataJudge, Remembered, ResetKey, Resumption, ResumptionInbox,
    ServerCrypto,
};
use firstflight_tickets::{Schedule, TicketKeys, UnixTime};
use firstflight_tls::{AcceptorConfig, ConnectorConfig, Trust};
use quinn_proto::crypto::{ServerConfig as _, Session};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, ConnectionId, DatagramEvent, Endpoint,
    EndpointConfig, Event, RandomConnectionIdGenerator, ServerConfig, Side,
};

use crate::endpoints::{OpenSealer, identity};

/// A server with early data.
pub fn server_crypto() -> &'static Arc<ServerCrypto> {
    static CRYPTO: LazyLock<Arc<ServerCrypto>> = LazyLock::new(|| {
        let mut config = AcceptorConfig::new(identity());
        config.alpn = vec![b"h3".to_vec()];
        config.early_data = true;
        config.sealer = Some(Arc::new(OpenSealer));
        ServerCrypto::new(config).expect("a server")
    });
    &CRYPTO
}

/// A client of anybody.
pub fn client_crypto() -> &'static Arc<ClientCrypto> {
    static CRYPTO: LazyLock<Arc<ClientCrypto>> = LazyLock::new(|| {
        let mut config = ConnectorConfig::new(Trust::Anyone);
        config.alpn = vec![b"h3".to_vec()];
        ClientCrypto::new(config).expect("a client")
    });
    &CRYPTO
}

/// A session, and what it has written: the bytes of each packet number space.
pub struct Peer {
    pub session: Box<dyn Session>,
    pub written: [Vec<u8>; 3],
    space: usize,
}

impl Peer {
    /// A server whose judge says so.
    pub fn server(accepts: bool) -> Self {
        Self::judged(Box::new(move |_| accepts))
    }

    /// A server with this judge.
    pub fn judged(judge: EarlyDataJudge) -> Self {
        let config = server_crypto().for_connection(judge, None);
        Self::new(config.start_session(1, &parameters(Side::Client)))
    }

    /// A client, and where its tickets will be.
    pub fn client(resumption: Option<Resumption>) -> (Self, ResumptionInbox) {
        let remembered = Remembered { resumption, token: None, early_data: true };
        let (config, _, inbox) =
            client_crypto().for_connection("localhost", remembered).expect("a connection");
        let session = config.start_session(1, "localhost", &parameters(Side::Server));
        (Self::new(session.expect("a session")), inbox)
    }

    fn new(session: Box<dyn Session>) -> Self {
        let mut peer = Self { session, written: Default::default(), space: 0 };
        peer.write();
        peer
    }

    /// Reads as quinn does: what there is to say comes after each packet. False: the end.
    pub fn read(&mut self, bytes: &[u8]) -> bool {
        if self.session.read_handshake(bytes).is_err() {
            return false;
        }
        self.write();
        true
    }

    fn write(&mut self) {
        loop {
            let (mut bytes, before) = (Vec::new(), self.space);
            if self.session.write_handshake(&mut bytes).is_some() {
                self.space += 1;
                if self.space == 2 {
                    self.session.next_1rtt_keys().expect("keys of the next phase");
                }
            }
            self.written[before].extend_from_slice(&bytes);
            if bytes.is_empty() && before == self.space {
                return;
            }
        }
    }
}

/// What a handshake has left.
pub fn resumption() -> Resumption {
    let (mut client, inbox) = Peer::client(None);
    let mut server = Peer::server(true);
    for _ in 0..3 {
        hand_over(&mut client, &mut server);
        hand_over(&mut server, &mut client);
    }
    inbox.take_resumptions().pop().expect("a ticket")
}

fn hand_over(from: &mut Peer, to: &mut Peer) {
    for bytes in std::mem::take(&mut from.written) {
        assert!(bytes.is_empty() || to.read(&bytes));
    }
}

fn parameters(reader: Side) -> TransportParameters {
    let wire = [0x04, 0x02, 0x44, 0x00, 0x06, 0x02, 0x44, 0x00, 0x08, 0x01, 0x10, 0x09, 0x01, 0x10];
    TransportParameters::read(reader, &mut Cursor::new(wire)).expect("parameters")
}

/// Pieces of the bytes, each with its length in two bytes before it; the last may be cut short.
pub fn pieces(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = bytes.split_first_chunk()?;
        let length = usize::from(u16::from_be_bytes(*length)).min(rest.len());
        let (piece, after) = rest.split_at(length);
        bytes = after;
        Some(piece)
    })
}

/// The bytes with some of them changed: three bytes an edit, where and what.
pub fn spoilt(mut bytes: Vec<u8>, edits: &[u8]) -> Vec<u8> {
    for edit in edits.chunks_exact(3) {
        let at = usize::from(u16::from_be_bytes([edit[0], edit[1]]));
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= edit[2];
        }
    }
    bytes
}

/// An endpoint of quinn on our cryptography, alone with what the bytes say.
pub struct Wire {
    endpoint: Endpoint,
    connections: HashMap<ConnectionHandle, Connection>,
    remote: SocketAddr,
    now: Instant,
}

impl Wire {
    /// A server, to which tokens and early data are welcome.
    pub fn server() -> Self {
        let config = ServerConfig::new(server_crypto().clone(), tokens());
        Self::new(Some(Arc::new(config)))
    }

    /// A client that has just sent its first packets. Gives the server's id in them as well.
    pub fn client(resumption: Option<Resumption>) -> (Self, Vec<u8>) {
        let mut wire = Self::new(None);
        let remembered = Remembered { resumption, token: None, early_data: true };
        let (crypto, tokens, _) =
            client_crypto().for_connection("localhost", remembered).expect("a connection");
        let mut config = ClientConfig::new(crypto);
        config.token_store(tokens);
        let (handle, connection) = wire
            .endpoint
            .connect(wire.now, config, wire.remote, "localhost")
            .expect("a connection");
        wire.connections.insert(handle, connection);
        let first = wire.send().expect("a first packet");
        let length = usize::from(first[5]);
        (wire, first[6..6 + length].to_vec())
    }

    fn new(server: Option<Arc<ServerConfig>>) -> Self {
        let mut config = EndpointConfig::new(Arc::new(ResetKey::new([7; 32])));
        config.supported_versions(vec![1]);
        // Without ids of its own, a client's packets are found by the server's address.
        if server.is_none() {
            config.cid_generator(|| Box::new(RandomConnectionIdGenerator::new(0)));
        }
        Self {
            endpoint: Endpoint::new(Arc::new(config), server, true, Some([3; 32])),
            connections: HashMap::new(),
            remote: "[2001:db8::1]:4433".parse().expect("an address"),
            now: Instant::now(),
        }
    }

    /// A datagram comes in. No connection may come about by it.
    pub fn take(&mut self, datagram: &[u8]) {
        let (data, mut buffer) = (BytesMut::from(datagram), Vec::new());
        match self.endpoint.handle(self.now, self.remote, None, None, data, &mut buffer) {
            Some(DatagramEvent::NewConnection(incoming)) => {
                let judged = server_crypto().for_connection(Box::new(|_| true), None);
                let config = Arc::new(ServerConfig::new(judged, tokens()));
                buffer.clear();
                let accepted = self.endpoint.accept(incoming, self.now, &mut buffer, Some(config));
                if let Ok((handle, connection)) = accepted {
                    self.connections.insert(handle, connection);
                }
            }
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some(connection) = self.connections.get_mut(&handle) {
                    connection.handle_event(event);
                }
            }
            Some(DatagramEvent::Response(_)) | None => {}
        }
        while self.send().is_some() {}
    }

    /// The next datagram that a connection has to send.
    fn send(&mut self) -> Option<Vec<u8>> {
        for (handle, connection) in &mut self.connections {
            while let Some(event) = connection.poll_endpoint_events() {
                if let Some(event) = self.endpoint.handle_event(*handle, event) {
                    connection.handle_event(event);
                }
            }
            while let Some(event) = connection.poll() {
                assert!(!matches!(event, Event::Connected), "a connection without a handshake");
            }
            let mut buffer = Vec::new();
            if connection.poll_transmit(self.now, 1, &mut buffer).is_some() {
                return Some(buffer);
            }
        }
        None
    }
}

const START: u64 = 1_790_000_000;

/// Ours, so that forged ones are told from them.
fn tokens() -> Arc<AddressTokens> {
    static TOKENS: LazyLock<Arc<AddressTokens>> = LazyLock::new(|| {
        let keys = TicketKeys::in_process(Schedule::default(), UnixTime(START));
        Arc::new(AddressTokens::new(Arc::new(keys), || UnixTime(START)))
    });
    TOKENS.clone()
}

/// A server's Initial packet with this payload, to a client without ids, which named the server so.
pub fn server_initial(named: &[u8], number: u32, payload: &[u8]) -> Vec<u8> {
    let keys = server_crypto()
        .initial_keys(1, &ConnectionId::new(named))
        .unwrap_or_else(|_| unreachable!("version 1"));
    let length = (4 + payload.len() + 16).min(0x3fff) as u16 | 0x4000;
    let mut packet = vec![0xc3, 0, 0, 0, 1, 0, 1, 9, 0];
    packet.extend(length.to_be_bytes());
    let number_at = packet.len();
    packet.extend(number.to_be_bytes());
    let header = packet.len();
    packet.extend(payload);
    packet.extend([0; 16]);
    keys.packet.local.encrypt(number.into(), &mut packet, header);
    keys.header.local.encrypt(number_at, &mut packet);
    packet
}
