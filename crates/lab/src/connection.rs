//! One connection of a sample, over TCP or over QUIC: connect, send the request, read the response
//! to its end, close.

use std::fmt::Display;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use firstflight_client::{
    ClientError, Connected, QuicConnected, Request, Target, connect_quic, connect_tls, http_get,
    http3_get,
};
use firstflight_quic::{ClientCrypto, Remembered, Resumption};
use firstflight_samples::{Connectors, RequestedConnection, Ticket, Times};
use firstflight_tls::{ConnectOptions, Connector, Handshake, Session, TlsError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::servers::HOST;
use crate::{HttpVersion, Workload};

/// What a client brings to a connection.
#[derive(Clone, Default)]
pub(crate) struct ConnectionOffer {
    /// The server's name.
    pub host: String,
    /// The ticket of the session to resume.
    pub ticket: Option<Ticket>,
    /// Whether to send the request as early data.
    pub early_data: bool,
    /// An address token; QUIC only.
    pub token: Option<Bytes>,
}

/// The result of a connection.
pub(crate) struct Exchange {
    pub times: Times,
    /// The handshake as TLS reports it; QUIC only. For probes alone, since samples are classified
    /// by their packets.
    pub handshake: Option<Handshake>,
    /// Tickets for later connections.
    pub tickets: Vec<Ticket>,
    /// Address tokens for later connections from the same address.
    pub tokens: Vec<Bytes>,
}

/// Makes a connection. Sets `local` as soon as the socket exists.
pub(crate) async fn exchange(
    connectors: &Connectors,
    offer: ConnectionOffer,
    address: SocketAddr,
    requested: &RequestedConnection,
    target: &str,
    local: &mut Option<SocketAddr>,
) -> Result<Exchange, ClientError> {
    let usage = |error: TlsError| ClientError::Usage(error.to_string());
    if requested.over_quic() {
        let crypto = connectors.quic(requested).map_err(usage)?;
        return over_quic(&crypto, offer, address, requested, target, local).await;
    }
    let connector = connectors.tcp(requested).map_err(usage)?;
    over_tcp(&connector, offer, address, requested, target, local).await
}

async fn over_tcp(
    connector: &Connector,
    offer: ConnectionOffer,
    address: SocketAddr,
    requested: &RequestedConnection,
    target: &str,
    local: &mut Option<SocketAddr>,
) -> Result<Exchange, ClientError> {
    let session = offer.ticket.map(|ticket| ticket.session().clone());
    let offer = ConnectOptions { host: offer.host, session, early_data: offer.early_data };
    let connected = connect_tls(connector, &offer, address, requested.tfo).await?;
    *local = connected.stream.socket().local_addr().ok();
    let (times, sessions) = match requested.workload {
        Workload::PingPong => tcp_ping(connected).await,
        Workload::Get => tcp_get(connected, requested, target).await,
    }?;
    let tickets = sessions.into_iter().map(Ticket::Tcp).collect();
    Ok(Exchange { times, handshake: None, tickets, tokens: Vec::new() })
}

async fn tcp_ping(connected: Connected) -> Result<(Times, Vec<Session>), ClientError> {
    let Connected { mut stream, marks } = connected;
    let mut pong = [0; 4];
    stream.write_all(b"PING").await.map_err(ClientError::Send)?;
    stream.flush().await.map_err(ClientError::Send)?;
    let secured = match marks.secured {
        Some(secured) => secured,
        None => {
            poll_fn(|cx| stream.poll_complete(cx)).await.map_err(receive_error)?;
            Instant::now()
        }
    };
    stream.read_exact(&mut pong[..1]).await.map_err(receive_error)?;
    let first_byte = Instant::now();
    stream.read_exact(&mut pong[1..]).await.map_err(receive_error)?;
    let times = Times {
        setup: Some(secured - marks.start),
        first_byte: first_byte - marks.start,
        total: marks.start.elapsed(),
    };
    let sessions = stream.take_sessions();
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, stream.shutdown()).await;
    Ok((times, sessions))
}

fn receive_error(error: io::Error) -> ClientError {
    ClientError::Receive(error.to_string())
}

async fn tcp_get(
    connected: Connected,
    requested: &RequestedConnection,
    target: &str,
) -> Result<(Times, Vec<Session>), ClientError> {
    let request = Request::get(Target::parse(&format!("https://{HOST}{target}"))?);
    let response = http_get(connected, &request, MAX_RESPONSE_BYTES).await?;
    if !response.head.status.is_success() {
        return Err(ClientError::WeirdReply(format!("status {}", response.head.status)));
    }
    let version = response.head.version;
    // Some servers respond to HTTP/1.1 with HTTP/1.0, which makes no difference for one request.
    if (version == http::Version::HTTP_2) != (requested.http == HttpVersion::Two) {
        return Err(ClientError::WeirdReply(format!(
            "{version:?} where HTTP/{} was requested",
            requested.http
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

async fn over_quic(
    crypto: &Arc<ClientCrypto>,
    offer: ConnectionOffer,
    address: SocketAddr,
    requested: &RequestedConnection,
    target: &str,
    local: &mut Option<SocketAddr>,
) -> Result<Exchange, ClientError> {
    let remembered = Remembered {
        resumption: match offer.ticket {
            Some(Ticket::Quic(resumption)) => Some(resumption),
            _ => None,
        },
        token: offer.token,
        early_data: offer.early_data,
    };
    let connected = connect_quic(crypto, &offer.host, remembered, address).await?;
    *local = connected.link.local_addr();
    match requested.workload {
        Workload::PingPong => quic_ping(connected).await,
        Workload::Get => quic_get(connected, target).await,
    }
}

async fn quic_ping(connected: QuicConnected) -> Result<Exchange, ClientError> {
    let QuicConnected { mut link, marks } = connected;
    let no_connection = || ClientError::Receive("the connection has ended".to_owned());
    let connection = link.connection().cloned().ok_or_else(no_connection)?;
    let (secured, pong) = match marks.secured {
        Some(secured) => (secured, ping_on_stream(&connection).await),
        None => {
            let complete =
                async { link.complete().await.map(|accepted| (accepted, Instant::now())) };
            let (complete, pong) = tokio::join!(complete, ping_on_stream(&connection));
            match complete? {
                (true, secured) => (secured, pong),
                // Refused early data must be sent again (RFC 9001 section 4.6.2).
                (false, secured) => (secured, ping_on_stream(&connection).await),
            }
        }
    };
    let (first_byte, end) = pong.map_err(ClientError::Receive)?;
    let times = Times {
        setup: Some(secured - marks.start),
        first_byte: first_byte - marks.start,
        total: end - marks.start,
    };
    link.wait_for_tickets(TICKET_TIMEOUT).await;
    let (tickets, handshake) = ((link.take_resumptions(), link.take_tokens()), link.facts());
    link.close().await;
    Ok(quic_exchange(times, handshake, tickets))
}

/// Sends PING on a stream, and returns when the first and the last byte of PONG arrived.
async fn ping_on_stream(connection: &quinn::Connection) -> Result<(Instant, Instant), String> {
    let describe = |error: &dyn Display| error.to_string();
    let (mut up, mut down) = connection.open_bi().await.map_err(|error| describe(&error))?;
    up.write_all(b"PING").await.map_err(|error| describe(&error))?;
    up.finish().map_err(|error| describe(&error))?;
    let mut pong = [0; 4];
    down.read_exact(&mut pong[..1]).await.map_err(|error| describe(&error))?;
    let first_byte = Instant::now();
    down.read_exact(&mut pong[1..]).await.map_err(|error| describe(&error))?;
    Ok((first_byte, Instant::now()))
}

async fn quic_get(connected: QuicConnected, target: &str) -> Result<Exchange, ClientError> {
    let request = Request::get(Target::parse(&format!("https://{HOST}{target}"))?);
    let response = http3_get(connected, &request, MAX_RESPONSE_BYTES).await?;
    if !response.head.status.is_success() {
        return Err(ClientError::WeirdReply(format!("status {}", response.head.status)));
    }
    let (marks, handshake) = (response.marks, response.facts.clone());
    let since = |mark: Instant| mark - marks.start;
    let times = Times {
        setup: marks.secured.map(since),
        first_byte: marks.first_byte.map(since).unwrap_or_default(),
        total: marks.end.map(since).unwrap_or_default(),
    };
    Ok(quic_exchange(times, handshake, response.close(TICKET_TIMEOUT).await))
}

fn quic_exchange(
    times: Times,
    handshake: Option<Handshake>,
    (resumptions, tokens): (Vec<Resumption>, Vec<Bytes>),
) -> Exchange {
    let tickets = resumptions.into_iter().map(Ticket::Quic).collect();
    Exchange { times, handshake, tickets, tokens }
}

/// More than the largest page of the lab, for servers that serve another one.
const MAX_RESPONSE_BYTES: usize = 4 << 20;

/// How long closing a connection may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a QUIC connection waits for tickets and tokens after its response. With early data the
/// response arrives a round trip before the server confirms the handshake, and tickets and tokens
/// come with that.
const TICKET_TIMEOUT: Duration = Duration::from_secs(2);
