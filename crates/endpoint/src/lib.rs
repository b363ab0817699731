//! Drives quinn-proto's connections for a server: one task for each UDP socket receives, lets the
//! connections' tasks run, and sends what they have written.
//!
//! ```text
//! Endpoint       a socket; announces incoming connections
//! └ Incoming       a new connection: accept, refuse, ignore, or request an address token
//!   └ Connection     accepts and opens streams
//!     └ SendStream, RecvStream
//! Socket         a UDP socket of tokio; DatagramSocket puts a layer above it
//! ```
//!
//! # Examples
//!
//! A server that returns what it reads from each stream:
//!
//! ```
//! use std::net::UdpSocket;
//! use std::sync::Arc;
//!
//! use firstflight_endpoint::{Endpoint, Socket};
//! use quinn_proto::{EndpointConfig, ServerConfig};
//!
//! async fn serve(
//!     socket: UdpSocket,
//!     config: ServerConfig,
//!     reset_key: Arc<dyn quinn_proto::crypto::HmacKey>,
//! ) -> std::io::Result<()> {
//!     let socket = Arc::new(Socket::new(socket)?);
//!     let endpoint = Endpoint::new(EndpointConfig::new(reset_key), config.clone(), socket);
//!     let config = Arc::new(config);
//!     while let Some(incoming) = endpoint.accept().await {
//!         // A task for each connection.
//!         let config = config.clone();
//!         tokio::spawn(async move {
//!             let Ok(connection) = incoming.accept_with(config) else { return };
//!             while let Ok((mut send, mut recv)) = connection.accept_bi().await {
//!                 let Ok(request) = recv.read_to_end(64 * 1024).await else { continue };
//!                 if send.write_all(&request).await.is_ok() {
//!                     let _ = send.finish();
//!                 }
//!             }
//!         });
//!     }
//!     Ok(())
//! }
//! # use std::time::Duration;
//! # use firstflight_quic::{AddressTokens, ClientCrypto, Remembered, ResetKey, ServerCrypto};
//! # use firstflight_tickets::{Schedule, TicketKeys, UnixTime};
//! # use firstflight_tls::{AcceptorConfig, ConnectorConfig, Identity, Trust};
//! # fn now() -> UnixTime { UnixTime::from(std::time::SystemTime::now()) }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
//! # let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
//! # let mut tls = AcceptorConfig::new(Identity::from_pem(cert.as_bytes(), key.as_bytes())?);
//! # tls.alpn = vec![b"echo".to_vec()];
//! # let crypto = ServerCrypto::new(tls)?.for_connection(Box::new(|_| false), None);
//! # let keys = Arc::new(TicketKeys::in_process(Schedule::default(), now()));
//! # let config = ServerConfig::new(crypto, Arc::new(AddressTokens::new(keys, now)));
//! # let server = UdpSocket::bind("127.0.0.1:0")?;
//! # let address = server.local_addr()?;
//! # tokio::spawn(serve(server, config, Arc::new(ResetKey::new([1; 32]))));
//! # let mut tls = ConnectorConfig::new(Trust::Anyone);
//! # tls.alpn = vec![b"echo".to_vec()];
//! # let client = ClientCrypto::new(tls)?.for_connection("localhost", Remembered::default())?;
//! # let endpoint = quinn::Endpoint::new(
//! #     EndpointConfig::new(Arc::new(ResetKey::new([2; 32]))),
//! #     None,
//! #     UdpSocket::bind("127.0.0.1:0")?,
//! #     Arc::new(quinn::TokioRuntime),
//! # )?;
//! # let config = quinn::ClientConfig::new(client.0);
//! # let connection = endpoint.connect_with(config, address, "localhost")?.await?;
//! # let (mut send, mut recv) = connection.open_bi().await?;
//! # send.write_all(b"hello").await?;
//! # send.finish()?;
//! # assert_eq!(recv.read_to_end(100).await?, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # Design notes
//!
//! **Why not quinn.** quinn has a task for each connection beside the task of the socket, and sends
//! a connection's packets when its task runs. A connection of one request costs a sixth less with
//! one task for all (`docs/evidence/performance.md`). The state machines are the same: quinn-proto's.
//!
//! **Receive, let tasks run, send.** The driver processes a batch of datagrams and wakes the tasks
//! that wait for them. It then wakes itself, so that the runtime runs those tasks first. What they
//! have written leaves in as few packets as possible, together with the acknowledgements, and a
//! response to early data together with the server's handshake.
//!
//! **A panic ends one connection.** The driver catches a panic of a connection's state machine and
//! forgets this connection only.
//!
//! **Locks.** Tasks and the driver share each connection under a lock, and wake each other under it.
//! The driver takes the endpoint's lock for each datagram, to find its connection, and processes the
//! datagram under the connection's lock. [`Incoming::accept_with`] holds the endpoint's lock while TLS
//! processes the first packets.

mod buffers;
mod connection;
mod driver;
mod endpoint;
mod queue;
mod socket;
mod stream;
mod timers;

pub use connection::Connection;
pub use endpoint::{AddressValidated, Endpoint, Incoming};
pub use socket::{DatagramSocket, Socket};
pub use stream::{ReadError, RecvStream, SendStream, Stopped, WriteError};
