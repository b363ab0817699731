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

/// Shared by the body and the task that waits for its response.
#[derive(Clone)]
pub(crate) struct Progress(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// Notified when the body is dropped.
    ended: Notify,
}

struct State {
    /// Time of the last progress.
    last: Instant,
    /// Whether the body is waiting for the client.
    client: bool,
    /// Whether the client ended its body prematurely.
    broken: bool,
    /// What may still be sent; `None` after its end, and if the rest is not wanted.
    body: Option<Body>,
    /// Which attempt sends the body.
    attempt: u32,
    /// Whether a part of the body may still be sent.
    running: bool,
    /// The task that sends the body, while it waits for the client.
    task: Option<Waker>,
}

/// A request's body that notes its progress. It is in [`Progress`], so that it can be given up while
/// the task that sends it waits for the server.
pub(crate) struct Upload {
    progress: Progress,
    attempt: u32,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let state = State {
            last: Instant::now(),
            client: false,
            broken: false,
            body: None,
            attempt: 0,
            running: false,
            task: None,
        };
        Self(Arc::new(Shared { state: Mutex::new(state), ended: Notify::new() }))
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

    /// Waits until there was no progress for `client_limit` if the body waits for the client, and
    /// otherwise for `server_limit`.
    pub(crate) async fn stands_still(&self, client_limit: Duration, server_limit: Duration) {
        loop {
            let (last, client) = {
                let state = self.lock();
                (state.last, state.running && state.client)
            };
            let limit = if client { client_limit } else { server_limit };
            let left = limit.saturating_sub(last.elapsed());
            if left.is_zero() {
                return;
            }
            // It may wait for the other side meanwhile.
            sleep(left.min(client_limit)).await;
        }
    }

    /// Returns whether the client ended its body prematurely.
    pub(crate) fn is_broken(&self) -> bool {
        self.lock().broken
    }

    /// Returns whether the body waits for the client.
    pub(crate) fn waits_for_client(&self) -> bool {
        let state = self.lock();
        state.running && state.client
    }

    /// Returns whether a part of the body may still be sent.
    pub(crate) fn is_running(&self) -> bool {
        self.lock().running
    }

    /// Waits until no further part of the body is sent.
    pub(crate) async fn ended(&self) {
        loop {
            // Before the check, so that no end is missed after it.
            let ended = self.0.ended.notified();
            if !self.is_running() {
                return;
            }
            ended.await;
        }
    }

    /// Gives up the rest of the body: the connection or stream that sends it is reset, unless it
    /// waits for the server's flow control.
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
        let before = state.body.replace(body);
        let attempt = state.attempt;
        drop(state);
        drop(before);
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
            // Over HTTP/2 it is the reason of the reset.
            return Poll::Ready(Some(Err(h2::Error::from(h2::Reason::CANCEL).into())));
        };
        let frame = Pin::new(body).poll_frame(cx);
        state.client = frame.is_pending();
        state.task = frame.is_pending().then(|| cx.waker().clone());
        if let Poll::Ready(frame) = &frame {
            state.last = Instant::now();
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
        // A library may keep the body of a failed attempt for a while.
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
