//! A connection over TCP: records (RFC 8446 section 5) and requests of HTTP/1.1.

use std::rc::Rc;
use std::time::Duration;

use super::Shared;
use super::fault::{Continuation, Piece, Responses};
use super::hello::{ClientHello, SUITE, old_server_hello};
use super::http::{Request, Response};
use super::requests::Requests;
use super::tls::Handshake;
use crate::ProtocolError;
use crate::record::{self, Messages, Record, RecordKeys, Records};

/// A connection.
pub(super) struct TcpSession {
    shared: Rc<Shared>,
    records: Records,
    messages: Messages,
    handshake: Handshake,
    early: Option<RecordKeys>,
    early_bytes: usize,
    read: Option<RecordKeys>,
    write: Option<RecordKeys>,
    /// Keys to read with after the client's Finished.
    next_read: Option<RecordKeys>,
    finished: bool,
    /// Whether early data was refused but is executed.
    runs_refused: bool,
    data: Vec<u8>,
    requests: Requests,
    responses: Responses,
    /// Whether the connection ends after the output so far.
    ends: bool,
}

impl TcpSession {
    pub(super) fn new(shared: Rc<Shared>, faulty: bool) -> Self {
        Self {
            records: Records::default(),
            messages: Messages::default(),
            handshake: Handshake::new(shared.clone(), None),
            early: None,
            early_bytes: 0,
            read: None,
            write: None,
            next_read: None,
            finished: false,
            runs_refused: false,
            data: Vec::new(),
            requests: Requests::new(shared.clone()),
            responses: Responses::new(shared.response_fault(faulty), false),
            ends: false,
            shared,
        }
    }

    pub(super) fn finished(&self) -> bool {
        self.finished
    }

    /// Processes bytes of the client. Returns whether the connection continues.
    pub(super) fn receive(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        self.records.push(bytes);
        loop {
            let outcome = match self.records.next() {
                Ok(None) => return !self.ends,
                Ok(Some(record)) => self.record(&record, out),
                Err(error) => Err(error),
            };
            match outcome {
                Ok(true) => {}
                Ok(false) => return false,
                Err(_) if self.shared.behaviour.hangs_on_errors => return true,
                Err(error) => {
                    self.alert(error, out);
                    return false;
                }
            }
        }
    }

    fn alert(&mut self, error: ProtocolError, out: &mut Vec<u8>) {
        let alert = match error {
            ProtocolError::Decrypt => 51,
            ProtocolError::TooLong => 10,
            ProtocolError::Version => 70,
            ProtocolError::NotOffered => 120,
            _ => 47,
        };
        match &mut self.write {
            Some(keys) => keys.seal(record::ALERT, &[2, alert], out),
            None => record::put_plain(record::ALERT, 3, &[2, alert], out),
        }
    }

    fn record(&mut self, record: &Record, out: &mut Vec<u8>) -> Result<bool, ProtocolError> {
        match record.content_type() {
            record::HANDSHAKE => {
                self.messages.push(&record.payload)?;
                while let Some(message) = self.messages.next() {
                    self.client_hello(&message, out)?;
                }
                Ok(true)
            }
            record::APPLICATION_DATA => {
                if let Some(opened) = self.early.as_mut().and_then(|keys| keys.open(record)) {
                    return self.early_record(opened, out);
                }
                let opened = self.read.as_mut().and_then(|keys| keys.open(record));
                match opened {
                    Some((kind, content)) => self.protected(kind, &content, out),
                    // Refused early data is skipped (section 4.2.10).
                    None if self.handshake.early_offered() && !self.finished => Ok(true),
                    None => Err(ProtocolError::Decrypt),
                }
            }
            record::CHANGE_CIPHER_SPEC => Ok(true),
            _ => Ok(false),
        }
    }

    fn client_hello(&mut self, message: &[u8], out: &mut Vec<u8>) -> Result<(), ProtocolError> {
        let offered = ClientHello::read(message.get(4..).unwrap_or_default())?.versions;
        let old = self.shared.behaviour.old_versions.iter().find(|old| offered.contains(old));
        if let Some(old) = old {
            record::put_plain(record::HANDSHAKE, 3, &old_server_hello(*old), out);
            return Ok(());
        }
        let reply = self.handshake.client_hello(message)?;
        record::put_plain(record::HANDSHAKE, 3, &reply.hello, out);
        self.runs_refused |= reply.refused.is_some();
        if let Some(secret) = reply.early.or(reply.refused) {
            self.early = Some(RecordKeys::new(SUITE, &secret));
        }
        self.requests.overtaken = self.handshake.overtaken;
        if let Some(flight) = reply.flight {
            let keys = |secret: &[u8]| RecordKeys::new(SUITE, secret);
            let mut write = keys(&flight.server);
            write.seal(record::HANDSHAKE, &self.shared.behaviour.inserted, out);
            write.seal(record::HANDSHAKE, &flight.messages, out);
            self.write = Some(keys(&flight.server_application));
            self.read = Some(keys(&flight.client));
            self.next_read = Some(keys(&flight.client_application));
        }
        Ok(())
    }

    fn early_record(
        &mut self,
        (kind, content): (u8, Vec<u8>),
        out: &mut Vec<u8>,
    ) -> Result<bool, ProtocolError> {
        if kind == record::HANDSHAKE {
            self.early = None;
            return Ok(true);
        }
        if !self.runs_refused {
            self.early_bytes += content.len();
        }
        let behaviour = &self.shared.behaviour;
        let limit = behaviour.max_early_data.unwrap_or(0) as usize;
        if self.early_bytes > limit && behaviour.enforces_limit {
            return Err(ProtocolError::TooLong);
        }
        self.data.extend_from_slice(&content);
        if std::mem::take(&mut self.runs_refused) {
            self.early = None;
            while let Some(request) = Request::take(&mut self.data) {
                request.execute(&self.shared, true);
            }
            return Ok(true);
        }
        self.serve(true, out);
        Ok(true)
    }

    fn protected(
        &mut self,
        kind: u8,
        content: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<bool, ProtocolError> {
        match kind {
            record::HANDSHAKE if !self.finished => {
                let tickets = self.handshake.finished(content)?;
                self.read = self.next_read.take();
                self.finished = true;
                for ticket in tickets {
                    self.seal(record::HANDSHAKE, &ticket, out);
                }
                let appended = self.shared.behaviour.appended.clone();
                self.seal(record::HANDSHAKE, &appended, out);
                for (_, response) in self.requests.complete() {
                    self.respond(response, out);
                }
                Ok(true)
            }
            record::APPLICATION_DATA if self.finished => {
                self.data.extend_from_slice(content);
                self.serve(false, out);
                Ok(true)
            }
            record::ALERT => Ok(false),
            _ => Err(ProtocolError::Malformed),
        }
    }

    /// Serves the complete requests received so far.
    fn serve(&mut self, early: bool, out: &mut Vec<u8>) {
        while let Some(request) = Request::take(&mut self.data) {
            if let Some(response) = self.requests.serve(0, request, early) {
                self.respond(response, out);
            }
        }
    }

    fn respond(&mut self, response: Response, out: &mut Vec<u8>) {
        if let Some(piece) = self.responses.respond(0, response, self.shared.clock.get()) {
            self.send(&piece, out);
        }
    }

    fn send(&mut self, piece: &Piece, out: &mut Vec<u8>) {
        self.seal(record::APPLICATION_DATA, &piece.data, out);
        self.ends |= matches!(piece.continuation, Continuation::End | Continuation::Reset);
    }

    /// When the next piece of a slow response leaves.
    pub(super) fn next_piece_at(&self) -> Option<Duration> {
        self.responses.next_at()
    }

    pub(super) fn send_piece(&mut self, out: &mut Vec<u8>) {
        if let Some(piece) = self.responses.take() {
            self.send(&piece, out);
        }
    }

    fn seal(&mut self, content_type: u8, content: &[u8], out: &mut Vec<u8>) {
        if let Some(keys) = &mut self.write {
            keys.seal(content_type, content, out);
        }
    }
}
