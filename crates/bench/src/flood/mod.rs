//! Forged Initial packets, as many as one thread makes: what a server has to bear from whoever can
//! send UDP from addresses that are not its own. Towards loopback alone.

mod hello;
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
use packet::{Ids, initial, zero_rtt};

pub use trial::{FloodPart, FloodTrial};

/// Whom to flood, and with what.
#[derive(Clone, Debug)]
pub struct FloodConfig {
    /// The server, on IPv4 loopback: forged sources go nowhere else.
    pub target: SocketAddr,
    /// The name for SNI.
    pub host: String,
    /// What is forged, in turn.
    pub forgeries: Vec<Forgery>,
    /// Forged connections a second at most; `None`: as many as go.
    pub rate: Option<f64>,
    /// Orders what is random.
    pub seed: u64,
}

/// A start of a connection that nobody means to go on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Forgery {
    /// A whole ClientHello: the server computes a handshake and answers.
    Hello,
    /// A ClientHello that offers a made-up ticket and early data, and two datagrams of made-up
    /// 0-RTT packets.
    Ticket,
    /// The first half of a ClientHello; the second never comes.
    Half,
    /// A whole ClientHello with a made-up address token.
    Token,
}

impl Forgery {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Hello, Self::Ticket, Self::Half, Self::Token];

    /// Its name, as in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hello => "hello",
            Self::Ticket => "ticket",
            Self::Half => "half",
            Self::Token => "token",
        }
    }
}

/// What a flood came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FloodResult {
    /// How long it lasted.
    pub seconds: f64,
    /// Forged connections.
    pub forged: u64,
    /// Forged connections a second.
    pub rate: f64,
    /// UDP payload that was sent.
    pub bytes_sent: u64,
    /// UDP payload that the server sent back, as far as it was read.
    pub bytes_received: u64,
    /// Retry packets among it (RFC 9000 section 8.1.2).
    pub retries: u64,
    /// Datagrams that start with an Initial or Handshake packet: a handshake, or its end.
    pub handshakes: u64,
    /// Other datagrams.
    pub others: u64,
}

/// A flood that is ready to start.
pub struct Flood {
    config: FloodConfig,
    socket: QuicSocket,
    /// Never sent: what derives the keys of Initial packets.
    keys: Connection,
    random: SmallRng,
    result: FloodResult,
}

/// How many forged connections go between two looks at answers and time.
const BATCH: usize = 32;

impl Flood {
    /// Prepares sockets and keys.
    ///
    /// # Errors
    /// [`LoadError::Usage`] for a target beyond IPv4 loopback; [`LoadError::Resources`] without a
    /// socket.
    pub fn new(config: FloodConfig) -> Result<Self, LoadError> {
        if !matches!(config.target.ip(), IpAddr::V4(ip) if ip.is_loopback()) {
            let sentence = "a flood goes to this machine alone; give an address in 127.0.0.0/8";
            return Err(LoadError::Usage(sentence.to_owned()));
        }
        if config.forgeries.is_empty() {
            return Err(LoadError::Usage("nothing is to be forged; name at least one".to_owned()));
        }
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        Ok(Self {
            socket: QuicSocket::new(socket.into())?,
            keys: never_sent(&config)?,
            random: SmallRng::seed_from_u64(config.seed),
            result: FloodResult::default(),
            config,
        })
    }

    /// Floods until `stop` is set or the time is over.
    ///
    /// # Errors
    /// The socket's.
    pub fn run(mut self, time: Duration, stop: &AtomicBool) -> io::Result<FloodResult> {
        let start = Instant::now();
        let mut buffer = ReceiveBuffer::new();
        let mut last = start;
        while !stop.load(Ordering::Relaxed) && last.duration_since(start) < time {
            for _ in 0..BATCH {
                self.forge()?;
            }
            self.hear(&mut buffer)?;
            last = self.pause(start);
        }
        let mut result = self.result;
        result.seconds = last.duration_since(start).as_secs_f64();
        result.rate = result.forged as f64 / result.seconds.max(1e-9);
        Ok(result)
    }

    /// One forged connection, from an address of its own.
    fn forge(&mut self) -> io::Result<()> {
        let turn = self.result.forged as usize % self.config.forgeries.len();
        let forgery = self.config.forgeries[turn];
        let ids = Ids::random(&mut self.random);
        let mut hello = hello::client_hello(
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

    /// Counts what came back.
    fn hear(&mut self, buffer: &mut ReceiveBuffer) -> io::Result<()> {
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

    /// Waits where a rate was requested. Returns the time.
    fn pause(&self, start: Instant) -> Instant {
        let now = Instant::now();
        let Some(rate) = self.config.rate else { return now };
        let due = start + Duration::from_secs_f64(self.result.forged as f64 / rate);
        match due.checked_duration_since(now) {
            Some(left) => {
                std::thread::sleep(left);
                Instant::now()
            }
            None => now,
        }
    }
}

/// A connection that is only there for its keys.
fn never_sent(config: &FloodConfig) -> Result<Connection, LoadError> {
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
        .map_err(|error| LoadError::Usage(format!("no connection to forge from: {error}")))
}
