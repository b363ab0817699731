use std::net::SocketAddr;
use std::time::{Duration, Instant};

use firstflight_quic::{Remembered, Resumption};
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::QuicBody;
use super::{Outcome, Transfer};
use crate::client::{is_retryable_425, is_safe};
use crate::connect::ATTEMPT_DELAY;
use crate::quic::{HandshakeDone, QuicHandle, QuicLink, complete_handshake, start};
use crate::{ClientError, Event, Head, Http3, PendingResponse, Request};

/// A connection over QUIC whose handshake is complete.
pub(super) struct QuicReady {
    link: QuicLink,
    handshake: HandshakeDone,
}

/// How long a handshake may take, as with curl.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum time to wait for a ticket and a token that did not come with the response.
const TICKET_TIMEOUT: Duration = Duration::from_secs(1);

impl Transfer<'_> {
    /// Connects to the first of `addresses` that responds, as over TCP: the next address is tried
    /// when one fails or has not responded for 250 ms (RFC 8305 section 5). Session, token and the
    /// request as early data go to the first address only. A request with an unsafe method is sent
    /// as early data only if this is the only transport (`alone`); then another address is tried
    /// only if the network reports that nothing can have arrived.
    pub(super) async fn dial_quic(
        &self,
        request: &Request,
        early: bool,
        alone: bool,
        addresses: &[SocketAddr],
    ) -> Result<QuicReady, ClientError> {
        let safe = is_safe(&request.method);
        let mut remembered = Some(self.remembered(early && (safe || alone)));
        let mut committed = false;
        let mut waiting = addresses.iter();
        let mut attempts = FuturesUnordered::new();
        let mut last_error = None;
        loop {
            if let Some(&address) = waiting.next() {
                let remembered = remembered.take().unwrap_or_default();
                let link = self.start_quic(request, remembered, address);
                committed |= link.as_ref().is_ok_and(QuicLink::is_early);
                attempts.push(async move { finish_quic(link?, request, address).await });
            }
            let timeout = match waiting.len() {
                0 => Duration::MAX,
                _ if committed && !safe => Duration::MAX,
                _ => ATTEMPT_DELAY,
            };
            match tokio::time::timeout(timeout, attempts.next()).await {
                Ok(Some(Ok(ready))) => return Ok(ready),
                Ok(Some(Err(error))) => {
                    if committed && !safe && self.may_have_arrived(&error) {
                        return Err(error);
                    }
                    // The early request has not arrived, and the other addresses do not get it as
                    // early data.
                    committed &= safe;
                    last_error = Some(error);
                }
                Err(_) => continue,
                Ok(None) => {}
            }
            if attempts.is_empty() && waiting.len() == 0 {
                return Err(last_error.unwrap_or_else(|| ClientError::Resolve {
                    host: request.target.host().to_owned(),
                    reason: "no address left to try".to_owned(),
                }));
            }
        }
    }

    /// Returns whether the server may have received what was sent before this error. The network
    /// also refuses a connection if a server dies after it has executed the request, but that is
    /// noticed only when something else is sent.
    fn may_have_arrived(&self, error: &ClientError) -> bool {
        !matches!(error, ClientError::Connect { .. })
            || !self.links.borrow().iter().all(QuicHandle::refuses_first_flight)
    }

    /// Starts a connection to one address; nothing has been sent when this returns.
    fn start_quic(
        &self,
        request: &Request,
        remembered: Remembered,
        address: SocketAddr,
    ) -> Result<QuicLink, ClientError> {
        let Some(crypto) = &self.client.quic else {
            return Err(ClientError::Usage("QUIC is disabled".to_owned()));
        };
        let link = QuicLink::dial(crypto, request.target.host(), remembered, address)?;
        self.links.borrow_mut().push(link.handle());
        Ok(link)
    }

    fn remembered(&self, early_data: bool) -> Remembered {
        let resumption = self.jar_tickets.quic.as_ref().and_then(|ticket| {
            Some(Resumption {
                session: ticket.session.clone(),
                transport_parameters: ticket.transport_parameters.clone()?,
            })
        });
        let token = self.jar_tickets.token.as_ref().map(|token| token.bytes.clone());
        Remembered { resumption, token, early_data }
    }

    /// Exchanges request and response over QUIC, and ends the connection.
    pub(super) async fn over_quic(
        &mut self,
        ready: QuicReady,
        request: &Request,
    ) -> Result<Outcome, ClientError> {
        let QuicReady { link, handshake } = ready;
        self.record_link(&link, request);
        self.report.marks.sent = handshake.sent;
        let was_early = handshake.early_exchange.is_some();
        let mut http3 = None;
        let result = match self.request_head(&link, handshake, request).await {
            Ok((head, open, response)) => {
                let open = http3.insert(open);
                self.deliver_or_retry(head, open, response, request, was_early).await
            }
            Err(error) => Err(error),
        };
        self.record_quic(&link.handle());
        if let Ok(outcome) = &result {
            self.report.marks.end = Some(Instant::now());
            self.is_delivered = matches!(outcome, Outcome::Done);
            if self.client.config.jar.is_some() {
                link.wait_for_tickets(TICKET_TIMEOUT).await;
            }
        }
        link.close().await;
        drop(http3);
        self.listener.event(&Event::Closed);
        result
    }

    /// Returns the head of the response. Sends the request unless it was sent as early data.
    async fn request_head(
        &mut self,
        link: &QuicLink,
        handshake: HandshakeDone,
        request: &Request,
    ) -> Result<(Head, Http3, PendingResponse), ClientError> {
        self.note_request(request, http::Version::HTTP_3)?;
        let (mut http3, mut response) = match handshake.early_exchange {
            Some(exchange) => exchange,
            None => {
                self.report.marks.sent.get_or_insert_with(Instant::now);
                start(link, request).await?
            }
        };
        let head = http3.head(&mut response).await?;
        self.report.marks.first_byte = Some(Instant::now());
        Ok((head, http3, response))
    }

    /// Records the facts of a connection whose handshake is complete.
    fn record_link(&mut self, link: &QuicLink, request: &Request) {
        let handle = link.handle();
        self.record_duplicates(Some(handle.peer()));
        handle.mark(&mut self.report.marks);
        self.report.peer = Some(handle.peer());
        self.report.local = handle.local();
        self.report.num_connects += 1;
        self.listener.event(&Event::QuicConnected {
            host: request.target.host(),
            peer: handle.peer(),
            local: handle.local(),
            token: handle.quic_stats().token_sent,
        });
        if handle.resumes() {
            let early_data = handle.offered_early_data();
            self.listener.event(&Event::Resuming { early_data });
        }
        if let Some(facts) = link.facts() {
            self.listener.event(&Event::Secured(&facts));
        }
    }

    /// Copies the statistics of the connection into the report.
    fn record_quic(&mut self, handle: &QuicHandle) {
        self.report.facts = handle.facts();
        self.report.early_bytes = handle.early_bytes();
        self.report.quic = Some(handle.quic_stats());
        self.report.tcp = None;
    }

    /// Records the last connection attempt, if no connection was established.
    pub(super) fn record_failed_link(&mut self) {
        let Some(handle) = self.links.get_mut().last().cloned() else { return };
        self.report.peer = Some(handle.peer());
        self.report.local = handle.local();
        handle.mark(&mut self.report.marks);
        self.record_quic(&handle);
    }

    /// Passes the response to the listener. Retries a 425 to early data on a new connection: a
    /// server that has seen the flight before responds 425 to all requests of this one.
    async fn deliver_or_retry(
        &mut self,
        head: Head,
        http3: &mut Http3,
        mut response: PendingResponse,
        request: &Request,
        was_early: bool,
    ) -> Result<Outcome, ClientError> {
        if !self.retried && is_retryable_425(head.status, was_early) {
            self.listener.event(&Event::ResponseHead(&head.raw));
            return Ok(Outcome::Retry("425: too early; on a new connection"));
        }
        self.deliver(head, QuicBody(http3, &mut response), request).await
    }
}

/// Completes the handshake, with the request as early data if the link supports it.
async fn finish_quic(
    mut link: QuicLink,
    request: &Request,
    address: SocketAddr,
) -> Result<QuicReady, ClientError> {
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, complete_handshake(&mut link, request)).await {
        Ok(handshake) => Ok(QuicReady { handshake: handshake?, link }),
        Err(_) => Err(ClientError::Quic {
            address,
            reason: format!("no response over UDP for {} s", HANDSHAKE_TIMEOUT.as_secs()),
        }),
    }
}
