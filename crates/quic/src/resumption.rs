//! A client's state for resumption: used by a connection, and received for the next one.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use boring::ssl::Ssl;
use bytes::Bytes;
use firstflight_tls::{Session, quic_support};
use quinn_proto::TokenStore;
use quinn_proto::transport_parameters::TransportParameters;

use crate::early_bytes::EarlyBytes;

/// What a client stores to resume a QUIC connection: the session and the server's transport
/// parameters, without which no early data can be sent (RFC 9000 section 7.4.1).
#[derive(Clone, Debug)]
pub struct Resumption {
    /// The session. It resumes QUIC connections only.
    pub session: Session,
    /// The server's transport parameters, encoded.
    pub transport_parameters: Bytes,
}

/// What a client uses of earlier connections to the same server.
#[derive(Clone, Debug, Default)]
pub struct Remembered {
    /// The session to resume.
    pub resumption: Option<Resumption>,
    /// An address token from a NEW_TOKEN frame (RFC 9000 section 8.1.3).
    pub token: Option<Bytes>,
    /// Whether to offer early data if the session allows it.
    pub early_data: bool,
}

/// The tickets and address tokens that a connection has received. Holds at most the newest 16
/// tickets and 4 tokens, whatever the server sends.
#[derive(Clone, Debug, Default)]
pub struct ResumptionInbox(Arc<Mutex<Inbox>>);

#[derive(Debug, Default)]
struct Inbox {
    resumptions: Vec<Resumption>,
    tokens: Vec<Bytes>,
    early_bytes: EarlyBytes,
}

impl ResumptionInbox {
    /// Takes the tickets received since the last call.
    pub fn take_resumptions(&self) -> Vec<Resumption> {
        std::mem::take(&mut self.lock().resumptions)
    }

    /// Takes the address tokens received since the last call.
    pub fn take_tokens(&self) -> Vec<Bytes> {
        std::mem::take(&mut self.lock().tokens)
    }

    /// Whether there are both a ticket and a token to take.
    pub fn has_ticket_and_token(&self) -> bool {
        let inbox = self.lock();
        !inbox.resumptions.is_empty() && !inbox.tokens.is_empty()
    }

    pub(crate) fn add(&self, resumption: Resumption) {
        keep_newest(&mut self.lock().resumptions, resumption, MAX_RESUMPTIONS);
    }

    /// Bytes of stream data that were sent under 0-RTT keys, accepted or not, including
    /// retransmissions.
    pub fn early_bytes(&self) -> usize {
        self.lock().early_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn early_counter(&self) -> EarlyBytes {
        self.lock().early_bytes.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Maximum number of tickets in an inbox.
const MAX_RESUMPTIONS: usize = 16;

/// Maximum number of address tokens in an inbox.
const MAX_TOKENS: usize = 4;

/// Appends `newest`, and drops the oldest item if the list is full.
fn keep_newest<T>(list: &mut Vec<T>, newest: T, max_len: usize) {
    if list.len() >= max_len {
        list.remove(0);
    }
    list.push(newest);
}

/// The connection's token, and the inbox for new ones.
pub(crate) struct Tokens {
    pub(crate) first: Mutex<Option<Bytes>>,
    pub(crate) inbox: ResumptionInbox,
}

impl TokenStore for Tokens {
    fn insert(&self, _server_name: &str, token: Bytes) {
        keep_newest(&mut self.inbox.lock().tokens, token, MAX_TOKENS);
    }

    fn take(&self, _server_name: &str) -> Option<Bytes> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A TLS connection whose handshake has not started.
pub(crate) struct Prepared {
    pub(crate) ssl: Ssl,
    pub(crate) sessions: quic_support::SessionInbox,
    /// The server's transport parameters on the connection that is resumed.
    pub(crate) parameters: Option<TransportParameters>,
}
