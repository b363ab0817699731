//! One connection of a sample: connect, ask, read the answer to its end, close.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use firstflight_client::{ClientError, Connected, Request, Target, connect_tls, http_get};
use firstflight_tls::{Handshake, Offer, Session};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::connectors::Connectors;
use crate::over_quic;
use crate::servers::{Asked, HOST};
use crate::tickets::Ticket;
use crate::{Http, Workload};

/// The client's times of one connection, from just before the connect call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    /// Until the handshake was complete.
    pub setup: Option<Duration>,
    /// Until the first byte of the answer.
    pub first_byte: Duration,
    /// Until its last byte.
    pub total: Duration,
}

/// What a connection brings along.
#[derive(Clone, Default)]
pub(crate) struct Brought {
    /// The server's name.
    pub host: String,
    /// What it resumes.
    pub ticket: Option<Ticket>,
    /// Whether to send the request as early data.
    pub early_data: bool,
    /// An address token; QUIC only.
    pub token: Option<Bytes>,
}

/// What came of a connection.
pub(crate) struct Talked {
    pub times: Times,
    /// What TLS says of itself, over QUIC; for trials alone, for what a sample was is for its packets to say.
    pub facts: Option<Handshake>,
    /// For later connections.
    pub tickets: Vec<Ticket>,
    /// Address tokens for later connections from the same address.
    pub tokens: Vec<Bytes>,
}

/// Makes the connection; `local` is set as soon as there is a socket.
pub(crate) async fn talk(
    connectors: &Connectors,
    brought: Brought,
    address: SocketAddr,
    asked: &Asked,
    target: &str,
    local: &mut Option<SocketAddr>,
) -> Result<Talked, ClientError> {
    let usage = |error: crate::BenchError| ClientError::Usage(error.to_string());
    if asked.over_quic() {
        let crypto = connectors.quic(asked).map_err(usage)?;
        return over_quic::talk(&crypto, brought, address, asked, target, local).await;
    }
    let connector = connectors.get(asked).map_err(usage)?;
    let session = brought.ticket.map(|ticket| ticket.session().clone());
    let offer = Offer { host: brought.host, session, early_data: brought.early_data };
    let connected = connect_tls(&connector, &offer, address, asked.tfo).await?;
    *local = connected.stream.socket().local_addr().ok();
    let (times, sessions) = match asked.workload {
        Workload::PingPong => ping(connected).await,
        Workload::Get => get(connected, asked, target).await,
    }?;
    let tickets = sessions.into_iter().map(Ticket::Tcp).collect();
    Ok(Talked { times, facts: None, tickets, tokens: Vec::new() })
}

async fn ping(connected: Connected) -> Result<(Times, Vec<Session>), ClientError> {
    let Connected { mut stream, marks } = connected;
    let mut pong = [0; 4];
    stream.write_all(b"PING").await.map_err(ClientError::Send)?;
    stream.flush().await.map_err(ClientError::Send)?;
    let secured = match marks.secured {
        Some(secured) => secured,
        None => {
            poll_fn(|cx| stream.poll_complete(cx)).await.map_err(received)?;
            Instant::now()
        }
    };
    stream.read_exact(&mut pong[..1]).await.map_err(received)?;
    let first_byte = Instant::now();
    stream.read_exact(&mut pong[1..]).await.map_err(received)?;
    let times = Times {
        setup: Some(secured - marks.start),
        first_byte: first_byte - marks.start,
        total: marks.start.elapsed(),
    };
    let sessions = stream.take_sessions();
    let _ = tokio::time::timeout(GOODBYE, stream.shutdown()).await;
    Ok((times, sessions))
}

fn received(error: std::io::Error) -> ClientError {
    ClientError::Receive(error.to_string())
}

async fn get(
    connected: Connected,
    asked: &Asked,
    target: &str,
) -> Result<(Times, Vec<Session>), ClientError> {
    let request = Request::get(Target::parse(&format!("https://{HOST}{target}"))?);
    let answer = http_get(connected, &request, LARGEST).await?;
    if !answer.head.status.is_success() {
        return Err(ClientError::WeirdReply(format!("status {}", answer.head.status)));
    }
    let got = answer.head.version;
    // Some servers answer HTTP/1.1 by 1.0, which is as good for one request.
    if (got == http::Version::HTTP_2) != (asked.http == Http::Two) {
        return Err(ClientError::WeirdReply(format!(
            "{got:?} where HTTP/{} was asked",
            asked.http
        )));
    }
    let marks = answer.marks;
    let since = |mark: Instant| mark - marks.start;
    let times = Times {
        setup: marks.secured.map(since),
        first_byte: marks.first_byte.map(since).unwrap_or_default(),
        total: marks.end.map(since).unwrap_or_default(),
    };
    let mut sessions = answer.sessions;
    sessions.extend(answer.exchange.close(Duration::ZERO).await);
    Ok((times, sessions))
}

/// Our largest answer, and room for a server that has another one.
pub(crate) const LARGEST: usize = 4 << 20;

/// How long a connection may take to end.
const GOODBYE: Duration = Duration::from_secs(2);
