//! One connection of a sample over TCP: connect, ask, read the response to its end, close.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use firstflight_client::{ClientError, Connected, Request, Target, connect_tls, http_get};
use firstflight_samples::{RequestedConnection, Ticket, Times};
use firstflight_tls::{ConnectOptions, Connector, Session};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::connection::{ConnectionOffer, Exchanged, MAX_RESPONSE_BYTES};
use crate::servers::HOST;
use crate::{Http, Workload};

/// Makes the connection; `local` is set as soon as there is a socket.
pub(crate) async fn talk(
    connector: &Connector,
    brought: ConnectionOffer,
    address: SocketAddr,
    asked: &RequestedConnection,
    target: &str,
    local: &mut Option<SocketAddr>,
) -> Result<Exchanged, ClientError> {
    let session = brought.ticket.map(|ticket| ticket.session().clone());
    let offer = ConnectOptions { host: brought.host, session, early_data: brought.early_data };
    let connected = connect_tls(connector, &offer, address, asked.tfo).await?;
    *local = connected.stream.socket().local_addr().ok();
    let (times, sessions) = match asked.workload {
        Workload::PingPong => ping(connected).await,
        Workload::Get => get(connected, asked, target).await,
    }?;
    let tickets = sessions.into_iter().map(Ticket::Tcp).collect();
    Ok(Exchanged { times, facts: None, tickets, tokens: Vec::new() })
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
    asked: &RequestedConnection,
    target: &str,
) -> Result<(Times, Vec<Session>), ClientError> {
    let request = Request::get(Target::parse(&format!("https://{HOST}{target}"))?);
    let response = http_get(connected, &request, MAX_RESPONSE_BYTES).await?;
    if !response.head.status.is_success() {
        return Err(ClientError::WeirdReply(format!("status {}", response.head.status)));
    }
    let got = response.head.version;
    // Some servers answer HTTP/1.1 by 1.0, which is as good for one request.
    if (got == http::Version::HTTP_2) != (asked.http == Http::Two) {
        return Err(ClientError::WeirdReply(format!(
            "{got:?} where HTTP/{} was asked",
            asked.http
        )));
    }
    let marks = response.marks;
    let since = |mark: Instant| mark - marks.start;
    let times = Times {
        setup: marks.secured.map(since),
        first_byte: marks.first_byte.map(since).unwrap_or_default(),
        total: marks.end.map(since).unwrap_or_default(),
    };
    let mut sessions = response.sessions;
    sessions.extend(response.exchange.close(Duration::ZERO).await);
    Ok((times, sessions))
}

/// How long a connection may take to end.
const GOODBYE: Duration = Duration::from_secs(2);
