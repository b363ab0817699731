//! When a request's body last went on; an upload may take long, a standstill may not.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::sleep_until;

use crate::{Body, BodyError};

/// Shared by the body and whoever waits for its answer.
#[derive(Clone)]
pub(crate) struct Progress(Arc<Mutex<Instant>>);

/// A request's body that notes its progress.
pub(crate) struct Upload {
    body: Body,
    progress: Progress,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    /// Now something went on.
    pub(crate) fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Waits until nothing has gone on for that long.
    pub(crate) async fn stalls_for(&self, limit: Duration) {
        loop {
            let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if last.elapsed() >= limit {
                return;
            }
            sleep_until((last + limit).into()).await;
        }
    }
}

impl Upload {
    pub(crate) fn new(body: Body, progress: Progress) -> Self {
        Self { body, progress }
    }
}

impl http_body::Body for Upload {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        self.progress.note();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
