//! Server-sent events: the same text to all who look, once a second.
//!
//! Who reads slowly misses events; none are kept for him.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::response::{Body, plain};

/// A text that changes, and those who follow it.
pub(crate) struct Channel {
    latest: watch::Sender<Bytes>,
}

impl Channel {
    pub(crate) fn new() -> Self {
        Self { latest: watch::Sender::new(Bytes::new()) }
    }

    /// Whether anybody follows.
    pub(crate) fn is_followed(&self) -> bool {
        self.latest.receiver_count() > 0
    }

    /// Tells all who follow.
    pub(crate) fn tell(&self, text: &str) {
        self.latest.send_replace(event(text));
    }

    /// A response that starts with `now` and goes on with what is told, as long as there is a place
    /// among those who follow.
    pub(crate) fn follow(&self, now: &str, places: &Arc<Semaphore>) -> Response<Body> {
        let Ok(place) = places.clone().try_acquire_owned() else {
            return plain(StatusCode::SERVICE_UNAVAILABLE, "too many are looking; try again later");
        };
        let mut told = self.latest.subscribe();
        told.mark_unchanged();
        let following = Following { now: Some(event(now)), told, _place: place };
        let frames = stream::unfold(following, |mut following| async move {
            let next = following.next().await?;
            Some((Ok::<_, Infallible>(Frame::data(next)), following))
        });
        let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
        let kind = HeaderValue::from_static("text/event-stream");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    }
}

struct Following {
    now: Option<Bytes>,
    told: watch::Receiver<Bytes>,
    _place: OwnedSemaphorePermit,
}

impl Following {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(now) = self.now.take() {
            return Some(now);
        }
        self.told.changed().await.ok()?;
        Some(self.told.borrow_and_update().clone())
    }
}

/// A text as an event: each of its lines is one of data.
fn event(text: &str) -> Bytes {
    let mut event = String::with_capacity(text.len() + 16);
    for line in text.lines() {
        event.push_str("data: ");
        event.push_str(line);
        event.push('\n');
    }
    event.push('\n');
    event.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_follows_sees_the_state_and_then_the_newest_changes() {
        let (channel, places) = (Channel::new(), Arc::new(Semaphore::new(1)));
        assert!(!channel.is_followed());
        let mut body = channel.follow("now\nand here", &places).into_body();
        assert!(channel.is_followed());
        let mut next = async || body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(next().await, "data: now\ndata: and here\n\n");
        channel.tell("missed");
        channel.tell("one");
        assert_eq!(next().await, "data: one\n\n");
        let refused = channel.follow("now", &places);
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        drop(body);
        assert_eq!(channel.follow("now", &places).status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn events_end_with_the_channel() {
        let (channel, places) = (Channel::new(), Arc::new(Semaphore::new(1)));
        let mut body = channel.follow("now", &places).into_body();
        assert!(body.frame().await.is_some());
        drop(channel);
        assert!(body.frame().await.is_none());
    }
}
