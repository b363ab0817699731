//! HTTP/3 on one connection: its requests, its time limits and its end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use h3::error::{Code, ConnectionError};
use h3::server::RequestResolver;
use tokio::sync::watch;
use tokio::time::{sleep_until, timeout_at};
use tracing::debug;

use crate::handshake::quic::next_stop;
use crate::http::connection::Connection;
use crate::http::h3_halves::varint;
use crate::http::h3_request;
use crate::http::h3_streams::{Link, LinkWatch, StreamEnd};
use crate::server::Stop;

/// Serves HTTP/3 until the connection ends. `deadline`: for handshake and first request.
pub(crate) async fn serve(
    connection: &Arc<Connection>,
    quic: &quinn::Connection,
    deadline: Instant,
    stop: &mut watch::Receiver<Stop>,
) {
    let header_size = connection.snapshot.limits.header_size as u64;
    // What is longer than allowed, and not much, is answered 431.
    let link = Link::new(quic.clone(), header_size * 2, connection.server.budget.clone());
    let watch = link.watch();
    let mut builder = h3::server::builder();
    // Early data is bound to these too (RFC 9114 section 7.2.4.2): they follow from the
    // configuration alone, without random ones that nobody knows.
    builder.max_field_section_size(header_size).send_grease(false);
    let built = timeout_at(deadline.into(), builder.build(link)).await;
    let Ok(Ok(http)) = built.inspect_err(|_| connection.visit.timed_out()) else { return };
    let mut session = Session {
        connection: connection.clone(),
        quic: quic.clone(),
        http,
        watch,
        requests: FuturesUnordered::new(),
        deadline,
        idle_since: Instant::now(),
        finishing: false,
        told: false,
        client_left: false,
        abandoned: 0,
    };
    if let Err(error) = session.run(stop).await {
        debug!("{}: {error}", connection.client);
    }
}

struct Session {
    connection: Arc<Connection>,
    quic: quinn::Connection,
    http: h3::server::Connection<Link, Bytes>,
    watch: Arc<LinkWatch>,
    requests: FuturesUnordered<BoxFuture<'static, StreamEnd>>,
    deadline: Instant,
    /// Since when no request has been running, while none is.
    idle_since: Instant,
    /// Whether a GOAWAY was sent.
    finishing: bool,
    /// Whether the connection is to end with its first request.
    told: bool,
    /// Whether the client has sent a GOAWAY, and no request of it is left to be accepted.
    client_left: bool,
    /// Requests that the client gave up before it had the answer.
    abandoned: u64,
}

impl Session {
    async fn run(&mut self, stop: &mut watch::Receiver<Stop>) -> Result<(), ConnectionError> {
        loop {
            self.goodbye(stop).await?;
            if self.client_left && self.requests.is_empty() {
                return Ok(());
            }
            let limit = self.limit();
            // All requests that are there are taken before the first is answered, so that their
            // answers share packets.
            tokio::select! {
                biased;
                request = self.http.accept(), if !self.client_left => match request? {
                    Some(request) => self.take(request),
                    // What is running is still to be finished.
                    None => self.client_left = true,
                },
                Some(over) = self.requests.next(), if !self.requests.is_empty() => {
                    self.idle_since = Instant::now();
                    self.abandoned += u64::from(over == StreamEnd::Abandoned);
                    if self.is_abused() {
                        self.close(Code::H3_EXCESSIVE_LOAD);
                        return Ok(());
                    }
                }
                now = next_stop(stop, self.finishing || self.told) => match now {
                    Stop::Now => return Ok(()),
                    // Its first request is on its way, and the last.
                    _ if self.connection.seen.load(Ordering::Relaxed) == 0 => self.told = true,
                    _ => self.finish(stop).await?,
                },
                () = sleep_until(limit.into()) => {
                    // The limit may have moved since it was computed: nothing ends a turn of this
                    // loop when a request's head is complete or the handshake is.
                    if self.limit() > Instant::now() {
                        continue;
                    }
                    self.connection.visit.timed_out();
                    if self.finishing || !self.connection.is_complete() {
                        return Ok(());
                    }
                    self.finish(stop).await?;
                }
            }
        }
    }

    fn take(&mut self, request: RequestResolver<Link, Bytes>) {
        let Some(watch) = self.watch.take_accepted() else { return };
        let serving = h3_request::serve(self.connection.clone(), self.quic.clone(), request, watch);
        self.requests.push(Box::pin(serving));
    }

    /// Whether all requests of the connection's flight are answered 425.
    fn is_lost(&self) -> bool {
        self.connection.lost_claim() || self.connection.is_overtaken()
    }

    /// Ends a connection that takes no further requests.
    async fn goodbye(&mut self, stop: &mut watch::Receiver<Stop>) -> Result<(), ConnectionError> {
        let seen = self.connection.seen.load(Ordering::Relaxed);
        let last = self.told
            || !self.connection.snapshot.keep_alive
            || self.connection.is_complete() && self.is_lost();
        match last && seen > 0 && !self.finishing {
            true => self.finish(stop).await,
            false => Ok(()),
        }
    }

    /// Sends a GOAWAY (RFC 9114 section 5.2): requests that have not come by now are rejected,
    /// which tells the client that nobody has executed them.
    ///
    /// Where the flight's claim is another connection's, that may be wrong. Its requests are let
    /// through, also late, to be answered 425.
    async fn finish(&mut self, stop: &mut watch::Receiver<Stop>) -> Result<(), ConnectionError> {
        self.finishing = true;
        self.idle_since = Instant::now();
        let lost = self.is_lost();
        if lost && self.watch.next_id() == 0 {
            self.close(Code::H3_NO_ERROR);
            return Ok(());
        }
        let further = if lost { self.connection.snapshot.limits.streams } else { 0 };
        self.watch.reject_from(self.watch.next_id() + 4 * u64::from(further));
        // The library names the last request plus so many.
        let mut goaway = std::pin::pin!(self.http.shutdown(further as usize + 1));
        loop {
            let limit = self.idle_since + FAREWELL;
            let is_idle = self.requests.is_empty();
            // A response that fills the send window keeps the GOAWAY waiting; it goes on meanwhile,
            // within its own limits.
            tokio::select! {
                biased;
                sent = &mut goaway => return sent,
                Some(over) = self.requests.next(), if !is_idle => {
                    self.idle_since = Instant::now();
                    self.abandoned += u64::from(over == StreamEnd::Abandoned);
                }
                // The caller meets it again.
                _ = next_stop(stop, true) => return Ok(()),
                // A client that does not even take that.
                () = sleep_until(limit.into()), if is_idle => {
                    close(&self.quic, Code::H3_NO_ERROR);
                    return Ok(());
                }
            }
        }
    }

    /// When the connection ends as things are.
    fn limit(&self) -> Instant {
        let limits = &self.connection.snapshot.limits;
        let seen = self.connection.seen.load(Ordering::Relaxed);
        let first = (!self.connection.is_complete() || seen == 0).then_some(self.deadline);
        let idle = self
            .requests
            .is_empty()
            .then(|| self.idle_since + if self.finishing { FAREWELL } else { limits.idle_timeout });
        let never = Instant::now() + Duration::from_secs(3600);
        [first, idle].into_iter().flatten().min().unwrap_or(never)
    }

    /// Whether a client makes work of requests that it gives up (as CVE-2023-44487 over HTTP/2).
    fn is_abused(&self) -> bool {
        let seen = self.connection.seen.load(Ordering::Relaxed);
        self.abandoned > ABANDONED && self.abandoned * 2 > seen
    }

    fn close(&self, code: Code) {
        close(&self.quic, code);
    }
}

fn close(quic: &quinn::Connection, code: Code) {
    crate::handshake::quic_config::close(quic, varint(code.value()), b"");
}

/// How long a client has for the last words of an idle or stopped connection.
const FAREWELL: Duration = Duration::from_secs(1);

/// Requests that a client may give up without further questions.
const ABANDONED: u64 = 100;
