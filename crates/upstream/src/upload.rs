//! The body of a request, and the progress that its timeouts depend on.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::sleep_until;

use crate::{Body, BodyError};

/// Shared by the body and the task that waits for its response.
#[derive(Clone)]
pub(crate) struct Progress(Arc<Mutex<State>>);

struct State {
    /// Time of the last progress.
    last: Instant,
    /// Whether the body is waiting for the client.
    client: bool,
    /// Whether the client ended its body prematurely.
    broken: bool,
}

/// A request's body that notes its progress.
pub(crate) struct Upload {
    body: Body,
    progress: Progress,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(State { last: Instant::now(), client: false, broken: false })))
    }

    /// Notes progress.
    pub(crate) fn note(&self) {
        self.lock().last = Instant::now();
    }

    /// Waits until there was no progress for `limit`. Returns whether the client is the cause.
    pub(crate) async fn stalled_for(&self, limit: Duration) -> bool {
        loop {
            let (last, client) = {
                let state = self.lock();
                (state.last, state.client)
            };
            if last.elapsed() >= limit {
                return client;
            }
            sleep_until((last + limit).into()).await;
        }
    }

    /// Returns whether the client ended its body prematurely.
    pub(crate) fn is_broken(&self) -> bool {
        self.lock().broken
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        let mut state = self.progress.lock();
        state.client = frame.is_pending();
        if let Poll::Ready(frame) = &frame {
            state.last = Instant::now();
            state.broken |= matches!(frame, Some(Err(_)));
        }
        drop(state);
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
