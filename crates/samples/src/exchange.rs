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
    ClientError, Connected, Head, QuicConnected, Request, Target, TcpInfo, connect_quic,
    connect_tls, http_get, http3_get,
};
use firstflight_quic::{ClientCrypto, Remembered, Resumption};
use firstflight_tls::{ConnectOptions, Connector, Handshake, Session, TlsError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{Connectors, HttpVersion, RequestedConnection, Ticket, Times, Workload};

/// What a client brings to a connection.
#[derive(Clone, Default)]
pub struct ConnectionOffer {
    /// The ticket of the session to resume.
    pub ticket: Option<Ticket>,
    /// Whether to send the request as early data.
    pub early_data: bool,
    /// An address token; QUIC only.
    pub token: Option<Bytes>,
}

/// Limits of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ExchangeLimits {
    /// The maximum length of a response's content, in bytes.
    pub response_bytes: usize,
    /// How long a connection over TCP waits for tickets after its response, if it has none yet.
    pub tcp_ticket_timeout: Duration,
}

/// The result of a connection.
pub struct Exchange {
    /// The client's times.
    pub times: Times,
    /// The handshake as TLS reports it, for probes and where no packets are captured.
    pub handshake: Option<Handshake>,
    /// The lowest round-trip time that the kernel or QUIC measured.
    pub min_rtt: Option<Duration>,
    /// Whether the server acknowledged data in the SYN (RFC 7413), as the kernel reports it.
    pub syn_data: bool,
    /// The length of the response's content.
    pub response_bytes: usize,
    /// The `Server` field of the response; empty if there is none.
    pub server: String,
    /// Tickets for later connections.
    pub tickets: Vec<Ticket>,
    /// Address tokens for later connections from the same address.
    pub tokens: Vec<Bytes>,
}

/// Makes a connection to the address of `target`'s server and requests `target`; a ping-pong
/// connection uses its host only. Sets `local` to the client's address as soon as it is known.
///
/// # Errors
/// [`ClientError`]; [`ClientError::WeirdReply`] if the response is neither a success nor a
/// redirection, or of another HTTP version.
pub async fn exchange(
    connectors: &Connectors,
    offer: ConnectionOffer,
    address: SocketAddr,
    (requested, target): (&RequestedConnection, &Target),
    limits: &ExchangeLimits,
    local: &mut Option<SocketAddr>,
) -> Result<Exchange, ClientError> {
    let usage = |error: TlsError| ClientError::Usage(error.to_string());
    if requested.over_quic() {
        let crypto = connectors.quic(requested).map_err(usage)?;
        return over_quic(&crypto, offer, address, (requested, target), limits, local).await;
    }
    let connector = connectors.tcp(requested).map_err(usage)?;
    over_tcp(&connector, offer, address, (requested, target), limits, local).await
}

async fn over_tcp(
    connector: &Connector,
    offer: ConnectionOffer,
    address: SocketAddr,
    (requested, target): (&RequestedConnection, &Target),
    limits: &ExchangeLimits,
    local: &mut Option<SocketAddr>,
) -> Result<Exchange, ClientError> {
    let session = offer.ticket.map(|ticket| ticket.session().clone());
    let host = target.host().to_owned();
    let offer = ConnectOptions { host, session, early_data: offer.early_data };
    let connected = connect_tls(connector, &offer, address, requested.tfo).await?;
    *local = connected.stream.socket().local_addr().ok();
    match requested.workload {
        Workload::PingPong => tcp_ping(connected).await,
        Workload::Get => tcp_get(connected, requested, target, limits).await,
    }
}

async fn tcp_ping(connected: Connected) -> Result<Exchange, ClientError> {
    let Connected { mut stream, marks } = connected;
    let mut pong = [0; PONG_BYTES];
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
    let (handshake, tcp) = (Some(stream.facts()), TcpInfo::of(stream.socket()));
    let sessions = stream.take_sessions();
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, stream.shutdown()).await;
    Ok(tcp_exchange(times, handshake, tcp, sessions))
}

fn receive_error(error: io::Error) -> ClientError {
    ClientError::Receive(error.to_string())
}

async fn tcp_get(
    connected: Connected,
    requested: &RequestedConnection,
    target: &Target,
    limits: &ExchangeLimits,
) -> Result<Exchange, ClientError> {
    let request = Request::get(target.clone());
    let mut response = http_get(connected, &request, limits.response_bytes).await?;
    check_status(&response.head)?;
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
    let mut sessions = std::mem::take(&mut response.sessions);
    let wait = if sessions.is_empty() { limits.tcp_ticket_timeout } else { Duration::ZERO };
    let base = tcp_exchange(times, response.facts, response.tcp, Vec::new());
    sessions.extend(response.exchange.close(wait).await);
    Ok(Exchange {
        response_bytes: response.body.len(),
        server: server_name(&response.head),
        tickets: sessions.into_iter().map(Ticket::Tcp).collect(),
        ..base
    })
}

fn tcp_exchange(
    times: Times,
    handshake: Option<Handshake>,
    tcp: Option<TcpInfo>,
    sessions: Vec<Session>,
) -> Exchange {
    Exchange {
        times,
        handshake,
        min_rtt: tcp.map(|tcp| tcp.min_rtt).filter(|rtt| !rtt.is_zero()),
        syn_data: tcp.is_some_and(|tcp| tcp.syn_data),
        response_bytes: PONG_BYTES,
        server: String::new(),
        tickets: sessions.into_iter().map(Ticket::Tcp).collect(),
        tokens: Vec::new(),
    }
}

fn check_status(head: &Head) -> Result<(), ClientError> {
    match head.status.is_success() || head.status.is_redirection() {
        true => Ok(()),
        false => Err(ClientError::Status(head.status.as_u16())),
    }
}

fn server_name(head: &Head) -> String {
    let value = head.headers.get(http::header::SERVER).and_then(|value| value.to_str().ok());
    value.unwrap_or_default().to_owned()
}

async fn over_quic(
    crypto: &Arc<ClientCrypto>,
    offer: ConnectionOffer,
    address: SocketAddr,
    (requested, target): (&RequestedConnection, &Target),
    limits: &ExchangeLimits,
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
    let connected = connect_quic(crypto, target.host(), remembered, address).await?;
    *local = connected.link.local_addr();
    match requested.workload {
        Workload::PingPong => quic_ping(connected).await,
        Workload::Get => quic_get(connected, target, limits).await,
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
    link.wait_for_tickets(QUIC_TICKET_TIMEOUT).await;
    let (tickets, handshake) = ((link.take_resumptions(), link.take_tokens()), link.facts());
    let min_rtt = link.quic_stats().min_rtt;
    link.close().await;
    Ok(quic_exchange(times, (handshake, min_rtt), tickets))
}

/// Sends PING on a stream, and returns when the first and the last byte of PONG arrived.
async fn ping_on_stream(connection: &quinn::Connection) -> Result<(Instant, Instant), String> {
    let describe = |error: &dyn Display| error.to_string();
    let (mut up, mut down) = connection.open_bi().await.map_err(|error| describe(&error))?;
    up.write_all(b"PING").await.map_err(|error| describe(&error))?;
    up.finish().map_err(|error| describe(&error))?;
    let mut pong = [0; PONG_BYTES];
    down.read_exact(&mut pong[..1]).await.map_err(|error| describe(&error))?;
    let first_byte = Instant::now();
    down.read_exact(&mut pong[1..]).await.map_err(|error| describe(&error))?;
    Ok((first_byte, Instant::now()))
}

async fn quic_get(
    connected: QuicConnected,
    target: &Target,
    limits: &ExchangeLimits,
) -> Result<Exchange, ClientError> {
    let request = Request::get(target.clone());
    let response = http3_get(connected, &request, limits.response_bytes).await?;
    check_status(&response.head)?;
    let (marks, handshake) = (response.marks, response.facts.clone());
    let since = |mark: Instant| mark - marks.start;
    let times = Times {
        setup: marks.secured.map(since),
        first_byte: marks.first_byte.map(since).unwrap_or_default(),
        total: marks.end.map(since).unwrap_or_default(),
    };
    let (response_bytes, server) = (response.body.len(), server_name(&response.head));
    let min_rtt = response.quic.min_rtt;
    let tickets = response.close(QUIC_TICKET_TIMEOUT).await;
    Ok(Exchange { response_bytes, server, ..quic_exchange(times, (handshake, min_rtt), tickets) })
}

fn quic_exchange(
    times: Times,
    (handshake, min_rtt): (Option<Handshake>, Duration),
    (resumptions, tokens): (Vec<Resumption>, Vec<Bytes>),
) -> Exchange {
    Exchange {
        times,
        handshake,
        // Before the first measurement QUIC reports its initial value.
        min_rtt: Some(min_rtt).filter(|rtt| !rtt.is_zero() && *rtt < MAX_MIN_RTT),
        syn_data: false,
        response_bytes: PONG_BYTES,
        server: String::new(),
        tickets: resumptions.into_iter().map(Ticket::Quic).collect(),
        tokens,
    }
}

/// The length of PONG.
const PONG_BYTES: usize = 4;

/// A longer round-trip time is QUIC's initial value, not a measurement.
const MAX_MIN_RTT: Duration = Duration::from_secs(60);

/// How long closing a connection may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a QUIC connection waits for tickets and tokens after its response. With early data the
/// response arrives a round trip before the server confirms the handshake, and tickets and tokens
/// come with that confirmation.
const QUIC_TICKET_TIMEOUT: Duration = Duration::from_secs(2);
