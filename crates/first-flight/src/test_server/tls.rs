//! The server's side of a handshake (RFC 8446 section 4), with the mistakes of its behaviour. Records and
//! packets carry its messages.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

use super::hello::{ClientHello, Psk, SUITE, server_hello};
use super::{CopyPolicy, IssuedTicket, KnownBy, Recorded, Shared, UsedTicket};
use crate::schedule::{Schedule, finished};
use crate::wire::{RETRY_RANDOM, TLS13, X25519, extension, kind, message, put_extension, put_vec};
use crate::{ProtocolError, Ticket};

/// What identifies a connection over QUIC: the id of its first packet, and its client's address.
pub(super) type Source = (Vec<u8>, SocketAddr);

/// A handshake.
pub(super) struct Handshake {
    shared: Rc<Shared>,
    /// Set over QUIC, which also has no EndOfEarlyData.
    source: Option<Source>,
    transcript: Vec<u8>,
    retried: bool,
    hello: ClientHello,
    early_offered: bool,
    early_accepted: bool,
    /// Whether early data is refused because the ticket was used before.
    early_refused: Cell<bool>,
    /// Verify data of the client's Finished, and the application schedule.
    client_finished: Option<(Vec<u8>, Schedule)>,
    /// Whether a copy of the flight arrived earlier.
    pub(super) overtaken: bool,
}

/// The response to a ClientHello.
pub(super) struct Reply {
    /// A HelloRetryRequest or a ServerHello.
    pub(super) hello: Vec<u8>,
    /// What follows a ServerHello.
    pub(super) flight: Option<ServerFlight>,
    /// The secret of early data, if it is accepted.
    pub(super) early: Option<Vec<u8>>,
    /// The secret of refused early data, if its requests are executed.
    pub(super) refused: Option<Vec<u8>>,
}

/// The server's flight, and its secrets for both directions.
pub(super) struct ServerFlight {
    /// EncryptedExtensions to Finished.
    pub(super) messages: Vec<u8>,
    pub(super) client: Vec<u8>,
    pub(super) server: Vec<u8>,
    pub(super) client_application: Vec<u8>,
    pub(super) server_application: Vec<u8>,
}

impl Handshake {
    pub(super) fn new(shared: Rc<Shared>, source: Option<Source>) -> Self {
        Self {
            shared,
            source,
            transcript: Vec::new(),
            retried: false,
            hello: ClientHello::default(),
            early_offered: false,
            early_accepted: false,
            early_refused: Cell::default(),
            client_finished: None,
            overtaken: false,
        }
    }

    pub(super) fn early_offered(&self) -> bool {
        self.early_offered
    }

    /// Responds to a ClientHello.
    pub(super) fn client_hello(&mut self, bytes: &[u8]) -> Result<Reply, ProtocolError> {
        if bytes.first() != Some(&kind::CLIENT_HELLO) || self.client_finished.is_some() {
            return Err(ProtocolError::Malformed);
        }
        let hello = ClientHello::read(&bytes[4..])?;
        if !hello.versions.contains(&TLS13) || !self.shared.behaviour.tls13 {
            return Err(ProtocolError::Version);
        }
        let supported = self.shared.behaviour.groups.iter();
        let Some(group) = supported.copied().find(|group| hello.groups.contains(group)) else {
            return Err(ProtocolError::NotOffered);
        };
        let protocol: &[u8] = if self.source.is_some() { b"h3" } else { b"http/1.1" };
        if hello.alpn.as_deref().is_some_and(|offered| offered != protocol) {
            // The mistake is to continue, and to accept early data for another protocol.
            if self.shared.behaviour.binds_protocol {
                return Err(ProtocolError::NotOffered);
            }
        }
        self.early_offered |= hello.early_data;
        self.hello = hello.clone();
        let ticket = self.ticket(&hello, bytes)?;
        let early_secret = |psk: &[u8], transcript: &[u8]| {
            Schedule::early(SUITE, Some(psk)).derive("c e traffic", &SUITE.hash(transcript))
        };
        // Used with a first ClientHello only.
        let secret = ticket.as_ref().map(|ticket| early_secret(&ticket.psk, bytes));
        let refused = secret.clone().filter(|_| {
            self.shared.behaviour.executes_refused && hello.early_data && !self.retried
        });
        let Some(share) = hello.share else {
            let hello = self.retry(bytes, group)?;
            return Ok(Reply { hello, flight: None, early: None, refused });
        };
        let key = hello.psk.as_ref().map(|psk| self.flight_key(psk));
        self.overtaken = key.is_some_and(|key| self.shared.is_recorded(&key));
        self.early_accepted = ticket.as_ref().is_some_and(|ticket| self.accepts(&hello, ticket));
        self.transcript.extend_from_slice(bytes);
        let psk = ticket.as_ref().map(|ticket| &*ticket.psk);
        let (response, flight) = self.respond(&hello, share, psk);
        let (early, refused) = match self.early_accepted {
            true => (secret, None),
            false => (None, refused),
        };
        Ok(Reply { hello: response, flight: Some(flight), early, refused })
    }

    /// The register's key of a flight.
    fn flight_key(&self, psk: &Psk) -> Vec<u8> {
        match (self.shared.behaviour.known_by, &self.source) {
            (KnownBy::ConnectionId, Some((id, _))) => id.clone(),
            (KnownBy::Address, Some((_, address))) => address.to_string().into_bytes(),
            _ => psk.binder.clone(),
        }
    }

    /// The ticket's session, if it is one of ours and valid.
    fn ticket(
        &self,
        hello: &ClientHello,
        bytes: &[u8],
    ) -> Result<Option<IssuedTicket>, ProtocolError> {
        let behaviour = &self.shared.behaviour;
        let Some(psk) = &hello.psk else { return Ok(None) };
        let issued = self.shared.issued.borrow();
        // Without authentication, a ticket with one flipped bit is accepted too.
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
        let key_expired = behaviour.key_life.is_some_and(|life| age > life);
        if key_expired || behaviour.enforces_lifetime && age.as_secs() > behaviour.lifetime.into() {
            return Ok(None);
        }
        let schedule = Schedule::early(SUITE, Some(&ticket.psk));
        let truncated = &bytes[..bytes.len() - 3 - psk.binder.len()];
        let valid = schedule.binder(&self.transcript, truncated) == psk.binder;
        if behaviour.verifies_binder && !valid {
            return Err(ProtocolError::Decrypt);
        }
        // A second ClientHello of the same handshake repeats the ticket.
        if !self.retried && self.shared.mark_used(&psk.identity) {
            match behaviour.used_tickets {
                UsedTicket::Accept => {}
                UsedTicket::NoEarlyData => self.early_refused.set(true),
                UsedTicket::FullHandshake => return Ok(None),
                UsedTicket::Abort => return Err(ProtocolError::Malformed),
            }
        }
        Ok(Some(ticket.clone()))
    }

    /// Whether the early data is accepted (sections 4.2.10 and 8).
    fn accepts(&self, hello: &ClientHello, ticket: &IssuedTicket) -> bool {
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
        let permitted = behaviour.max_early_data.is_some()
            && behaviour.accepts_early_data
            && !self.early_refused.get();
        let accepted = permitted && fresh && same_name && same_protocol;
        let key = self.flight_key(psk);
        if !accepted || shared.is_recorded(&key) {
            return accepted && behaviour.copies == CopyPolicy::Hold;
        }
        if behaviour.recorded == Recorded::WhenAccepted {
            shared.record(&key);
        }
        true
    }

    fn retry(&mut self, bytes: &[u8], group: u16) -> Result<Vec<u8>, ProtocolError> {
        if std::mem::replace(&mut self.retried, true) {
            return Err(ProtocolError::Malformed);
        }
        if !self.shared.behaviour.retries {
            return Err(ProtocolError::NotOffered);
        }
        let hash = SUITE.hash(bytes);
        self.transcript = message(kind::MESSAGE_HASH, |out| out.extend_from_slice(&hash));
        let retry = server_hello(&RETRY_RANDOM, |out| {
            put_extension(out, extension::KEY_SHARE, |out| {
                out.extend_from_slice(&group.to_be_bytes());
            });
        });
        self.transcript.extend_from_slice(&retry);
        Ok(retry)
    }

    /// The ServerHello, and the rest of the server's flight.
    fn respond(
        &mut self,
        hello: &ClientHello,
        share: [u8; 32],
        psk: Option<&[u8]>,
    ) -> (Vec<u8>, ServerFlight) {
        let private = self.shared.unique();
        let mut base = [0; 32];
        base[0] = 9;
        let public = x25519_dalek::x25519(private, base);
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
        let schedule = Schedule::early(SUITE, psk).handshake(&x25519_dalek::x25519(private, share));
        let hash = SUITE.hash(&self.transcript);
        let client = schedule.derive("c hs traffic", &hash);
        let server = schedule.derive("s hs traffic", &hash);
        let mut messages = message(kind::ENCRYPTED_EXTENSIONS, |out| {
            put_vec(out, 2, |out| self.put_extensions(hello, out));
        });
        if psk.is_none() {
            // Clients of this crate only compare certificates, so the name serves as one.
            messages.extend(message(kind::CERTIFICATE, |out| {
                out.push(0);
                put_vec(out, 3, |out| out.extend(hello.name.iter().flatten()));
            }));
            messages.extend(message(kind::CERTIFICATE_VERIFY, |out| out.extend([8, 7, 0, 0])));
        }
        self.transcript.extend_from_slice(&messages);
        let verify = finished(SUITE, &server, &SUITE.hash(&self.transcript));
        let server_finished = message(kind::FINISHED, |out| out.extend_from_slice(&verify));
        self.transcript.extend_from_slice(&server_finished);
        messages.extend(server_finished);
        let application = schedule.application();
        let hash = SUITE.hash(&self.transcript);
        if self.early_accepted && self.source.is_none() {
            self.transcript.extend(message(kind::END_OF_EARLY_DATA, |_| {}));
        }
        let flight = ServerFlight {
            client_application: application.derive("c ap traffic", &hash),
            server_application: application.derive("s ap traffic", &hash),
            messages,
            server,
            client,
        };
        let verify = finished(SUITE, &flight.client, &SUITE.hash(&self.transcript));
        self.client_finished = Some((verify, application));
        (response, flight)
    }

    fn put_extensions(&self, hello: &ClientHello, out: &mut Vec<u8>) {
        if let Some(protocol) = &hello.alpn {
            put_extension(out, extension::ALPN, |out| {
                put_vec(out, 2, |out| put_vec(out, 1, |out| out.extend_from_slice(protocol)));
            });
        }
        if self.early_accepted {
            put_extension(out, extension::EARLY_DATA, |_| {});
        }
    }

    /// Verifies the client's Finished, records the flight, and returns the tickets.
    pub(super) fn finished(&mut self, content: &[u8]) -> Result<Vec<Vec<u8>>, ProtocolError> {
        let (verify, application) = self.client_finished.take().ok_or(ProtocolError::Malformed)?;
        if content != message(kind::FINISHED, |out| out.extend_from_slice(&verify)) {
            return Err(ProtocolError::Decrypt);
        }
        self.transcript.extend_from_slice(content);
        let shared = self.shared.clone();
        let behaviour = &shared.behaviour;
        if let Some(psk) = self.hello.psk.as_ref().filter(|_| self.early_offered) {
            let record = match self.early_accepted {
                true => behaviour.recorded == Recorded::WhenFinished,
                false => behaviour.spends_refused && behaviour.recorded != Recorded::Never,
            };
            if record {
                shared.record(&self.flight_key(psk));
            }
        }
        let master = application.derive("res master", &SUITE.hash(&self.transcript));
        Ok((0..behaviour.tickets).map(|number| self.issue(number as u8, &master)).collect())
    }

    /// A NewSessionTicket message.
    fn issue(&self, number: u8, master: &[u8]) -> Vec<u8> {
        let shared = &self.shared;
        let identity = [shared.unique(), shared.unique()].concat();
        let issued = IssuedTicket {
            psk: Ticket::derive_psk(SUITE, master, &[number]),
            age_add: u32::from_be_bytes([identity[7], 1, 2, 3]),
            identity,
            issued: shared.clock.get(),
            name: self.hello.name.clone(),
            alpn: self.hello.alpn.clone(),
        };
        // Over QUIC the extension says only that there is early data (RFC 9001 section 4.6.1).
        let max = shared.behaviour.max_early_data.map(|max| match self.source {
            Some(_) => u32::MAX,
            None => max,
        });
        let ticket = message(kind::NEW_SESSION_TICKET, |out| {
            out.extend_from_slice(&shared.behaviour.lifetime.to_be_bytes());
            out.extend_from_slice(&issued.age_add.to_be_bytes());
            put_vec(out, 1, |out| out.push(number));
            put_vec(out, 2, |out| out.extend_from_slice(&issued.identity));
            put_vec(out, 2, |out| {
                if let Some(max) = max {
                    put_extension(out, extension::EARLY_DATA, |out| {
                        out.extend_from_slice(&max.to_be_bytes());
                    });
                }
            });
        });
        shared.issued.borrow_mut().push(issued);
        ticket
    }
}
