//! A request's body as it comes in.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h3::error::{Code, StreamError};
use h3::server::RequestStream;
use http::{HeaderMap, header};
use http_body::{Body, Frame, SizeHint};

use crate::handler::response::BodyError;
use crate::http::h3_halves::Recv;
use crate::http::h3_streams::StreamState;

/// The body of a request over HTTP/3.
pub(crate) struct RequestBody {
    stream: RequestStream<Recv, Bytes>,
    state: Arc<StreamState>,
    /// What was read to find out whether there is a body.
    first: Option<Bytes>,
    trailers: Option<HeaderMap>,
    /// What is still to come by the head's word (RFC 9114 section 4.1.2).
    announced: Option<u64>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Data,
    Trailers,
    End,
}

/// The body is not as long as the head says.
#[derive(Debug, thiserror::Error)]
#[error("the request's body is not as long as its content-length says")]
struct WrongLength;

/// The length of a body by the head's word. An upstream may take another of several words for it,
/// or read one that is no number in its own way, and then the next request begins where it should
/// not: so they have to agree (RFC 9110 section 8.6).
///
/// # Errors
/// [`BadLength`]: the request is malformed (RFC 9114 section 4.1.2).
pub(crate) fn announced(headers: &HeaderMap) -> Result<Option<u64>, BadLength> {
    let mut found = None;
    for value in headers.get_all(header::CONTENT_LENGTH) {
        let digits = value.to_str().ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
        let length = digits.and_then(|text| text.parse().ok()).ok_or(BadLength)?;
        if found.is_some_and(|before| before != length) {
            return Err(BadLength);
        }
        found = Some(length);
    }
    Ok(found)
}

/// The head does not say how long the body is, though it tries.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request's content-length is no number, or several that differ")]
pub(crate) struct BadLength;

impl RequestBody {
    /// `announced`: [`announced`].
    pub(crate) fn new(
        stream: RequestStream<Recv, Bytes>,
        state: Arc<StreamState>,
        announced: Option<u64>,
    ) -> Self {
        Self { stream, state, first: None, trailers: None, announced, stage: Stage::Data }
    }

    /// Looks whether the body has ended before it began, as most do, so that an upstream is asked
    /// without one.
    pub(crate) fn look(&mut self, cx: &mut Context<'_>) -> Result<(), BodyError> {
        match self.poll_data(cx) {
            Poll::Ready(Ok(Some(data))) => self.first = Some(data),
            Poll::Ready(Ok(None)) => match self.poll_trailers(cx) {
                Poll::Ready(Ok(trailers)) => {
                    self.stage = if trailers.is_some() { Stage::Trailers } else { Stage::End };
                    self.trailers = trailers;
                }
                Poll::Ready(Err(error)) => return Err(error.into()),
                Poll::Pending => {}
            },
            Poll::Ready(Err(error)) => return Err(error),
            Poll::Pending => {}
        }
        Ok(())
    }

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, BodyError>> {
        let data = ready!(self.stream.poll_recv_data(cx))?;
        let data = data.map(|mut data| data.copy_to_bytes(data.remaining()));
        let count = data.as_ref().map_or(0, |data| data.len() as u64);
        self.state.add_handed_on(count);
        let left = self.announced.map(|left| left.checked_sub(count));
        match (left, &data) {
            (Some(None), _) | (Some(Some(1..)), None) => {
                self.stream.stop_sending(Code::H3_MESSAGE_ERROR);
                return Poll::Ready(Err(Box::new(WrongLength)));
            }
            (left, _) => self.announced = left.flatten(),
        }
        if data.is_none() {
            self.stage = Stage::Trailers;
        }
        Poll::Ready(Ok(data))
    }

    fn poll_trailers(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<HeaderMap>, StreamError>> {
        self.stream.poll_recv_trailers(cx)
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        if let Some(first) = this.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        if this.stage == Stage::Data
            && let Some(data) = ready!(this.poll_data(cx))?
        {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if this.stage == Stage::Trailers {
            let trailers = match this.trailers.take() {
                None => ready!(this.poll_trailers(cx))?,
                known => known,
            };
            this.stage = Stage::End;
            if let Some(trailers) = trailers {
                return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
            }
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.stage == Stage::End && self.first.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let first = self.first.as_ref().map_or(0, |first| first.len() as u64);
        match (self.stage, self.announced) {
            (Stage::Data, Some(left)) => SizeHint::with_exact(left + first),
            (Stage::Data, None) => SizeHint::default(),
            _ => SizeHint::with_exact(first),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(values: &[&'static str]) -> Result<Option<u64>, BadLength> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::CONTENT_LENGTH, value.parse().unwrap());
        }
        announced(&headers)
    }

    #[test]
    fn rfc9110_8_6_lengths_that_differ_or_are_no_numbers_are_malformed() {
        assert_eq!((said(&[]), said(&["7"])), (Ok(None), Ok(Some(7))));
        assert_eq!(said(&["5", "5"]), Ok(Some(5)));
        for bad in [&["0", "5"][..], &["+5"], &["5, 5"], &[""], &["18446744073709551616"]] {
            assert_eq!(said(bad), Err(BadLength), "{bad:?}");
        }
    }
}
