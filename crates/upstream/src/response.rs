//! A response's body: timed while it stands still, and at its end the connection is kept.

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
use crate::error::Stalled;
use crate::kept::{Owner, Stream};
use crate::pool::Permit;
use crate::progress::Upload;
use crate::roster::BodyEnd;
use crate::sender::Sender;

pub(crate) struct AnswerBody {
    body: Incoming,
    limit: Duration,
    /// Runs while the server is waited for, not while the client is.
    standstill: Option<Pin<Box<Sleep>>>,
    waiting: bool,
    /// Until the end.
    tail: Option<AtEnd>,
}

/// What is to be done at the end.
pub(crate) struct AtEnd {
    pub(crate) lease: Permit,
    pub(crate) sender: Sender,
    /// Whether the connection now speaks another protocol.
    pub(crate) upgraded: bool,
}

impl AnswerBody {
    pub(crate) fn new(body: Incoming, limit: Duration, tail: AtEnd) -> Self {
        let mut response = Self { body, limit, standstill: None, waiting: false, tail: Some(tail) };
        // What has become a tunnel runs until it is dropped.
        let tunnel = response.tail.as_ref().is_some_and(|tail| tail.upgraded);
        if response.body.is_end_stream() && !tunnel {
            response.end(BodyEnd::Whole);
        }
        response
    }

    fn end(&mut self, ending: BodyEnd) {
        if let Some(tail) = self.tail.take() {
            tail.end(ending);
        }
    }

    /// The server is waited for.
    fn poll_standstill(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let deadline = (Instant::now() + self.limit).into();
        let standstill =
            self.standstill.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if !self.waiting {
            self.waiting = true;
            standstill.as_mut().reset(deadline);
        }
        standstill.as_mut().poll(cx)
    }
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) else {
            if this.poll_standstill(cx).is_pending() {
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

impl Drop for AnswerBody {
    fn drop(&mut self) {
        let whole = self.body.is_end_stream();
        self.end(if whole { BodyEnd::Whole } else { BodyEnd::Abandoned });
    }
}

impl AtEnd {
    fn end(self, ending: BodyEnd) {
        self.lease.body_ended(ending);
        match self.sender {
            Sender::Http1(sender, owner) if ending == BodyEnd::Whole && !self.upgraded => {
                keep(self.lease, sender, owner);
            }
            Sender::Http1(..) => {}
            // Streams end one by one, and a connection that stands still is of no use to others.
            Sender::Http2(_, stream) => give_up(&self.lease, &stream, ending),
        }
    }
}

fn give_up(lease: &Permit, stream: &Stream, ending: BodyEnd) {
    if ending == BodyEnd::Stalled {
        lease.server().kept.give_up(stream);
    }
}

/// Keeps a connection once it is ready for the next request: mostly that is now.
fn keep(lease: Permit, mut sender: http1::SendRequest<Upload>, owner: Owner) {
    if sender.is_ready() {
        return lease.keep(sender, owner);
    }
    // The rest of a request's body may still be on its way. The server's place is free meanwhile.
    let shared = Arc::downgrade(&lease.shared);
    let at = lease.at;
    drop(lease);
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(async move {
            if sender.ready().await.is_ok()
                && let Some(shared) = shared.upgrade()
            {
                shared.keep(at, sender, owner);
            }
        });
    }
}
