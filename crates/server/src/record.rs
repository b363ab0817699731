//! A request's line in the access log, from its arrival until its answer has ended.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::access_log::Entry;
use crate::connection::Connection;
use crate::content::AnswerBody;

/// Logs its request when it is dropped: exactly once, also when the connection breaks off.
pub(crate) struct Record {
    connection: Arc<Connection>,
    began: Instant,
    entry: Option<Entry>,
}

impl Record {
    pub(crate) fn begin(
        connection: &Arc<Connection>,
        method: &str,
        target: &str,
        protocol: &'static str,
        early: bool,
    ) -> Self {
        connection.seen.fetch_add(1, Ordering::Relaxed);
        connection.running.fetch_add(1, Ordering::Relaxed);
        let facts = &connection.facts;
        // Strings are made only for a log that somebody keeps.
        let entry = connection.server.access_log.is_some().then(|| Entry {
            time: jiff::Timestamp::now(),
            client: connection.client.to_string(),
            method: method.to_owned(),
            target: target.to_owned(),
            protocol,
            status: None,
            bytes: 0,
            duration_ms: 0.0,
            complete: false,
            tls_version: facts.version.map_or("-", firstflight_tls::Version::name),
            cipher: facts.cipher.unwrap_or("-"),
            resumed: facts.resumed,
            early,
            held: None,
            held_ms: None,
            claim: "none",
            ticket_age_skew: facts.ticket_age_skew,
            early_data: connection.early_data,
            executed: false,
            client_random: hex::encode(facts.client_random),
        });
        Self { connection: connection.clone(), began: Instant::now(), entry }
    }

    pub(crate) fn held(&mut self, reason: &'static str) {
        self.change(|entry| entry.held = Some(reason));
    }

    pub(crate) fn held_for(&mut self, time: Duration) {
        self.change(|entry| entry.held_ms = Some(milliseconds(time)));
    }

    pub(crate) fn claim(&mut self, claim: &'static str) {
        self.change(|entry| entry.claim = claim);
    }

    /// The request goes to the application now.
    pub(crate) fn executed(&mut self) {
        self.change(|entry| entry.executed = true);
    }

    pub(crate) fn status(&mut self, status: u16) {
        self.change(|entry| entry.status = Some(status));
    }

    pub(crate) fn bytes(&mut self, count: u64) {
        self.change(|entry| entry.bytes += count);
    }

    pub(crate) fn complete(&mut self) {
        self.change(|entry| entry.complete = true);
    }

    fn change(&mut self, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = &mut self.entry {
            change(entry);
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.connection.running.fetch_sub(1, Ordering::Relaxed);
        if let (Some(mut entry), Some(log)) =
            (self.entry.take(), &self.connection.server.access_log)
        {
            entry.duration_ms = milliseconds(self.began.elapsed());
            log.entry(entry);
        }
    }
}

/// An answer's body that counts itself into its request's record.
pub(crate) struct RecordedBody {
    body: AnswerBody,
    record: Record,
    /// Bytes that are still to come, where that is known.
    left: Option<u64>,
}

impl RecordedBody {
    /// `announced`: the length that the answer's head states. `bodyless`: nothing of it goes on
    /// the wire (HEAD, 304).
    pub(crate) fn new(
        body: AnswerBody,
        mut record: Record,
        announced: Option<u64>,
        bodyless: bool,
    ) -> Self {
        let left = announced.or(body.size_hint().exact());
        if bodyless || body.is_end_stream() || left == Some(0) {
            record.complete();
        }
        Self { body, record, left }
    }
}

impl Body for RecordedBody {
    type Data = Bytes;
    type Error = crate::content::BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        match &frame {
            None => this.record.complete(),
            Some(Ok(frame)) => {
                let count = frame.data_ref().map_or(0, |data| data.len() as u64);
                this.record.bytes(count);
                this.left = this.left.map(|left| left.saturating_sub(count));
                // The library stops asking once the announced length is there.
                if this.left == Some(0) {
                    this.record.complete();
                }
            }
            Some(Err(_)) => {}
        }
        Poll::Ready(frame)
    }

    /// A body from a file cannot tell that it has come to its end before it is asked for more. The
    /// announced length can, and END_STREAM then rides on the last DATA frame (RFC 9113 section
    /// 6.1) instead of on an empty one behind it.
    fn is_end_stream(&self) -> bool {
        self.left == Some(0) || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn milliseconds(time: Duration) -> f64 {
    // Whole microseconds: more digits would only pretend.
    time.as_micros() as f64 / 1000.0
}
