//! The body of a request, and the progress that its timeouts depend on.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::sync::Notify;
use tokio::time::sleep_until;

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
    /// Whether a part of the body may still be sent.
    running: bool,
    /// Whether the rest of the body is not wanted.
    abandoned: bool,
    /// The task that sends the body, while it waits for the client.
    task: Option<Waker>,
}

/// A request's body that notes its progress.
pub(crate) struct Upload {
    body: Body,
    progress: Progress,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let state = State {
            last: Instant::now(),
            client: false,
            broken: false,
            running: false,
            abandoned: false,
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

    /// Gives up the rest of the body: the connection or stream that sends it is reset.
    pub(crate) fn abandon(&self) {
        let mut state = self.lock();
        state.abandoned = true;
        let task = state.task.take();
        drop(state);
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
        progress.lock().running = true;
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
        if state.abandoned {
            // Over HTTP/2 it is the reason of the reset.
            return Poll::Ready(Some(Err(h2::Error::from(h2::Reason::CANCEL).into())));
        }
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
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.progress.lock().running = false;
        self.progress.0.ended.notify_waiters();
    }
}
