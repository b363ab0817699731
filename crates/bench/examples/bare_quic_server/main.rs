//! A baseline for `firstflight serve` over QUIC: only quinn with `firstflight_quic`. It has no
//! gate, register, limits, log or HTTP library, and its tickets are not encrypted. Every request
//! gets the same KiB as response.
//!
//!     bare_quic_server CERTIFICATE KEY [PORT] [no-gso] [quinn-proto]
//!
//! One thread, one socket. With `no-gso`, each datagram is sent with a separate call. With
//! `quinn-proto`, it uses quinn's state machines without quinn's tasks. `make bench` compares
//! servers with both.

mod state_machines;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use firstflight_quic::{AddressTokens, ResetKey, ServerCrypto};
use firstflight_tickets::{Schedule, TicketKeys, UnixTime};
use firstflight_tls::{AcceptorConfig, Identity, OpenedTicket, TicketSealer};
use quinn::congestion::CubicConfig;
use quinn::{
    Connection, Endpoint, EndpointConfig, Incoming, ServerConfig, TokioRuntime, TransportConfig,
    ValidationTokenConfig,
};

use crate::state_machines::Server;

type Failed = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [certificate, key, more @ ..] = arguments.as_slice() else {
        return Err("usage: bare_quic_server CERTIFICATE KEY [PORT] [no-gso] [quinn-proto]".into());
    };
    let gso = !more.iter().any(|word| word == "no-gso");
    let without_quinn = more.iter().any(|word| word == "quinn-proto");
    let port = more.iter().find_map(|word| word.parse().ok()).unwrap_or(0);
    let (certificate, key) = (PathBuf::from(certificate), PathBuf::from(key));
    let server = server(&certificate, &key, port, gso)?;
    eprintln!("serving on {}", server.socket.local_addr()?);
    if without_quinn {
        return server.serve();
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    // On the worker thread, where the connections run too.
    runtime.block_on(runtime.spawn(serve(server)))?
}

fn server(certificate: &Path, key: &Path, port: u16, gso: bool) -> Result<Server, Failed> {
    let mut config = AcceptorConfig::new(Identity::from_files(certificate, key)?);
    config.alpn = vec![b"h3".to_vec()];
    config.early_data = true;
    config.sealer = Some(Arc::new(PlaintextTickets));
    let crypto = ServerCrypto::new(config)?;
    let keys = Arc::new(TicketKeys::in_process(Schedule::default(), now()));
    let refusing = crypto.for_connection(Box::new(|_| false), None);
    let mut config = ServerConfig::new(refusing, Arc::new(AddressTokens::new(keys, now)));
    config.transport_config(Arc::new(transport(gso)));
    let mut validation = ValidationTokenConfig::default();
    validation.lifetime(Duration::from_secs(3600)).sent(2);
    config.validation_token_config(validation);
    let socket = std::net::UdpSocket::bind(("127.0.0.1", port))?;
    let endpoint = EndpointConfig::new(Arc::new(ResetKey::new(rand::random())));
    // A HEADERS frame with `:status: 200` of the static table, and a DATA frame.
    let mut page = vec![1, 3, 0, 0, 0xc0 | 25, 0, 0x44, 0];
    page.extend_from_slice(&[b'x'; 1024]);
    Ok(Server { config, crypto, endpoint, socket, page: Bytes::from(page) })
}

async fn serve(server: Server) -> Result<(), Failed> {
    let Server { config, crypto, endpoint, socket, page } = server;
    let runtime = Arc::new(TokioRuntime);
    let endpoint = Endpoint::new(endpoint, Some(config.clone()), socket, runtime)?;
    while let Some(incoming) = endpoint.accept().await {
        let mut config = config.clone();
        config.crypto = crypto.for_connection(Box::new(|_| true), None);
        tokio::spawn(connection(incoming, config, page.clone()));
    }
    Ok(())
}

/// The settings of the server (crates/server/src/handshake/quic_config.rs).
fn transport(gso: bool) -> TransportConfig {
    let mut congestion = CubicConfig::default();
    congestion.initial_window(14_720);
    let mut transport = TransportConfig::default();
    transport
        .initial_mtu(1452)
        .congestion_controller_factory(Arc::new(congestion))
        .datagram_receive_buffer_size(None)
        .enable_segmentation_offload(gso);
    transport
}

async fn connection(incoming: Incoming, config: ServerConfig, page: Bytes) -> Result<(), Failed> {
    let connecting = incoming.accept_with(Arc::new(config))?;
    let Ok((connection, _)) = connecting.into_0rtt() else { return Ok(()) };
    // Empty SETTINGS (RFC 9114 section 6.2.1).
    let mut control = connection.open_uni().await?;
    control.write_all(&[0, 4, 0]).await?;
    response(&connection, page).await
}

async fn response(connection: &Connection, page: Bytes) -> Result<(), Failed> {
    loop {
        let (mut send, mut receive) = connection.accept_bi().await?;
        receive.read_to_end(16 * 1024).await?;
        send.write_chunk(page.clone()).await?;
        send.finish()?;
    }
}

/// Issues tickets without encryption.
struct PlaintextTickets;

impl TicketSealer for PlaintextTickets {
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
