//! Floods a server on loopback with forged QUIC Initial packets, like an attacker who can send UDP
//! from spoofed addresses.

mod packet;
mod trial;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use firstflight_quic::{ClientCrypto, Remembered, ResetKey};
use firstflight_tls::{ConnectorConfig, Trust};
use quinn_proto::{ClientConfig, Connection, Endpoint, EndpointConfig};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::LoadError;
use crate::quic::{ReceiveBuffer, UdpSocket as QuicSocket};
use packet::{Ids, client_hello, initial, zero_rtt};

pub use trial::{FloodPhase, FloodTrial};

/// The settings of a flood.
#[derive(Clone, Debug)]
pub struct FloodConfig {
    /// The server. Must be an IPv4 loopback address, because source addresses are spoofed.
    pub target: SocketAddr,
    /// Host name for SNI.
    pub host: String,
    /// What to forge, in turn.
    pub forgeries: Vec<Forgery>,
    /// Limits the forged connections per second. `None` for as many as possible.
    pub rate: Option<f64>,
    /// Seed of the random bytes.
    pub seed: u64,
}

/// A forged first flight. The client never continues the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Forgery {
    /// A complete ClientHello: the server computes a handshake and responds.
    Hello,
    /// A ClientHello that offers a random ticket and early data, and two datagrams with random 0-RTT
    /// packets.
    Ticket,
    /// The first half of a ClientHello. The second half is never sent.
    Half,
    /// A complete ClientHello with a random address token.
    Token,
}

impl Forgery {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Hello, Self::Ticket, Self::Half, Self::Token];

    /// The name, as in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hello => "hello",
            Self::Ticket => "ticket",
            Self::Half => "half",
            Self::Token => "token",
        }
    }
}

/// The result of a flood.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FloodResult {
    /// Duration in seconds.
    pub seconds: f64,
    /// Number of forged connections.
    pub forged: u64,
    /// Forged connections per second.
    pub rate: f64,
    /// Bytes of UDP payload sent.
    pub bytes_sent: u64,
    /// Bytes of UDP payload that the server sent back and that were read.
    pub bytes_received: u64,
    /// Received Retry packets (RFC 9000 section 8.1.2).
    pub retries: u64,
    /// Received datagrams that start with an Initial or Handshake packet.
    pub handshakes: u64,
    /// Other received datagrams.
    pub others: u64,
}

/// A flood that is ready to start.
pub struct Flood {
    config: FloodConfig,
    socket: QuicSocket,
    /// Derives the keys of Initial packets. Never sends anything.
    keys: Connection,
    random: SmallRng,
    result: FloodResult,
}

/// How many connections to forge before responses and time are checked.
const BATCH_SIZE: usize = 32;

impl Flood {
    /// Opens the socket.
    ///
    /// # Errors
    /// [`LoadError::Usage`] for a target beyond IPv4 loopback; [`LoadError::Resources`] without a
    /// socket.
    pub fn new(config: FloodConfig) -> Result<Self, LoadError> {
        if !matches!(config.target.ip(), IpAddr::V4(ip) if ip.is_loopback()) {
            let sentence = "a flood may only go to this machine; give an address in 127.0.0.0/8";
            return Err(LoadError::Usage(sentence.to_owned()));
        }
        if config.forgeries.is_empty() {
            return Err(LoadError::Usage("nothing to forge; give at least one forgery".to_owned()));
        }
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        Ok(Self {
            socket: QuicSocket::new(socket.into())?,
            keys: key_source(&config)?,
            random: SmallRng::seed_from_u64(config.seed),
            result: FloodResult::default(),
            config,
        })
    }

    /// Floods until `stop` is set or the time is over.
    ///
    /// # Errors
    /// Errors of the socket.
    pub fn run(mut self, time: Duration, stop: &AtomicBool) -> io::Result<FloodResult> {
        let start = Instant::now();
        let mut buffer = ReceiveBuffer::new();
        let mut last = start;
        while !stop.load(Ordering::Relaxed) && last.duration_since(start) < time {
            for _ in 0..BATCH_SIZE {
                self.forge()?;
            }
            self.receive(&mut buffer)?;
            last = self.pause(start);
        }
        let mut result = self.result;
        result.seconds = last.duration_since(start).as_secs_f64();
        result.rate = result.forged as f64 / result.seconds.max(1e-9);
        Ok(result)
    }

    /// Forges one connection, from a random loopback address.
    fn forge(&mut self) -> io::Result<()> {
        let index = self.result.forged as usize % self.config.forgeries.len();
        let forgery = self.config.forgeries[index];
        let ids = Ids::random(&mut self.random);
        let mut hello = client_hello(
            &self.config.host,
            ids.source(),
            forgery == Forgery::Ticket,
            &mut self.random,
        );
        if forgery == Forgery::Half {
            hello.truncate(hello.len() / 2);
        }
        let mut token = [0; 64];
        self.random.fill(&mut token);
        let token = if forgery == Forgery::Token { &token[..] } else { &[] };
        let address = IpAddr::from(Ipv4Addr::from_bits(
            (127 << 24) | self.random.random_range(2..0x00ff_ffff_u32),
        ));
        self.send(address, &initial(self.keys.crypto_session(), &ids, token, &hello))?;
        if forgery == Forgery::Ticket {
            for _ in 0..2 {
                let datagram = zero_rtt(&ids, &mut self.random);
                self.send(address, &datagram)?;
            }
        }
        self.result.forged += 1;
        Ok(())
    }

    fn send(&mut self, from: IpAddr, datagram: &[u8]) -> io::Result<()> {
        self.socket.send_from(from, self.config.target, datagram)?;
        self.result.bytes_sent += datagram.len() as u64;
        Ok(())
    }

    /// Counts the responses.
    fn receive(&mut self, buffer: &mut ReceiveBuffer) -> io::Result<()> {
        let mut datagrams = Vec::new();
        while self.socket.receive(buffer, &mut datagrams)? {}
        for datagram in datagrams {
            let result = &mut self.result;
            result.bytes_received += datagram.data.len() as u64;
            // The type of a long header (RFC 9000 section 17.2).
            *match datagram.data.first().map(|first| first & 0b1011_0000) {
                Some(0b1011_0000) => &mut result.retries,
                Some(0b1000_0000 | 0b1010_0000) => &mut result.handshakes,
                _ => &mut result.others,
            } += 1;
        }
        Ok(())
    }

    /// Waits to keep the requested rate. Returns the time.
    fn pause(&self, start: Instant) -> Instant {
        let now = Instant::now();
        let Some(rate) = self.config.rate else { return now };
        let due = start + Duration::from_secs_f64(self.result.forged as f64 / rate);
        match due.checked_duration_since(now) {
            Some(remaining) => {
                std::thread::sleep(remaining);
                Instant::now()
            }
            None => now,
        }
    }
}

/// A connection that only derives keys.
fn key_source(config: &FloodConfig) -> Result<Connection, LoadError> {
    let crypto = ClientCrypto::new(ConnectorConfig {
        min_version: firstflight_tls::Version::Tls13,
        alpn: vec![b"h3".to_vec()],
        ..ConnectorConfig::new(Trust::Anyone)
    })?;
    let (crypto, _, _) = crypto.for_connection(&config.host, Remembered::default())?;
    let reset_key = Arc::new(ResetKey::new(rand::random()));
    let mut endpoint = Endpoint::new(Arc::new(EndpointConfig::new(reset_key)), None, false, None);
    let client = ClientConfig::new(crypto);
    endpoint
        .connect(Instant::now(), client, config.target, &config.host)
        .map(|(_, connection)| connection)
        .map_err(|error| LoadError::Usage(format!("cannot prepare a connection: {error}")))
}
