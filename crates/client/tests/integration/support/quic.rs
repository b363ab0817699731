//! A server for tests over QUIC: quinn and h3 on our cryptography. Its behaviour can be changed,
//! and it records its requests. A relay in front of it records every datagram.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{Buf, Bytes};
use firstflight_client::{Client, ClientConfig, HttpVersions, Target};
use firstflight_quic::{AddressTokens, ResetKey, ServerCrypto, SpentTokens};
use firstflight_tickets::{Schedule, TicketKeys, UnixTime};
use firstflight_tls::{AcceptorConfig, EarlyData, Handshake, Identity};
use h3::error::Code;
use quinn::{
    ConnectionError, Endpoint, EndpointConfig, Incoming, TokioRuntime, TransportConfig, VarInt,
    WriteError,
};
use tokio::net::UdpSocket;
use tokio::sync::Notify;

use super::{ClientDir, MarkSealer, pem};

/// The server's current behaviour.
#[derive(Clone)]
pub(crate) struct QuicServerBehaviour {
    pub(crate) key: u8,
    /// Whether early data is accepted.
    pub(crate) accept: bool,
    /// Tickets per connection.
    pub(crate) tickets: usize,
    /// NEW_TOKEN frames per connection.
    pub(crate) tokens: u32,
    /// Receive window of a connection, in bytes; early data is refused if it has shrunk.
    pub(crate) window: u32,
    /// Sends a Retry to a client without a token.
    pub(crate) retry: bool,
    pub(crate) alpn: &'static str,
    pub(crate) response: fn(usize, bool) -> QuicReply,
    /// Speaks no HTTP/3, and floods one stream instead.
    pub(crate) flood: Option<Flood>,
}

/// Endless bytes on one stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flood {
    /// Whether on a new unidirectional stream; otherwise on the request's.
    pub(crate) unidirectional: bool,
    /// The first bytes.
    pub(crate) start: &'static [u8],
    /// The bytes that are repeated after them.
    pub(crate) repeated: &'static [u8],
}

/// What to do with a request, given its number from 0 on and whether it was early data.
#[derive(Clone, Debug)]
pub(crate) enum QuicReply {
    /// This status and body.
    Respond(u16, &'static str),
    /// Heads of these statuses, and a response.
    After(&'static [u16]),
    /// A body of this many bytes, each in its own frame.
    TinyFrames(usize),
    /// A redirection.
    Redirect(&'static str),
    /// A head with this Content-Length, and this body.
    Promise(usize, &'static str),
    /// A head and 4 bytes; then, when the client has read them, a reset with this code.
    ResetWithin(Code),
    /// Reset the stream with this code.
    Reset(Code),
    /// Close the connection with this code.
    Close(Code),
    /// Respond, then send GOAWAY.
    RespondThenGoaway(u16, &'static str),
    /// Never respond.
    Hang,
}

impl Default for QuicServerBehaviour {
    fn default() -> Self {
        Self {
            key: 1,
            accept: true,
            tickets: 2,
            tokens: 1,
            window: 1 << 20,
            retry: false,
            alpn: "h3",
            response: |_, _| QuicReply::Respond(200, "hello"),
            flood: None,
        }
    }
}

/// A request as the server saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordedQuicRequest {
    /// Method, path and body.
    pub(crate) text: String,
    pub(crate) early: bool,
    /// The number of its connection, from 0 on.
    pub(crate) connection: usize,
    /// Whether the client's address was validated by its first packet.
    pub(crate) validated: bool,
}

#[derive(Clone)]
pub(crate) struct QuicServer {
    pub(crate) address: SocketAddr,
    behaviour: Arc<Mutex<QuicServerBehaviour>>,
    seen: Arc<Mutex<Vec<RecordedQuicRequest>>>,
    keys: Arc<TicketKeys>,
    spent: Arc<SpentTokens>,
    connections: Arc<AtomicUsize>,
    endpoint: Endpoint,
    /// Bytes of floods that clients have accepted, and the code that ended the last flood.
    pub(crate) flooded: Arc<(AtomicUsize, AtomicU64)>,
    /// A client has read a part of the body.
    pub(crate) part_read: Arc<Notify>,
}

impl QuicServer {
    pub(crate) async fn start(behaviour: QuicServerBehaviour) -> Self {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let endpoint = Endpoint::new(
            EndpointConfig::new(Arc::new(ResetKey::new([7; 32]))),
            None,
            socket,
            Arc::new(TokioRuntime),
        )
        .unwrap();
        let server = Self {
            address: endpoint.local_addr().unwrap(),
            behaviour: Arc::new(Mutex::new(behaviour)),
            seen: Arc::default(),
            keys: Arc::new(TicketKeys::in_process(Schedule::default(), clock())),
            spent: Arc::new(SpentTokens::new(1 << 20, clock)),
            connections: Arc::default(),
            endpoint: endpoint.clone(),
            flooded: Arc::default(),
            part_read: Arc::default(),
        };
        endpoint.set_server_config(Some(server.config()));
        let accepting = server.clone();
        tokio::spawn(async move {
            while let Some(incoming) = endpoint.accept().await {
                tokio::spawn(accepting.clone().serve(incoming));
            }
        });
        server
    }

    pub(crate) fn change_behaviour(&self, change: impl FnOnce(&mut QuicServerBehaviour)) {
        change(&mut self.behaviour.lock().unwrap());
    }

    /// Returns the requests since the last call.
    pub(crate) fn take_requests(&self) -> Vec<RecordedQuicRequest> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }

    pub(crate) fn url(&self, path: &str) -> Target {
        url(self.address.port(), path)
    }

    /// Waits until no connection is open; returns false after 10 s.
    pub(crate) async fn is_idle(&self) -> bool {
        tokio::time::timeout(Duration::from_secs(10), self.endpoint.wait_idle()).await.is_ok()
    }

    fn behaviour(&self) -> QuicServerBehaviour {
        self.behaviour.lock().unwrap().clone()
    }

    fn crypto(&self) -> Arc<ServerCrypto> {
        let behaviour = self.behaviour();
        let (cert, key) = pem();
        let identity = Identity::from_pem(cert.as_bytes(), key.as_bytes()).unwrap();
        let mut config = AcceptorConfig::new(identity);
        config.alpn = vec![behaviour.alpn.as_bytes().to_vec()];
        config.early_data = true;
        config.tickets = behaviour.tickets;
        config.sealer = Some(Arc::new(MarkSealer(behaviour.key)));
        ServerCrypto::new(config).unwrap()
    }

    fn config(&self) -> quinn::ServerConfig {
        let behaviour = self.behaviour();
        let judge = Box::new(move |_: &Handshake| behaviour.accept);
        let crypto = self.crypto().for_connection(judge, None);
        let tokens = AddressTokens::new(self.keys.clone(), clock);
        let mut config = quinn::ServerConfig::new(crypto, Arc::new(tokens));
        let mut transport = TransportConfig::default();
        transport.receive_window(VarInt::from_u32(behaviour.window));
        config.transport_config(Arc::new(transport));
        let mut validation = quinn::ValidationTokenConfig::default();
        validation
            .sent(behaviour.tokens)
            .log(self.spent.clone())
            .lifetime(Duration::from_secs(3600));
        config.validation_token_config(validation);
        config
    }

    async fn flood(&self, quic: &quinn::Connection, flood: Flood) {
        let (mut send, _recv) = match flood.unidirectional {
            true => (quic.open_uni().await.unwrap(), None),
            false => quic.accept_bi().await.map(|(send, recv)| (send, Some(recv))).unwrap(),
        };
        let mut next = flood.start;
        let code = loop {
            match send.write_all(next).await {
                Ok(()) => self.flooded.0.fetch_add(next.len(), Ordering::Relaxed),
                Err(WriteError::Stopped(code)) => break code,
                Err(WriteError::ConnectionLost(ConnectionError::ApplicationClosed(close))) => {
                    break close.error_code;
                }
                Err(other) => panic!("{other}"),
            };
            next = flood.repeated;
        };
        self.flooded.1.store(code.into_inner(), Ordering::Relaxed);
        quic.closed().await;
    }

    async fn serve(self, incoming: Incoming) {
        let behaviour = self.behaviour();
        if behaviour.retry && !incoming.remote_address_validated() {
            incoming.retry().unwrap();
            return;
        }
        let connection = self.connections.fetch_add(1, Ordering::Relaxed);
        let validated = incoming.remote_address_validated();
        let Ok(connecting) = incoming.accept_with(Arc::new(self.config())) else { return };
        let Ok((quic, complete)) = connecting.into_0rtt() else { return };
        let complete = tokio::spawn(complete);
        if let Some(flood) = behaviour.flood {
            self.flood(&quic, flood).await;
            return;
        }
        let Ok(mut http) =
            h3::server::Connection::new(h3_quinn::Connection::new(quic.clone())).await
        else {
            return;
        };
        let mut first = true;
        while let Ok(Some(resolver)) = http.accept().await {
            let Ok((request, mut stream)) = resolver.resolve_request().await else { continue };
            let mut body = Vec::new();
            while let Ok(Some(mut bytes)) = stream.recv_data().await {
                body.extend_from_slice(&bytes.copy_to_bytes(bytes.remaining()));
            }
            let facts = quic.handshake_data().unwrap().downcast::<Handshake>().unwrap();
            // All that our client sends on such a connection before the first response is early.
            let early = std::mem::take(&mut first) && facts.early_data == EarlyData::Accepted;
            let number = {
                let text = format!(
                    "{} {} {}",
                    request.method(),
                    request.uri().path(),
                    String::from_utf8_lossy(&body)
                );
                let mut seen = self.seen.lock().unwrap();
                seen.push(RecordedQuicRequest { text, early, connection, validated });
                seen.len() - 1
            };
            let response_with = |status: u16| http::Response::builder().status(status);
            let response = (behaviour.response)(number, early);
            if let QuicReply::After(statuses) = response {
                for status in statuses {
                    stream.send_response(response_with(*status).body(()).unwrap()).await.unwrap();
                }
            }
            match response {
                QuicReply::After(_) => {
                    // A client that refuses one of the heads has closed the connection.
                    let _ = stream.send_response(response_with(200).body(()).unwrap()).await;
                    let _ = stream.send_data(Bytes::from_static(b"hello")).await;
                    let _ = stream.finish().await;
                }
                QuicReply::Respond(status, body) | QuicReply::RespondThenGoaway(status, body) => {
                    let head = response_with(status).header("content-length", body.len());
                    stream.send_response(head.body(()).unwrap()).await.unwrap();
                    stream.send_data(Bytes::from_static(body.as_bytes())).await.unwrap();
                    stream.finish().await.unwrap();
                    if let QuicReply::RespondThenGoaway(..) = response {
                        let _ = http.shutdown(0).await;
                    }
                }
                QuicReply::TinyFrames(count) => {
                    stream.send_response(response_with(200).body(()).unwrap()).await.unwrap();
                    for _ in 0..count {
                        stream.send_data(Bytes::from_static(b"x")).await.unwrap();
                    }
                    stream.finish().await.unwrap();
                }
                QuicReply::Redirect(to) => {
                    let head = response_with(302).header("location", to).body(()).unwrap();
                    stream.send_response(head).await.unwrap();
                    stream.finish().await.unwrap();
                }
                QuicReply::Promise(length, body) => {
                    let head =
                        response_with(200).header("content-length", length).body(()).unwrap();
                    stream.send_response(head).await.unwrap();
                    stream.send_data(Bytes::from_static(body.as_bytes())).await.unwrap();
                    // A client that refuses the body may have closed the connection.
                    let _ = stream.finish().await;
                }
                QuicReply::ResetWithin(code) => {
                    stream.send_response(response_with(200).body(()).unwrap()).await.unwrap();
                    stream.send_data(Bytes::from_static(b"hell")).await.unwrap();
                    self.part_read.notified().await;
                    stream.stop_stream(code);
                }
                QuicReply::Reset(code) => stream.stop_stream(code),
                QuicReply::Close(code) => {
                    quic.close(VarInt::from_u64(code.value()).unwrap(), b"told to");
                }
                QuicReply::Hang => std::future::pending::<()>().await,
            }
        }
        let _ = complete.await;
    }
}

pub(crate) fn clock() -> UnixTime {
    UnixTime(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs())
}

pub(crate) fn url(port: u16, path: &str) -> Target {
    Target::parse(&format!("https://localhost:{port}{path}")).unwrap()
}

impl ClientDir {
    /// A client that uses HTTP/3 only.
    pub(crate) fn quic(&self, change: impl FnOnce(&mut ClientConfig)) -> Client {
        self.client(|config| {
            config.http = HttpVersions::Three;
            change(config);
        })
    }
}

async fn pass_back(back: Arc<UdpSocket>, front: Arc<UdpSocket>, client: SocketAddr) {
    let mut datagram = [0; 2048];
    while let Ok((length, _)) = back.recv_from(&mut datagram).await {
        let _ = front.send_to(&datagram[..length], client).await;
    }
}

/// Forwards datagrams to a server, and can drop those of the client.
#[derive(Clone)]
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    /// Whether datagrams of the client go through.
    pub(crate) open: Arc<AtomicBool>,
    seen: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Relay {
    pub(crate) async fn start(server: SocketAddr) -> Self {
        Self::start_on(([127, 0, 0, 1], 0).into(), server).await.expect("a free port")
    }

    /// Returns `None` if the port is taken.
    pub(crate) async fn start_on(address: SocketAddr, server: SocketAddr) -> Option<Self> {
        let front = UdpSocket::bind(address).await.ok()?;
        let relay = Self {
            address: front.local_addr().unwrap(),
            open: Arc::new(AtomicBool::new(true)),
            seen: Arc::default(),
        };
        let own = relay.clone();
        tokio::spawn(async move {
            let front = Arc::new(front);
            let mut backs: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
            let mut datagram = [0; 2048];
            while let Ok((length, client)) = front.recv_from(&mut datagram).await {
                own.seen.lock().unwrap().push(datagram[..length].to_vec());
                if !own.open.load(Ordering::Relaxed) {
                    continue;
                }
                let back = match backs.entry(client) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(new) => {
                        let back = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
                        tokio::spawn(pass_back(back.clone(), front.clone(), client));
                        new.insert(back)
                    }
                };
                let _ = back.send_to(&datagram[..length], server).await;
            }
        });
        Some(relay)
    }

    /// The client's datagrams since the last call.
    pub(crate) fn datagrams(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }
}
