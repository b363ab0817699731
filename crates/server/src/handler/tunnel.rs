//! Bytes both ways between a client and an upstream, once both have agreed on another protocol.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::time::sleep_until;
use tracing::debug;

use crate::handler::response::ResponseBody;
use crate::observe::request::RequestRecord;

/// A tunnel whose ends are not there yet: the client's is once the answer is written.
pub(crate) struct Tunnel {
    client: OnUpgrade,
    upstream: OnUpgrade,
    /// Holds the place on the upstream's server.
    place: ResponseBody,
    idle: Duration,
}

/// One end, which notes what it gives.
struct End {
    io: TokioIo<Upgraded>,
    given: u64,
    /// Whether it has said all.
    ended: bool,
    last: Last,
}

/// When an end last gave something.
#[derive(Clone)]
struct Last(Arc<Mutex<Instant>>);

impl Tunnel {
    pub(crate) fn new(client: OnUpgrade, upstream: OnUpgrade, place: ResponseBody) -> Self {
        Self { client, upstream, place, idle: Duration::MAX }
    }

    /// Ends when neither side has said anything for that long.
    pub(crate) fn ending_after(self, idle: Duration) -> Self {
        Self { idle, ..self }
    }

    /// Carries bytes until both sides have ended, or one has broken off. The request runs as long.
    pub(crate) async fn run(self, mut record: RequestRecord) {
        let Self { client, upstream, place, idle } = self;
        let (client, upstream) = match tokio::try_join!(client, upstream) {
            Ok(both) => both,
            Err(error) => return debug!("a tunnel has no ends: {error}"),
        };
        let last = Last(Arc::new(Mutex::new(Instant::now())));
        let end = |upgraded| {
            let io = TokioIo::new(upgraded);
            End { io, given: 0, ended: false, last: last.clone() }
        };
        let (mut client, mut upstream) = (end(client), end(upstream));
        let carried = tokio::select! {
            carried = copy_bidirectional(&mut client, &mut upstream) => carried.map(|_| ()),
            () = last.stands_still_for(idle) => Err(io::ErrorKind::TimedOut.into()),
        };
        record.bytes(upstream.given);
        match carried {
            // A client that has heard all may leave without a word.
            _ if upstream.ended => record.complete(),
            Ok(()) => record.complete(),
            Err(error) => debug!("a tunnel broke off: {error}"),
        }
        drop(place);
    }
}

impl Last {
    async fn stands_still_for(&self, limit: Duration) {
        loop {
            let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match last.checked_add(limit) {
                None => return std::future::pending().await,
                Some(end) if end <= Instant::now() => return,
                Some(end) => sleep_until(end.into()).await,
            }
        }
    }
}

impl AsyncRead for End {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
        let count = buffer.filled().len() - before;
        self.given += count as u64;
        self.ended |= count == 0;
        *self.last.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for End {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
