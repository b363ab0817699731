use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use h3::client::{Connection, RequestStream, SendRequest};
use h3::error::{Code, StreamError};
use http::{HeaderMap, Method, StatusCode, Version, header};

use super::failure;
use super::guard::{DeliveredBytes, GuardedConnection, LatestStream, Opener, Recv};
use crate::exchange::write_head;
use crate::stream::{MAX_INFORMATIONAL, too_many_informational};
use crate::{ClientError, Head, Request};

/// HTTP/3 on one connection. The caller drives it; no task is spawned.
pub struct Http3 {
    quic: quinn::Connection,
    sender: SendRequest<Opener, Bytes>,
    latest: LatestStream,
    driver: Driver,
}

/// A response that has not been received completely.
pub struct PendingResponse {
    stream: RequestStream<Recv, Bytes>,
    delivered: DeliveredBytes,
    method: Method,
    /// Body bytes that have not been received, if the head has a Content-Length.
    missing: Option<u64>,
    response_started: bool,
}

/// Maximum size of a response head.
const MAX_HEAD_BYTES: u64 = 256 * 1024;

impl Http3 {
    /// Prepares the connection: writes SETTINGS (RFC 9114 section 7.2.4) without waiting for the
    /// server.
    ///
    /// # Errors
    /// [`ClientError`] when the connection has failed already.
    pub async fn open(quic: quinn::Connection) -> Result<Self, ClientError> {
        let guarded = GuardedConnection::new(quic.clone(), MAX_HEAD_BYTES);
        let latest = guarded.latest();
        let (connection, sender) = h3::client::builder()
            .max_field_section_size(MAX_HEAD_BYTES)
            // GREASE would only add useless early data.
            .send_grease(false)
            .build(guarded)
            .await
            .map_err(|error| match quic.close_reason() {
                Some(reason) => failure::transfer_error(&reason, false),
                None => ClientError::Http3(error.to_string()),
            })?;
        let driver = Driver { connection: Some(connection), upload: None };
        Ok(Self { quic, sender, latest, driver })
    }

    /// Starts to send a request with its body. What does not fit at once is sent while the caller
    /// awaits the response.
    ///
    /// # Errors
    /// [`ClientError::Http3`]; [`ClientError::NotProcessed`] if the server accepts no more
    /// requests.
    pub async fn send(&mut self, request: &Request) -> Result<PendingResponse, ClientError> {
        let message = request.to_http(Version::HTTP_3)?.map(drop);
        let sent = self.driver.drive(self.sender.send_request(message)).await;
        let (mut upload, stream) = sent.map_err(|error| self.failure(&error, false))?.split();
        let delivered = self.latest.get();
        let body = request.body.clone();
        self.driver.upload = Some(Box::pin(async move {
            if !body.is_empty() {
                upload.send_data(body).await?;
            }
            upload.finish().await
        }));
        // Polls once, so that the part of the body that fits leaves with the head.
        self.driver.drive(std::future::ready(())).await;
        let method = request.method.clone();
        Ok(PendingResponse { stream, delivered, method, missing: None, response_started: false })
    }

    /// Waits for the response head. Skips up to 16 informational responses (RFC 9110 section 15.2).
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::NotProcessed`] if the server says that it has not started to
    /// process the request.
    pub async fn head(&mut self, response: &mut PendingResponse) -> Result<Head, ClientError> {
        let mut informational = 0;
        let parts = loop {
            let result = self.driver.drive(response.stream.recv_response()).await;
            let (parts, ()) = result.map_err(|error| self.failure(&error, false))?.into_parts();
            if !parts.status.is_informational() {
                break parts;
            }
            // HTTP/3 does not support 101 (RFC 9114 section 4.5).
            if parts.status == StatusCode::SWITCHING_PROTOCOLS {
                response.stream.stop_sending(Code::H3_MESSAGE_ERROR);
                return Err(ClientError::Http3("the server responded with 101".to_owned()));
            }
            informational += 1;
            if informational > MAX_INFORMATIONAL {
                response.stream.stop_sending(Code::H3_EXCESSIVE_LOAD);
                return Err(ClientError::Http3(too_many_informational()));
            }
        };
        response.response_started = true;
        response.missing = body_length(&response.method, parts.status.as_u16(), &parts.headers);
        let raw = write_head("HTTP/3", parts.status, &parts.headers);
        let (status, headers) = (parts.status, parts.headers);
        Ok(Head { version: Version::HTTP_3, status, headers, raw })
    }

    /// The next bytes of the body; `None` at its end.
    ///
    /// # Errors
    /// [`ClientError`], [`ClientError::PartialBody`] if the body ends early,
    /// [`ClientError::Http3`] if it is longer than announced.
    pub async fn read_body(
        &mut self,
        response: &mut PendingResponse,
    ) -> Result<Option<Bytes>, ClientError> {
        let result = self.driver.drive(response.stream.recv_data()).await;
        let bytes = match result {
            Ok(None) => None,
            Ok(Some(mut buf)) => {
                response.delivered.add(buf.remaining());
                Some(buf.copy_to_bytes(buf.remaining()))
            }
            Err(error) => return Err(self.failure(&error, response.response_started)),
        };
        match (&bytes, &mut response.missing) {
            (Some(bytes), Some(missing)) => match missing.checked_sub(bytes.len() as u64) {
                Some(remaining) => *missing = remaining,
                None => {
                    response.stream.stop_sending(Code::H3_MESSAGE_ERROR);
                    let text = "the body is longer than its Content-Length";
                    return Err(ClientError::Http3(text.to_owned()));
                }
            },
            (None, Some(1..)) => {
                return Err(ClientError::PartialBody { missing: "before the end" });
            }
            _ => {}
        }
        Ok(bytes)
    }

    /// Runs the connection beside `future`.
    pub(crate) async fn drive<F: Future>(&mut self, future: F) -> F::Output {
        self.driver.drive(future).await
    }

    fn failure(&self, error: &StreamError, response_started: bool) -> ClientError {
        // A server that has started to respond cannot truthfully claim that it did not process the
        // request.
        if !response_started && failure::is_unprocessed(error) {
            return ClientError::NotProcessed;
        }
        match self.quic.close_reason() {
            // If we closed the connection, the library's error has the reason.
            Some(quinn::ConnectionError::LocallyClosed) | None => failure::request_error(error),
            Some(reason) => failure::transfer_error(&reason, response_started),
        }
    }
}

/// Returns the announced length of the body; a body of another length is malformed (RFC 9114
/// section 4.1.2).
fn body_length(method: &Method, status: u16, headers: &HeaderMap) -> Option<u64> {
    if *method == Method::HEAD || matches!(status, 100..=199 | 204 | 304) {
        return None;
    }
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

type Upload = Pin<Box<dyn Future<Output = Result<(), StreamError>> + Send>>;

/// Polls the connection and the upload together with the future that waits for them.
struct Driver {
    connection: Option<Connection<GuardedConnection, Bytes>>,
    upload: Option<Upload>,
}

impl Driver {
    async fn drive<F: Future>(&mut self, future: F) -> F::Output {
        let mut future = pin!(future);
        poll_fn(|cx| {
            self.poll(cx);
            future.as_mut().poll(cx)
        })
        .await
    }

    fn poll(&mut self, cx: &mut Context<'_>) {
        // Upload errors are ignored: a server may respond without the whole body (RFC 9114 section
        // 4.1), and if it does not respond, that is the error.
        if let Some(upload) = &mut self.upload
            && upload.as_mut().poll(cx).is_ready()
        {
            self.upload = None;
        }
        if let Some(connection) = &mut self.connection
            && let Poll::Ready(_) = connection.poll_close(cx)
        {
            self.connection = None;
        }
    }
}
