//! The handshake of a client on the level of messages (RFC 8446 section 4): the transcript, the
//! order of messages, and the secrets. Records and QUIC packets carry the messages.

use std::sync::Arc;
use std::time::Duration;

use crate::messages::{
    EncryptedExtensions, HelloKind, NewSessionTicket, ServerHello, certificate_request,
};
use crate::parts::FlightParts;
use crate::schedule::{Schedule, finished};
use crate::wire::{X25519, kind, message, put_vec};
use crate::{ProtocolError, Suite, Ticket};

/// What a connection has to do after a message.
pub(crate) enum Step {
    /// Nothing that a caller has to do.
    Continue,
    /// A HelloRetryRequest; this ClientHello is sent in response.
    Retry { hello: Vec<u8> },
    /// Keys of the handshake.
    Handshake { suite: Suite, resumed: bool, client: Vec<u8>, server: Vec<u8> },
    /// The server's extensions.
    Extensions { early_data: bool, alpn: Option<String> },
    /// The content of the server's Certificate.
    Certificate(Vec<u8>),
    /// The server's Finished was valid. Keys for application data, and the client's last flight.
    Finished { client: Vec<u8>, server: Vec<u8>, last_flight: LastFlight },
    /// A ticket.
    Ticket(Ticket),
    /// The server's next records are protected by new keys.
    KeyUpdate,
}

/// The client's last messages of the handshake.
pub(crate) struct LastFlight {
    /// Sent under the keys of early data, over TCP, where early data was accepted.
    pub(crate) end_of_early_data: Option<Vec<u8>>,
    /// Sent under the keys of the handshake.
    pub(crate) messages: Vec<u8>,
}

/// The message that is expected next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expected {
    ServerHello,
    EncryptedExtensions,
    /// The server's certificate, or a request for ours.
    Certificate,
    CertificateVerify,
    Finished,
    /// After the handshake.
    Any,
}

/// The client's side of a handshake.
pub(crate) struct Handshake {
    flight: Arc<FlightParts>,
    expected: Expected,
    /// All messages so far; hashed when needed.
    transcript: Vec<u8>,
    retried: bool,
    /// Whether the latest ClientHello offers the PSK.
    offers_psk: bool,
    /// Whether an EndOfEarlyData belongs to the transcript: not over QUIC.
    has_end_of_early_data: bool,
    resumed: bool,
    early_data: bool,
    alpn: Option<String>,
    certificate_context: Option<Vec<u8>>,
    keys: Option<Keys>,
    key_log: Vec<String>,
}

struct Keys {
    schedule: Schedule,
    client: Vec<u8>,
    server: Vec<u8>,
    /// Set after the server's Finished.
    resumption_master: Vec<u8>,
}

impl Handshake {
    pub(crate) fn new(flight: Arc<FlightParts>, has_end_of_early_data: bool) -> Self {
        let early = flight.early_secret().map(|(_, secret)| secret);
        let mut handshake = Self {
            expected: Expected::ServerHello,
            transcript: flight.hello.clone(),
            retried: false,
            offers_psk: flight.offer.ticket.is_some(),
            has_end_of_early_data,
            resumed: false,
            early_data: false,
            alpn: None,
            certificate_context: None,
            keys: None,
            key_log: Vec::new(),
            flight,
        };
        if let Some(secret) = early {
            handshake.log_secret("CLIENT_EARLY_TRAFFIC_SECRET", &secret);
        }
        handshake
    }

    /// New lines of an NSS key log (RFC 9850).
    pub(crate) fn take_key_log(&mut self) -> Vec<String> {
        std::mem::take(&mut self.key_log)
    }

    fn log_secret(&mut self, label: &str, secret: &[u8]) {
        let random = hex::encode(self.flight.offer.entropy.random);
        self.key_log.push(format!("{label} {random} {}", hex::encode(secret)));
    }

    /// Processes a whole message, which arrived at the time `now`.
    pub(crate) fn message(&mut self, bytes: &[u8], now: Duration) -> Result<Step, ProtocolError> {
        let (Some(&message_kind), Some(body)) = (bytes.first(), bytes.get(4..)) else {
            return Err(ProtocolError::Malformed);
        };
        if self.transcript.len() + bytes.len() > MAX_TRANSCRIPT {
            return Err(ProtocolError::TooLong);
        }
        match (self.expected, message_kind) {
            (Expected::ServerHello, kind::SERVER_HELLO) => self.server_hello(bytes, body),
            (Expected::EncryptedExtensions, kind::ENCRYPTED_EXTENSIONS) => {
                self.extensions(bytes, body)
            }
            (Expected::Certificate, kind::CERTIFICATE_REQUEST) => {
                self.certificate_context = Some(certificate_request(body)?);
                self.transcript.extend_from_slice(bytes);
                Ok(Step::Continue)
            }
            // Servers are not authenticated, see the crate's documentation.
            (Expected::Certificate, kind::CERTIFICATE) => {
                self.transcript.extend_from_slice(bytes);
                self.expected = Expected::CertificateVerify;
                Ok(Step::Certificate(body.to_vec()))
            }
            (Expected::CertificateVerify, kind::CERTIFICATE_VERIFY) => {
                self.transcript.extend_from_slice(bytes);
                self.expected = Expected::Finished;
                Ok(Step::Continue)
            }
            (Expected::Finished, kind::FINISHED) => self.finished(bytes, body),
            (Expected::Any, kind::NEW_SESSION_TICKET) => self.ticket(body, now),
            (Expected::Any, kind::KEY_UPDATE) => Ok(Step::KeyUpdate),
            (_, unexpected) => Err(ProtocolError::Unexpected(unexpected)),
        }
    }

    fn server_hello(&mut self, bytes: &[u8], body: &[u8]) -> Result<Step, ProtocolError> {
        let hello = ServerHello::read(body)?;
        let suite = Suite::from_id(hello.suite).ok_or(ProtocolError::NotOffered)?;
        let share = match hello.kind {
            HelloKind::Retry { group, cookie } => return self.retry(bytes, suite, group, cookie),
            HelloKind::Hello { share } => share,
        };
        if hello.resumed && !self.offers_psk {
            return Err(ProtocolError::NotOffered);
        }
        let offer = &self.flight.offer;
        let early = match offer.ticket.as_ref().filter(|_| hello.resumed) {
            Some(ticket) if ticket.suite.hash_len() != suite.hash_len() => {
                return Err(ProtocolError::NotOffered);
            }
            Some(ticket) => Schedule::early(suite, Some(&ticket.psk)),
            None => Schedule::early(suite, None),
        };
        let shared = x25519_dalek::x25519(offer.entropy.private_key, share);
        if shared == [0; 32] {
            // RFC 7748 section 6.1.
            return Err(ProtocolError::Malformed);
        }
        self.transcript.extend_from_slice(bytes);
        let schedule = early.handshake(&shared);
        let hash = suite.hash(&self.transcript);
        let client = schedule.derive("c hs traffic", &hash);
        let server = schedule.derive("s hs traffic", &hash);
        self.keys = Some(Keys {
            schedule,
            client: client.clone(),
            server: server.clone(),
            resumption_master: Vec::new(),
        });
        self.log_secret("CLIENT_HANDSHAKE_TRAFFIC_SECRET", &client);
        self.log_secret("SERVER_HANDSHAKE_TRAFFIC_SECRET", &server);
        self.resumed = hello.resumed;
        self.expected = Expected::EncryptedExtensions;
        Ok(Step::Handshake { suite, resumed: hello.resumed, client, server })
    }

    fn retry(
        &mut self,
        bytes: &[u8],
        suite: Suite,
        group: Option<u16>,
        cookie: Option<&[u8]>,
    ) -> Result<Step, ProtocolError> {
        if self.retried {
            return Err(ProtocolError::Unexpected(kind::SERVER_HELLO));
        }
        if let Some(group) = group.filter(|group| *group != X25519) {
            return Err(ProtocolError::Group(group));
        }
        self.retried = true;
        // Section 4.4.1.
        let hash = suite.hash(&self.transcript);
        self.transcript = message(kind::MESSAGE_HASH, |out| out.extend_from_slice(&hash));
        self.transcript.extend_from_slice(bytes);
        let (hello, offers_psk) = self.flight.offer.second_hello(suite, &self.transcript, cookie);
        self.offers_psk = offers_psk;
        self.transcript.extend_from_slice(&hello);
        Ok(Step::Retry { hello })
    }

    fn extensions(&mut self, bytes: &[u8], body: &[u8]) -> Result<Step, ProtocolError> {
        let found = EncryptedExtensions::read(body)?;
        let may_accept = self.flight.offers_early_data() && self.resumed && !self.retried;
        if found.early_data && !may_accept {
            return Err(ProtocolError::NotOffered);
        }
        self.transcript.extend_from_slice(bytes);
        self.early_data = found.early_data;
        self.alpn.clone_from(&found.alpn);
        self.expected = match self.resumed {
            true => Expected::Finished,
            false => Expected::Certificate,
        };
        Ok(Step::Extensions { early_data: found.early_data, alpn: found.alpn })
    }

    fn finished(&mut self, bytes: &[u8], body: &[u8]) -> Result<Step, ProtocolError> {
        let keys = self.keys.as_mut().ok_or(ProtocolError::Unexpected(kind::FINISHED))?;
        let suite = keys.schedule.suite;
        if finished(suite, &keys.server, &suite.hash(&self.transcript)) != body {
            return Err(ProtocolError::Decrypt);
        }
        self.transcript.extend_from_slice(bytes);
        let application = keys.schedule.application();
        let hash = suite.hash(&self.transcript);
        let client = application.derive("c ap traffic", &hash);
        let server = application.derive("s ap traffic", &hash);
        // A server may issue tickets before it has received our Finished, so their secret is
        // derived now; the rest of the transcript is already known.
        let sends_end = self.early_data && self.has_end_of_early_data;
        let end_of_early_data = sends_end.then(|| message(kind::END_OF_EARLY_DATA, |_| {}));
        self.transcript.extend(end_of_early_data.iter().flatten());
        let mut messages = Vec::new();
        if let Some(context) = &self.certificate_context {
            let certificate = message(kind::CERTIFICATE, |out| {
                put_vec(out, 1, |out| out.extend_from_slice(context));
                put_vec(out, 3, |_| {});
            });
            self.transcript.extend_from_slice(&certificate);
            messages.extend(certificate);
        }
        let verify = finished(suite, &keys.client, &suite.hash(&self.transcript));
        let client_finished = message(kind::FINISHED, |out| out.extend_from_slice(&verify));
        self.transcript.extend_from_slice(&client_finished);
        messages.extend(client_finished);
        keys.resumption_master = application.derive("res master", &suite.hash(&self.transcript));
        self.transcript = Vec::new();
        self.expected = Expected::Any;
        self.log_secret("CLIENT_TRAFFIC_SECRET_0", &client);
        self.log_secret("SERVER_TRAFFIC_SECRET_0", &server);
        let last_flight = LastFlight { end_of_early_data, messages };
        Ok(Step::Finished { client, server, last_flight })
    }

    fn ticket(&mut self, body: &[u8], now: Duration) -> Result<Step, ProtocolError> {
        let found = NewSessionTicket::read(body)?;
        let keys = self.keys.as_ref().ok_or(ProtocolError::Malformed)?;
        let suite = keys.schedule.suite;
        Ok(Step::Ticket(Ticket {
            suite,
            identity: found.identity.to_vec(),
            lifetime: Duration::from_secs(found.lifetime.into()),
            max_early_data: found.max_early_data,
            alpn: self.alpn.clone(),
            received: now,
            age_add: found.age_add,
            psk: Ticket::derive_psk(suite, &keys.resumption_master, found.nonce),
        }))
    }
}

/// Maximum size of all messages of a handshake, in bytes.
const MAX_TRANSCRIPT: usize = 256 * 1024;
