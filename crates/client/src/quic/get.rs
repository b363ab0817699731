use std::future::pending;
use std::pin::pin;
use std::time::{Duration, Instant};

use bytes::Bytes;
use firstflight_quic::Resumption;
use firstflight_tls::Handshake;

use super::{Http3, PendingResponse, QuicConnected, QuicLink, QuicStats};
use crate::{ClientError, Head, PhaseInstants, Request};

/// The result of [`http3_get`].
pub struct Http3Response {
    /// The head.
    pub head: Head,
    /// The body.
    pub body: Vec<u8>,
    /// When each phase ended.
    pub marks: PhaseInstants,
    /// What TLS negotiated.
    pub facts: Option<Handshake>,
    /// Bytes sent as early data, accepted or not.
    pub early_bytes: usize,
    /// QUIC's statistics of the connection.
    pub quic: QuicStats,
    /// The connection, with the sessions and address tokens it received.
    pub link: QuicLink,
    /// Dropped after the connection closes: its control stream must not end earlier (RFC 9114
    /// section 6.2.1).
    http3: Http3,
}

impl Http3Response {
    /// Waits for a session and an address token, at most `timeout`, and closes the connection.
    pub async fn close(self, timeout: Duration) -> (Vec<Resumption>, Vec<Bytes>) {
        self.link.wait_for_tickets(timeout).await;
        let tickets = (self.link.take_resumptions(), self.link.take_tokens());
        self.link.close().await;
        drop(self.http3);
        tickets
    }
}

/// Makes one request on a new connection and reads the whole response, with at most `limit` bytes
/// of body. With early data, the request is sent in the first flight; if it is refused, it is sent
/// again after the handshake on the same connection.
///
/// # Errors
/// [`ClientError`], as [`QuicLink::complete`], [`Http3::send`] and [`Http3::read_body`].
pub async fn http3_get(
    connected: QuicConnected,
    request: &Request,
    limit: usize,
) -> Result<Http3Response, ClientError> {
    let QuicConnected { mut link, mut marks } = connected;
    let handshake = complete_handshake(&mut link, request).await?;
    marks.sent = Some(handshake.sent.unwrap_or_else(Instant::now));
    let (mut http3, mut response) = match handshake.early_exchange {
        Some(exchange) => exchange,
        None => start(&link, request).await?,
    };
    let head = http3.head(&mut response).await?;
    marks.first_byte = Some(Instant::now());
    let mut body = Vec::new();
    while let Some(bytes) = http3.read_body(&mut response).await? {
        if body.len() + bytes.len() > limit {
            return Err(ClientError::WeirdReply(format!("the body has more than {limit} bytes")));
        }
        body.extend_from_slice(&bytes);
    }
    marks.end = Some(Instant::now());
    link.handle().mark(&mut marks);
    let (facts, quic, early_bytes) = (link.facts(), link.quic_stats(), link.early_bytes());
    Ok(Http3Response { head, body, marks, facts, early_bytes, quic, link, http3 })
}

/// A connection whose handshake is complete.
pub(crate) struct HandshakeDone {
    /// The request, if it was early data that was accepted.
    pub(crate) early_exchange: Option<(Http3, PendingResponse)>,
    /// When the request was sent, if that was before the handshake was complete.
    pub(crate) sent: Option<Instant>,
}

/// Sends the request as early data if possible, and waits for the handshake. If early data is
/// refused, nothing of the request has reached the server's application (RFC 9001 section 4.6.2),
/// and the caller has to send it again.
pub(crate) async fn complete_handshake(
    link: &mut QuicLink,
    request: &Request,
) -> Result<HandshakeDone, ClientError> {
    let early = link.is_early();
    let connection = link.connection().cloned().filter(|_| early);
    let Some(connection) = connection else {
        link.complete().await?;
        return Ok(HandshakeDone { early_exchange: None, sent: None });
    };
    let sent = Some(Instant::now());
    let mut sending = pin!(async {
        let mut http3 = Http3::open(connection).await?;
        let response = http3.send(request).await?;
        Ok::<_, ClientError>((http3, response))
    });
    let mut sent_request = None;
    let driving = async {
        if sent_request.is_none() {
            sent_request = Some(sending.as_mut().await?);
        }
        match &mut sent_request {
            Some((http3, _)) => http3.drive(pending::<Result<(), ClientError>>()).await,
            None => Ok(()),
        }
    };
    let outcome = tokio::select! {
        // The library closes a connection if its control stream fails, as it does with refused
        // early data. After that it must not be polled.
        biased;
        accepted = link.complete() => Ok(accepted?),
        result = driving => Err(result),
    };
    match outcome {
        Ok(false) => Ok(HandshakeDone { early_exchange: None, sent }),
        Ok(true) => {
            let exchange = match sent_request {
                Some(exchange) => exchange,
                // The remembered limits did not allow the whole request.
                None => sending.await?,
            };
            Ok(HandshakeDone { early_exchange: Some(exchange), sent })
        }
        // If the connection failed, its error is the cause.
        Err(result) => {
            link.complete().await?;
            result.map(|()| HandshakeDone { early_exchange: None, sent })
        }
    }
}

/// Sends the request on a connection whose handshake is complete.
pub(crate) async fn start(
    link: &QuicLink,
    request: &Request,
) -> Result<(Http3, PendingResponse), ClientError> {
    let Some(connection) = link.connection() else { return Err(ClientError::EmptyReply) };
    let mut http3 = Http3::open(connection.clone()).await?;
    let response = http3.send(request).await?;
    Ok((http3, response))
}
