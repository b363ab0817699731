//! The body of a response, and what its end means for connection and server.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::runtime::Handle;
use tokio::time::Sleep;

use crate::BodyError;
use crate::connection_cache::{Owner, Stream};
use crate::error::Stalled;
use crate::sender::{Http1, Sender};
use crate::server_list::BodyEnd;
use crate::shared::Permit;
use crate::upload::Progress;

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
    /// The request's body, which may still be in transit.
    pub(crate) upload: Progress,
    /// How long that body may stall after the end of the response: while it waits for the client,
    /// and for the server.
    pub(crate) upload_limits: (Duration, Duration),
}

impl ResponseBody {
    pub(crate) fn new(body: Incoming, limit: Duration, completion: Completion) -> Self {
        let mut response =
            Self { body, limit, stall_timer: None, waiting: false, completion: Some(completion) };
        // An upgraded connection lasts until it is dropped.
        let tunnel = response.completion.as_ref().is_some_and(|completion| completion.upgraded);
        if response.body.is_end_stream() && !tunnel {
            response.end(BodyEnd::Complete);
        }
        response
    }

    fn end(&mut self, end: BodyEnd) {
        if let Some(completion) = self.completion.take() {
            completion.end(end);
        }
    }

    /// Classifies an incomplete response. It also ends early if the client ends its request
    /// prematurely.
    fn broken_end(&self) -> BodyEnd {
        match &self.completion {
            Some(completion) if completion.upload.is_broken() => BodyEnd::Abandoned,
            _ => BodyEnd::Broken,
        }
    }

    /// Classifies a stalled response. The server may be waiting for the rest of the request.
    fn stalled_end(&self) -> BodyEnd {
        match &self.completion {
            Some(completion) if completion.upload.waits_for_client() => BodyEnd::Abandoned,
            _ => BodyEnd::Stalled,
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
            // Whichever side is the cause, the connection may hang.
            if let Some(Completion { permit, sender: Sender::Http2(_, stream), .. }) =
                &this.completion
            {
                permit.server().cache.discard(stream);
            }
            this.end(this.stalled_end());
            return Poll::Ready(Some(Err(Stalled(this.limit).into())));
        };
        this.waiting = false;
        match &frame {
            Some(Err(_)) => this.end(this.broken_end()),
            None => this.end(BodyEnd::Complete),
            Some(Ok(_)) if this.body.is_end_stream() => this.end(BodyEnd::Complete),
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
        let complete = self.body.is_end_stream();
        self.end(if complete { BodyEnd::Complete } else { BodyEnd::Abandoned });
    }
}

impl Completion {
    fn end(self, end: BodyEnd) {
        self.permit.body_ended(end);
        let Self { permit, upload, upload_limits: limits, .. } = self;
        match self.sender {
            Sender::Http1(connection, owner) if end == BodyEnd::Complete && !self.upgraded => {
                return_to_cache(permit, connection, owner, upload, limits);
            }
            Sender::Http2(_, stream) if end == BodyEnd::Complete && upload.is_running() => {
                end_upload((permit, stream), upload, limits);
            }
            // The connection cannot be reused.
            Sender::Http1(..) => upload.abandon(),
            // Each stream ends by itself.
            Sender::Http2(..) => upload.abandon(),
        }
    }
}

/// Returns a connection to the cache once it is ready for the next request, usually at once.
fn return_to_cache(
    permit: Permit,
    mut connection: Http1,
    owner: Owner,
    upload: Progress,
    limits: (Duration, Duration),
) {
    if connection.is_ready() {
        return permit.return_to_cache(connection, owner);
    }
    let shared = Arc::downgrade(&permit.shared);
    let index = permit.index;
    // A request keeps its permit until its body has ended. Otherwise clients could hold any number
    // of connections.
    let permit = upload.is_running().then_some(permit);
    let Ok(runtime) = Handle::try_current() else { return connection.abort() };
    runtime.spawn(async move {
        upload.touch();
        let ready = tokio::select! {
            ready = connection.ready() => ready.is_ok(),
            () = upload.stalled_for_limits(limits.0, limits.1) => return connection.abort(),
        };
        if ready && let Some(shared) = shared.upgrade() {
            shared.return_to_cache(index, connection, owner);
        }
        drop(permit);
    });
}

/// Keeps the permit and the stream of an HTTP/2 upload until it has ended. RFC 9113 section 8.1:
/// the rest of an upload may be abandoned once the response is complete.
fn end_upload(held: (Permit, Stream), upload: Progress, limits: (Duration, Duration)) {
    let Ok(runtime) = Handle::try_current() else { return upload.abandon() };
    runtime.spawn(async move {
        upload.touch();
        tokio::select! {
            () = upload.ended() => {}
            () = upload.stalled_for_limits(limits.0, limits.1) => upload.abandon(),
        }
        drop(held);
    });
}
