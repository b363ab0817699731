//! The body of a request, and the progress that its timeouts depend on.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::sync::Notify;
use tokio::time::{sleep, sleep_until};

use crate::{Body, BodyError};

/// The progress of a request body, shared by the body and the task that waits for the response.
#[derive(Clone)]
pub(crate) struct Progress(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// Notified when the body is dropped.
    ended: Notify,
}

struct State {
    last_progress: Instant,
    waits_for_client: bool,
    /// Whether the client ended its body prematurely.
    broken: bool,
    /// What may still be sent; `None` after the end of the body, or if it was abandoned.
    body: Option<Body>,
    /// The number of the attempt that sends the body.
    attempt: u32,
    /// Whether a part of the body may still be sent.
    running: bool,
    /// The task that sends the body, while it waits for the client.
    task: Option<Waker>,
}

/// A request body that records its progress. Its content is in [`Progress`], so that it can be
/// dropped while the task that sends it waits for the server.
pub(crate) struct Upload {
    progress: Progress,
    attempt: u32,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let state = State {
            last_progress: Instant::now(),
            waits_for_client: false,
            broken: false,
            body: None,
            attempt: 0,
            running: false,
            task: None,
        };
        Self(Arc::new(Shared { state: Mutex::new(state), ended: Notify::new() }))
    }

    /// Restarts the time without progress.
    pub(crate) fn touch(&self) {
        self.lock().last_progress = Instant::now();
    }

    /// Waits until there was no progress for `limit`. Returns whether the client is the cause.
    pub(crate) async fn stalled_for(&self, limit: Duration) -> bool {
        loop {
            let (last_progress, waits_for_client) = {
                let state = self.lock();
                (state.last_progress, state.waits_for_client)
            };
            if last_progress.elapsed() >= limit {
                return waits_for_client;
            }
            sleep_until((last_progress + limit).into()).await;
        }
    }

    /// Waits until there was no progress for `client_limit` if the body waits for the client, and
    /// otherwise for `server_limit`.
    pub(crate) async fn stalled_for_limits(&self, client_limit: Duration, server_limit: Duration) {
        loop {
            let (last_progress, waits_for_client) = {
                let state = self.lock();
                (state.last_progress, state.running && state.waits_for_client)
            };
            let limit = if waits_for_client { client_limit } else { server_limit };
            let remaining = limit.saturating_sub(last_progress.elapsed());
            if remaining.is_zero() {
                return;
            }
            // The body may wait for the other side meanwhile.
            sleep(remaining.min(client_limit)).await;
        }
    }

    /// Returns whether the client ended its body prematurely.
    pub(crate) fn is_broken(&self) -> bool {
        self.lock().broken
    }

    /// Returns whether the body waits for the client.
    pub(crate) fn waits_for_client(&self) -> bool {
        let state = self.lock();
        state.running && state.waits_for_client
    }

    /// Returns whether a part of the body may still be sent.
    pub(crate) fn is_running(&self) -> bool {
        self.lock().running
    }

    /// Waits until no further part of the body is sent.
    pub(crate) async fn ended(&self) {
        loop {
            // Created before the check, so that no end is missed.
            let ended = self.0.ended.notified();
            if !self.is_running() {
                return;
            }
            ended.await;
        }
    }

    /// Drops the rest of the body. The connection or stream that sends it is reset, unless it waits
    /// for the server's flow control.
    pub(crate) fn abandon(&self) {
        let mut state = self.lock();
        let (body, task) = (state.body.take(), state.task.take());
        drop(state);
        drop(body);
        if let Some(task) = task {
            task.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Upload {
    pub(crate) fn new(body: Body, progress: Progress) -> Self {
        let mut state = progress.lock();
        state.running = true;
        state.attempt += 1;
        let previous = state.body.replace(body);
        let attempt = state.attempt;
        drop(state);
        drop(previous);
        Self { progress, attempt }
    }
}

impl http_body::Body for Upload {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut state = self.progress.lock();
        let Some(body) = &mut state.body else {
            // Over HTTP/2, this error is the reason of the reset.
            return Poll::Ready(Some(Err(h2::Error::from(h2::Reason::CANCEL).into())));
        };
        let frame = Pin::new(body).poll_frame(cx);
        state.waits_for_client = frame.is_pending();
        state.task = frame.is_pending().then(|| cx.waker().clone());
        if let Poll::Ready(frame) = &frame {
            state.last_progress = Instant::now();
            state.broken |= matches!(frame, Some(Err(_)));
        }
        drop(state);
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.progress.lock().body.as_ref().is_some_and(|body| body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.progress.lock().body.as_ref().map_or_else(SizeHint::default, |body| body.size_hint())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let mut state = self.progress.lock();
        // hyper may keep the body of a failed attempt for a while.
        if state.attempt != self.attempt {
            return;
        }
        state.running = false;
        let body = state.body.take();
        drop(state);
        drop(body);
        self.progress.0.ended.notify_waiters();
    }
}
