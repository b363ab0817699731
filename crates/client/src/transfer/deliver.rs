use bytes::Bytes;
use http::header::LOCATION;
use hyper::body::Incoming;
use tokio::net::TcpStream;

use super::{Outcome, Transfer};
use crate::{ClientError, Event, Exchange, Head, Http3, Receiving, Request, Target};

/// The body of a response, whatever carries it.
pub(super) trait Body {
    /// The next bytes; `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, ClientError>;
}

/// Over TCP.
pub(super) struct TcpBody<'a>(pub(super) &'a mut Exchange<TcpStream>, pub(super) &'a mut Incoming);

impl Body for TcpBody<'_> {
    async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        self.0.read_body(self.1).await
    }
}

/// Over QUIC.
pub(super) struct QuicBody<'a>(pub(super) &'a mut Http3, pub(super) &'a mut Receiving);

impl Body for QuicBody<'_> {
    async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        self.0.read_body(self.1).await
    }
}

/// How much of a body that nobody reads is read to keep its connection.
const MAX_DISCARDED: usize = 64 * 1024;

impl Transfer<'_> {
    /// A response to the listener.
    pub(super) async fn deliver(
        &mut self,
        head: Head,
        mut body: impl Body,
        request: &Request,
    ) -> Result<Outcome, ClientError> {
        self.report.size_header += head.raw.len() as u64;
        self.listener.event(&Event::ResponseHead(&head.raw));
        let status = head.status.as_u16();
        let next = redirection(&head, &request.target);
        self.report.redirect_url = next.as_ref().map(ToString::to_string);
        self.report.head = Some(head.clone());
        if self.client.config.fail && status >= 400 {
            return Err(ClientError::Status(status));
        }
        self.listener.head(&head).map_err(ClientError::Write)?;
        if let (Some(most), Some(next)) = (self.client.config.redirects, next) {
            if self.report.num_redirects >= most {
                return Err(ClientError::TooManyRedirects(most));
            }
            self.report.redirect_url = None;
            discard(body).await;
            return Ok(Outcome::Redirect(next, status));
        }
        while let Some(bytes) = body.next().await? {
            self.report.size_download += bytes.len() as u64;
            self.listener.body(&bytes).map_err(ClientError::Write)?;
        }
        Ok(Outcome::Answered)
    }
}

/// Where a 3xx answer points to (RFC 9110 section 15.4).
fn redirection(head: &Head, from: &Target) -> Option<Target> {
    if !matches!(head.status.as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    from.join(head.headers.get(LOCATION)?.to_str().ok()?).ok()
}

/// Reads a body to its end; whether that was reached within bounds.
pub(super) async fn discard(mut body: impl Body) -> bool {
    let mut count = 0;
    loop {
        match body.next().await {
            Ok(None) => return true,
            Ok(Some(bytes)) if count + bytes.len() <= MAX_DISCARDED => count += bytes.len(),
            _ => return false,
        }
    }
}
