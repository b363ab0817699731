//! The body of a response, and what its end means for connection and server.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use tokio::runtime::Handle;
use tokio::time::Sleep;

use crate::BodyError;
use crate::connection_cache::{Owner, Stream};
use crate::error::Stalled;
use crate::sender::Sender;
use crate::server_list::BodyEnd;
use crate::shared::Permit;
use crate::upload::Upload;

pub(crate) struct ResponseBody {
    body: Incoming,
    limit: Duration,
    /// Runs while the body waits for the server, not while it waits for the client.
    stall_timer: Option<Pin<Box<Sleep>>>,
    waiting: bool,
    /// Taken at the end of the body.
    completion: Option<Completion>,
}

/// What to do at the end of a response.
pub(crate) struct Completion {
    pub(crate) permit: Permit,
    pub(crate) sender: Sender,
    /// Whether the connection now speaks another protocol.
    pub(crate) upgraded: bool,
}

impl ResponseBody {
    pub(crate) fn new(body: Incoming, limit: Duration, completion: Completion) -> Self {
        let mut response =
            Self { body, limit, stall_timer: None, waiting: false, completion: Some(completion) };
        // An upgraded connection lasts until it is dropped.
        let tunnel = response.completion.as_ref().is_some_and(|completion| completion.upgraded);
        if response.body.is_end_stream() && !tunnel {
            response.end(BodyEnd::Whole);
        }
        response
    }

    fn end(&mut self, end: BodyEnd) {
        if let Some(completion) = self.completion.take() {
            completion.end(end);
        }
    }

    /// Polls the time limit while the body waits for the server.
    fn poll_stall(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let deadline = (Instant::now() + self.limit).into();
        let stall_timer =
            self.stall_timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if !self.waiting {
            self.waiting = true;
            stall_timer.as_mut().reset(deadline);
        }
        stall_timer.as_mut().poll(cx)
    }
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) else {
            if this.poll_stall(cx).is_pending() {
                return Poll::Pending;
            }
            this.end(BodyEnd::Stalled);
            return Poll::Ready(Some(Err(Stalled(this.limit).into())));
        };
        this.waiting = false;
        match &frame {
            Some(Err(_)) => this.end(BodyEnd::Broken),
            None => this.end(BodyEnd::Whole),
            Some(Ok(_)) if this.body.is_end_stream() => this.end(BodyEnd::Whole),
            Some(Ok(_)) => {}
        }
        Poll::Ready(frame.map(|frame| frame.map_err(BodyError::from)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        let whole = self.body.is_end_stream();
        self.end(if whole { BodyEnd::Whole } else { BodyEnd::Abandoned });
    }
}

impl Completion {
    fn end(self, end: BodyEnd) {
        self.permit.body_ended(end);
        match self.sender {
            Sender::Http1(sender, owner) if end == BodyEnd::Whole && !self.upgraded => {
                return_to_cache(self.permit, sender, owner);
            }
            Sender::Http1(..) => {}
            // Each stream ends by itself; a stalled connection is removed from the cache.
            Sender::Http2(_, stream) => discard(&self.permit, &stream, end),
        }
    }
}

fn discard(permit: &Permit, stream: &Stream, end: BodyEnd) {
    if end == BodyEnd::Stalled {
        permit.server().cache.discard(stream);
    }
}

/// Returns a connection to the cache once it is ready for the next request, which is mostly at
/// once.
fn return_to_cache(permit: Permit, mut sender: http1::SendRequest<Upload>, owner: Owner) {
    if sender.is_ready() {
        return permit.return_to_cache(sender, owner);
    }
    // The rest of a request's body may still be in transit. Meanwhile the server's permit is free.
    let shared = Arc::downgrade(&permit.shared);
    let index = permit.index;
    drop(permit);
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(async move {
            if sender.ready().await.is_ok()
                && let Some(shared) = shared.upgrade()
            {
                shared.return_to_cache(index, sender, owner);
            }
        });
    }
}
