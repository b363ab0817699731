//! One connection of a sample over QUIC: connect, ask, read the response to its end, close.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use firstflight_client::{ClientError, QuicConnected, Request, Target, connect_quic, http3_get};
use firstflight_quic::{ClientCrypto, Remembered, Resumption};
use firstflight_tls::Handshake;
use quinn::Connection;

use crate::Workload;
use firstflight_samples::{RequestedConnection, Ticket, Times};

use crate::connection::{ConnectionOffer, Exchanged, MAX_RESPONSE_BYTES};
use crate::servers::HOST;

/// Makes the connection; `local` is set as soon as there is a socket.
pub(crate) async fn talk(
    crypto: &Arc<ClientCrypto>,
    brought: ConnectionOffer,
    address: SocketAddr,
    asked: &RequestedConnection,
    target: &str,
    local: &mut Option<SocketAddr>,
) -> Result<Exchanged, ClientError> {
    let remembered = Remembered {
        resumption: match brought.ticket {
            Some(Ticket::Quic(resumption)) => Some(resumption),
            _ => None,
        },
        token: brought.token,
        early_data: brought.early_data,
    };
    let connected = connect_quic(crypto, &brought.host, remembered, address).await?;
    *local = connected.link.local_addr();
    match asked.workload {
        Workload::PingPong => ping(connected).await,
        Workload::Get => get(connected, target).await,
    }
}

async fn ping(connected: QuicConnected) -> Result<Exchanged, ClientError> {
    let QuicConnected { mut link, marks } = connected;
    let no_connection = || ClientError::Receive("the connection is gone".to_owned());
    let connection = link.connection().cloned().ok_or_else(no_connection)?;
    let (secured, asked) = match marks.secured {
        Some(secured) => (secured, ask(&connection).await),
        None => {
            let complete = async { link.complete().await.map(|taken| (taken, Instant::now())) };
            let (complete, asked) = tokio::join!(complete, ask(&connection));
            match complete? {
                (true, secured) => (secured, asked),
                // What was refused has to be asked again (RFC 9001 section 4.6.2).
                (false, secured) => (secured, ask(&connection).await),
            }
        }
    };
    let (first_byte, end) = asked.map_err(ClientError::Receive)?;
    let times = Times {
        setup: Some(secured - marks.start),
        first_byte: first_byte - marks.start,
        total: end - marks.start,
    };
    link.wait_for_gifts(GIFTS).await;
    let (gifts, facts) = ((link.take_resumptions(), link.take_tokens()), link.facts());
    link.close().await;
    Ok(talked(times, facts, gifts))
}

/// PING on a stream; when the first byte of PONG came, and when the last.
async fn ask(connection: &Connection) -> Result<(Instant, Instant), String> {
    let words = |error: &dyn std::fmt::Display| error.to_string();
    let (mut up, mut down) = connection.open_bi().await.map_err(|error| words(&error))?;
    up.write_all(b"PING").await.map_err(|error| words(&error))?;
    up.finish().map_err(|error| words(&error))?;
    let mut pong = [0; 4];
    down.read_exact(&mut pong[..1]).await.map_err(|error| words(&error))?;
    let first_byte = Instant::now();
    down.read_exact(&mut pong[1..]).await.map_err(|error| words(&error))?;
    Ok((first_byte, Instant::now()))
}

async fn get(connected: QuicConnected, target: &str) -> Result<Exchanged, ClientError> {
    let request = Request::get(Target::parse(&format!("https://{HOST}{target}"))?);
    let response = http3_get(connected, &request, MAX_RESPONSE_BYTES).await?;
    if !response.head.status.is_success() {
        return Err(ClientError::WeirdReply(format!("status {}", response.head.status)));
    }
    let (marks, facts) = (response.marks, response.facts.clone());
    let since = |mark: Instant| mark - marks.start;
    let times = Times {
        setup: marks.secured.map(since),
        first_byte: marks.first_byte.map(since).unwrap_or_default(),
        total: marks.end.map(since).unwrap_or_default(),
    };
    Ok(talked(times, facts, response.close(GIFTS).await))
}

fn talked(
    times: Times,
    facts: Option<Handshake>,
    (resumptions, tokens): (Vec<Resumption>, Vec<Bytes>),
) -> Exchanged {
    let tickets = resumptions.into_iter().map(Ticket::Quic).collect();
    Exchanged { times, facts, tickets, tokens }
}

/// How long a connection waits, after its response, for what later connections need: by early data
/// the response is there a round trip before the server confirms the handshake, and tickets and
/// tokens come with that.
const GIFTS: Duration = Duration::from_secs(2);
