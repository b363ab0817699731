//! The server's side of a handshake (RFC 8446 section 4), with the mistakes of its behaviour.

use std::rc::Rc;

use super::http::{Request, respond};
use super::{CopyPolicy, EarlyRequest, IssuedTicket, Recorded, Shared};
use crate::record::{self, Messages, Record, RecordKeys, Records};
use crate::schedule::{Schedule, finished};
use crate::wire::{
    RETRY_RANDOM, Reader, TLS13, X25519, extension, kind, message, put_extension, put_vec,
};
use crate::{ProtocolError, Suite, Ticket};

const SUITE: Suite = Suite::Aes128GcmSha256;

/// A connection.
pub(crate) struct Session {
    shared: Rc<Shared>,
    records: Records,
    messages: Messages,
    transcript: Vec<u8>,
    retried: bool,
    early: Option<RecordKeys>,
    early_bytes: usize,
    read: Option<RecordKeys>,
    write: Option<RecordKeys>,
    /// Verify data of the client's Finished, its application keys, and the application schedule.
    client_finished: Option<(Vec<u8>, RecordKeys, Schedule)>,
    finished: bool,
    hello: Hello,
    early_offered: bool,
    /// Whether early data was refused and is executed all the same.
    runs_refused: bool,
    requests: Vec<u8>,
    held: Vec<Request>,
    /// Responses to requests that were executed silently.
    late: Vec<u8>,
    too_early: bool,
    /// Whether a copy of the flight was there before.
    overtaken: bool,
}

/// Parts of a ClientHello.
#[derive(Clone, Default)]
struct Hello {
    name: Option<Vec<u8>>,
    alpn: Option<Vec<u8>>,
    share: Option<[u8; 32]>,
    early_data: bool,
    tls13: bool,
    psk: Option<Psk>,
}

#[derive(Clone)]
struct Psk {
    identity: Vec<u8>,
    age: u32,
    binder: Vec<u8>,
}

impl Session {
    pub(crate) fn new(shared: Rc<Shared>) -> Self {
        Self {
            shared,
            records: Records::default(),
            messages: Messages::default(),
            transcript: Vec::new(),
            retried: false,
            early: None,
            early_bytes: 0,
            read: None,
            write: None,
            client_finished: None,
            finished: false,
            hello: Hello::default(),
            early_offered: false,
            runs_refused: false,
            requests: Vec::new(),
            held: Vec::new(),
            late: Vec::new(),
            too_early: false,
            overtaken: false,
        }
    }

    pub(crate) fn finished(&self) -> bool {
        self.finished
    }

    /// Processes bytes of the client. Returns whether the connection goes on.
    pub(crate) fn receive(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        self.records.push(bytes);
        loop {
            let outcome = match self.records.next() {
                Ok(None) => return true,
                Ok(Some(record)) => self.record(&record, out),
                Err(error) => Err(error),
            };
            match outcome {
                Ok(true) => {}
                Ok(false) => return false,
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
                    None if self.early_offered && !self.finished => Ok(true),
                    None => Err(ProtocolError::Decrypt),
                }
            }
            record::CHANGE_CIPHER_SPEC => Ok(true),
            _ => Ok(false),
        }
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
        self.requests.extend_from_slice(&content);
        if std::mem::take(&mut self.runs_refused) {
            self.early = None;
            while let Some(request) = Request::take(&mut self.requests) {
                request.execute(&self.shared, true, &mut Vec::new());
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
                let (verify, next, application) =
                    self.client_finished.take().ok_or(ProtocolError::Malformed)?;
                if content != message(kind::FINISHED, |out| out.extend_from_slice(&verify)) {
                    return Err(ProtocolError::Decrypt);
                }
                self.transcript.extend_from_slice(content);
                self.read = Some(next);
                self.finished = true;
                self.complete(&application, out);
                Ok(true)
            }
            record::APPLICATION_DATA if self.finished => {
                self.requests.extend_from_slice(content);
                self.serve(false, out);
                Ok(true)
            }
            record::ALERT => Ok(false),
            _ => Err(ProtocolError::Malformed),
        }
    }

    /// After the client's Finished: records, tickets, held requests.
    fn complete(&mut self, application: &Schedule, out: &mut Vec<u8>) {
        let shared = self.shared.clone();
        let behaviour = &shared.behaviour;
        if let Some(psk) = self.hello.psk.as_ref().filter(|_| self.early_offered) {
            let accepted = self.early_bytes > 0;
            let record = match accepted {
                true => behaviour.recorded == Recorded::WhenFinished,
                false => behaviour.spends_refused && behaviour.recorded != Recorded::Never,
            };
            if record {
                shared.record(&psk.binder);
            }
        }
        let master = application.derive("res master", &SUITE.hash(&self.transcript));
        for number in 0..behaviour.tickets {
            let identity = [shared.unique(), shared.unique()].concat();
            let issued = IssuedTicket {
                psk: Ticket::derive_psk(SUITE, &master, &[number as u8]),
                age_add: u32::from_be_bytes([identity[7], 1, 2, 3]),
                identity,
                issued: shared.clock.get(),
                name: self.hello.name.clone(),
                alpn: self.hello.alpn.clone(),
            };
            let ticket = message(kind::NEW_SESSION_TICKET, |out| {
                out.extend_from_slice(&behaviour.lifetime.to_be_bytes());
                out.extend_from_slice(&issued.age_add.to_be_bytes());
                put_vec(out, 1, |out| out.push(number as u8));
                put_vec(out, 2, |out| out.extend_from_slice(&issued.identity));
                put_vec(out, 2, |out| {
                    if let Some(max) = behaviour.max_early_data {
                        put_extension(out, extension::EARLY_DATA, |out| {
                            out.extend_from_slice(&max.to_be_bytes());
                        });
                    }
                });
            });
            shared.issued.borrow_mut().push(issued);
            self.seal(record::HANDSHAKE, &ticket, out);
        }
        self.seal(record::HANDSHAKE, &behaviour.appended, out);
        let late = std::mem::take(&mut self.late);
        self.seal(record::APPLICATION_DATA, &late, out);
        for request in std::mem::take(&mut self.held) {
            let mut response = Vec::new();
            match self.overtaken && behaviour.rejects_overtaken {
                true => respond("425 Too Early", &shared, "", &mut response),
                false => request.execute(&shared, false, &mut response),
            }
            self.seal(record::APPLICATION_DATA, &response, out);
        }
    }

    /// Whole requests that have arrived.
    fn serve(&mut self, early: bool, out: &mut Vec<u8>) {
        let shared = self.shared.clone();
        while let Some(request) = Request::take(&mut self.requests) {
            let decision = match early {
                true if self.overtaken => EarlyRequest::Hold,
                true => request.decision(&shared.behaviour),
                false if self.overtaken && shared.behaviour.rejects_overtaken => {
                    EarlyRequest::TooEarly
                }
                false if self.too_early && shared.behaviour.always_too_early => {
                    EarlyRequest::TooEarly
                }
                false => EarlyRequest::Execute,
            };
            let mut response = Vec::new();
            match decision {
                EarlyRequest::Hold => self.held.push(request),
                EarlyRequest::Execute => request.execute(&shared, early, &mut response),
                EarlyRequest::ExecuteSilently => {
                    request.execute(&shared, early, &mut self.late);
                }
                EarlyRequest::TooEarly => {
                    self.too_early = true;
                    respond("425 Too Early", &shared, "", &mut response);
                }
            }
            self.seal(record::APPLICATION_DATA, &response, out);
        }
    }

    fn seal(&mut self, content_type: u8, content: &[u8], out: &mut Vec<u8>) {
        if let Some(keys) = &mut self.write {
            keys.seal(content_type, content, out);
        }
    }

    fn client_hello(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), ProtocolError> {
        if bytes.first() != Some(&kind::CLIENT_HELLO) || self.read.is_some() {
            return Err(ProtocolError::Malformed);
        }
        let hello = Hello::read(&bytes[4..])?;
        if !hello.tls13 || !self.shared.behaviour.tls13 {
            return Err(ProtocolError::Version);
        }
        if hello.alpn.as_deref().is_some_and(|protocol| protocol != b"http/1.1") {
            // It would have to choose; with early data accepted, that is the mistake.
            if self.shared.behaviour.binds_protocol {
                return Err(ProtocolError::NotOffered);
            }
        }
        self.early_offered |= hello.early_data;
        self.hello = hello.clone();
        let ticket = self.ticket(&hello, bytes)?;
        if let (None, Some(ticket)) = (hello.share, &ticket) {
            self.read_refused(&ticket.psk, bytes);
        }
        let Some(share) = hello.share else { return self.retry(bytes, out) };
        let binder = hello.psk.as_ref().map(|psk| &psk.binder);
        self.overtaken = binder.is_some_and(|binder| self.shared.is_recorded(binder));
        let accepts = ticket.as_ref().is_some_and(|ticket| self.accepts(&hello, ticket));
        if let Some(ticket) = ticket.as_ref().filter(|_| !accepts && !self.retried) {
            self.read_refused(&ticket.psk, bytes);
        }
        self.transcript.extend_from_slice(bytes);
        let psk = ticket.as_ref().map(|ticket| &*ticket.psk);
        self.respond(&hello, share, psk, accepts, out);
        Ok(())
    }

    /// Keeps the keys of refused early data, if the server executes that.
    fn read_refused(&mut self, psk: &[u8], hello: &[u8]) {
        if self.shared.behaviour.executes_refused {
            let secret =
                Schedule::early(SUITE, Some(psk)).derive("c e traffic", &SUITE.hash(hello));
            self.early = Some(RecordKeys::new(SUITE, &secret));
            self.runs_refused = true;
        }
    }

    /// The ticket's session, if it is one of ours and valid.
    fn ticket(&self, hello: &Hello, bytes: &[u8]) -> Result<Option<IssuedTicket>, ProtocolError> {
        let behaviour = &self.shared.behaviour;
        let Some(psk) = &hello.psk else { return Ok(None) };
        let issued = self.shared.issued.borrow();
        // Without authentication some other bits are as good.
        let matches = |ticket: &&IssuedTicket| match behaviour.authenticates_tickets {
            true => ticket.identity == psk.identity,
            false => {
                let pairs = ticket.identity.iter().zip(&psk.identity);
                let bits: u32 = pairs.map(|(a, b)| (a ^ b).count_ones()).sum();
                bits <= 1
            }
        };
        // The newest first: identities of neighbours may differ in few bits.
        let Some(ticket) = issued
            .iter()
            .rev()
            .find(|ticket| ticket.identity == psk.identity)
            .or_else(|| issued.iter().rev().find(matches))
        else {
            return Ok(None);
        };
        let age = self.shared.clock.get() - ticket.issued;
        if behaviour.enforces_lifetime && age.as_secs() > behaviour.lifetime.into() {
            return Ok(None);
        }
        let schedule = Schedule::early(SUITE, Some(&ticket.psk));
        let truncated = &bytes[..bytes.len() - 3 - psk.binder.len()];
        let right = schedule.binder(&self.transcript, truncated) == psk.binder;
        if behaviour.verifies_binder && !right {
            return Err(ProtocolError::Decrypt);
        }
        Ok(Some(ticket.clone()))
    }

    /// Whether the early data is accepted (sections 4.2.10 and 8).
    fn accepts(&self, hello: &Hello, ticket: &IssuedTicket) -> bool {
        let (shared, behaviour) = (&self.shared, &self.shared.behaviour);
        let Some(psk) = hello.psk.as_ref().filter(|_| hello.early_data && !self.retried) else {
            return false;
        };
        let stated = i128::from(psk.age.wrapping_sub(ticket.age_add) as i32);
        let actual = (shared.clock.get() - ticket.issued).as_millis() as i128;
        let skew = (stated - actual).unsigned_abs();
        let fresh = behaviour.freshness.is_none_or(|window| skew <= window.as_millis());
        let same_name = !behaviour.binds_name || hello.name == ticket.name;
        let same_protocol = !behaviour.binds_protocol || hello.alpn == ticket.alpn;
        let accepted = behaviour.max_early_data.is_some() && fresh && same_name && same_protocol;
        if !accepted || shared.is_recorded(&psk.binder) {
            return accepted && behaviour.copies == CopyPolicy::Hold;
        }
        if behaviour.recorded == Recorded::WhenAccepted {
            shared.record(&psk.binder);
        }
        true
    }

    fn retry(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), ProtocolError> {
        if self.retried {
            return Err(ProtocolError::Malformed);
        }
        self.retried = true;
        let hash = SUITE.hash(bytes);
        self.transcript = message(kind::MESSAGE_HASH, |out| out.extend_from_slice(&hash));
        let retry = server_hello(&RETRY_RANDOM, |out| {
            put_extension(out, extension::KEY_SHARE, |out| {
                out.extend_from_slice(&X25519.to_be_bytes());
            });
        });
        self.transcript.extend_from_slice(&retry);
        record::put_plain(record::HANDSHAKE, 3, &retry, out);
        Ok(())
    }

    /// The server's flight.
    fn respond(
        &mut self,
        hello: &Hello,
        share: [u8; 32],
        psk: Option<&[u8]>,
        accepts: bool,
        out: &mut Vec<u8>,
    ) {
        let private = self.shared.unique();
        let mut base = [0; 32];
        base[0] = 9;
        let public = x25519_dalek::x25519(private, base);
        let early = Schedule::early(SUITE, psk);
        if accepts {
            let secret = early.derive("c e traffic", &SUITE.hash(&self.transcript));
            self.early = Some(RecordKeys::new(SUITE, &secret));
        }
        let response = server_hello(&self.shared.unique(), |out| {
            put_extension(out, extension::KEY_SHARE, |out| {
                out.extend_from_slice(&X25519.to_be_bytes());
                put_vec(out, 2, |out| out.extend_from_slice(&public));
            });
            if psk.is_some() {
                put_extension(out, extension::PRE_SHARED_KEY, |out| out.extend([0, 0]));
            }
        });
        self.transcript.extend_from_slice(&response);
        record::put_plain(record::HANDSHAKE, 3, &response, out);
        let schedule = early.handshake(&x25519_dalek::x25519(private, share));
        let hash = SUITE.hash(&self.transcript);
        let client = schedule.derive("c hs traffic", &hash);
        let server = schedule.derive("s hs traffic", &hash);
        let mut write = RecordKeys::new(SUITE, &server);
        let mut flight = message(kind::ENCRYPTED_EXTENSIONS, |out| {
            put_vec(out, 2, |out| {
                if let Some(protocol) = &hello.alpn {
                    put_extension(out, extension::ALPN, |out| {
                        put_vec(out, 2, |out| {
                            put_vec(out, 1, |out| out.extend_from_slice(protocol));
                        });
                    });
                }
                if accepts {
                    put_extension(out, extension::EARLY_DATA, |_| {});
                }
            });
        });
        if psk.is_none() {
            // Clients of this crate only compare it: each name has one.
            flight.extend(message(kind::CERTIFICATE, |out| {
                out.push(0);
                put_vec(out, 3, |out| out.extend(hello.name.iter().flatten()));
            }));
            flight.extend(message(kind::CERTIFICATE_VERIFY, |out| out.extend([8, 7, 0, 0])));
        }
        self.transcript.extend_from_slice(&flight);
        let verify = finished(SUITE, &server, &SUITE.hash(&self.transcript));
        let server_finished = message(kind::FINISHED, |out| out.extend_from_slice(&verify));
        self.transcript.extend_from_slice(&server_finished);
        flight.extend_from_slice(&server_finished);
        write.seal(record::HANDSHAKE, &self.shared.behaviour.inserted, out);
        write.seal(record::HANDSHAKE, &flight, out);
        let application = schedule.application();
        let hash = SUITE.hash(&self.transcript);
        self.write = Some(RecordKeys::new(SUITE, &application.derive("s ap traffic", &hash)));
        let next = RecordKeys::new(SUITE, &application.derive("c ap traffic", &hash));
        if accepts {
            self.transcript.extend(message(kind::END_OF_EARLY_DATA, |_| {}));
        }
        let verify = finished(SUITE, &client, &SUITE.hash(&self.transcript));
        self.client_finished = Some((verify, next, application));
        self.read = Some(RecordKeys::new(SUITE, &client));
    }
}

fn server_hello(random: &[u8; 32], extensions: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    message(kind::SERVER_HELLO, |out| {
        out.extend([3, 3]);
        out.extend_from_slice(random);
        out.push(0);
        out.extend(SUITE.id().to_be_bytes());
        out.push(0);
        put_vec(out, 2, |out| {
            put_extension(out, extension::SUPPORTED_VERSIONS, |out| {
                out.extend(TLS13.to_be_bytes());
            });
            extensions(out);
        });
    })
}

impl Hello {
    fn read(body: &[u8]) -> Result<Self, ProtocolError> {
        let mut bytes = Reader(body);
        bytes.take(34)?;
        bytes.vec8()?;
        bytes.vec16()?;
        bytes.vec8()?;
        let mut extensions = bytes.vec16()?;
        let mut hello = Self::default();
        while let Some((kind, mut content)) = extensions.extension()? {
            match kind {
                extension::SERVER_NAME => hello.name = Some(content.0.to_vec()),
                extension::ALPN => hello.alpn = Some(content.vec16()?.vec8()?.0.to_vec()),
                extension::EARLY_DATA => hello.early_data = true,
                extension::SUPPORTED_VERSIONS => hello.tls13 = true,
                extension::KEY_SHARE => {
                    let mut shares = content.vec16()?;
                    if !shares.is_empty() {
                        shares.u16()?;
                        hello.share = Some(shares.vec16()?.array()?);
                    }
                }
                extension::PRE_SHARED_KEY => {
                    let mut identities = content.vec16()?;
                    let identity = identities.vec16()?.0.to_vec();
                    let age = identities.u32()?;
                    let binder = content.vec16()?.vec8()?.0.to_vec();
                    hello.psk = Some(Psk { identity, age, binder });
                }
                _ => {}
            }
        }
        Ok(hello)
    }
}
