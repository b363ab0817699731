//! First flights: what a client sends before it hears from the server (RFC 8446 section 2.3).

use std::sync::Arc;
use std::time::Duration;

use crate::connection::Connection;
use crate::hello::{self, Hello, HelloParts, PskOffer};
use crate::record::{self, RecordKeys};
use crate::schedule::Schedule;
use crate::{Suite, Ticket};

/// The random values of a flight.
#[derive(Clone)]
pub struct Entropy {
    /// The client random.
    pub random: [u8; 32],
    /// The X25519 private key.
    pub private_key: [u8; 32],
}

impl Entropy {
    /// From the operating system.
    ///
    /// # Panics
    /// If the system has no random numbers.
    pub fn system() -> Self {
        let (mut random, mut private_key) = ([0; 32], [0; 32]);
        getrandom::fill(&mut random).expect("the system has random numbers");
        getrandom::fill(&mut private_key).expect("the system has random numbers");
        Self { random, private_key }
    }
}

/// What a first flight shall be, with its faults.
#[derive(Clone, Debug)]
pub struct FlightPlan {
    hello: Hello,
    ticket: Option<Ticket>,
    early_data: Option<Vec<u8>>,
    age_shift_ms: i64,
    flipped_bit: Option<usize>,
    wrong_binder: bool,
}

impl FlightPlan {
    /// A full handshake.
    pub fn full(hello: Hello) -> Self {
        Self {
            hello,
            ticket: None,
            early_data: None,
            age_shift_ms: 0,
            flipped_bit: None,
            wrong_binder: false,
        }
    }

    /// A resumption with this ticket.
    pub fn resume(hello: Hello, ticket: &Ticket) -> Self {
        Self { ticket: Some(ticket.clone()), ..Self::full(hello) }
    }

    /// Sends this early data. It may be longer than the ticket permits, and it may be empty: then
    /// early data is only offered. Without a ticket nothing is sent.
    #[must_use]
    pub fn early_data(mut self, data: &[u8]) -> Self {
        self.early_data = Some(data.to_vec());
        self
    }

    /// States another ticket age, off by so many milliseconds.
    #[must_use]
    pub fn shift_age(mut self, milliseconds: i64) -> Self {
        self.age_shift_ms = milliseconds;
        self
    }

    /// Flips a bit of the ticket as it is sent; the number is taken modulo the ticket's bits.
    #[must_use]
    pub fn flip_ticket_bit(mut self, bit: usize) -> Self {
        self.flipped_bit = Some(bit);
        self
    }

    /// Sends a wrong PSK binder.
    #[must_use]
    pub fn tamper_with_binder(mut self) -> Self {
        self.wrong_binder = true;
        self
    }

    /// Builds the flight at this time of the clock that dated the ticket.
    pub fn build(self, now: Duration, entropy: &Entropy) -> FirstFlight {
        let public = x25519_dalek::x25519(entropy.private_key, X25519_BASE);
        let ticket = self.ticket.map(|mut ticket| {
            if let Some(bit) = self.flipped_bit {
                let bits = ticket.identity.len().max(1) * 8;
                if let Some(byte) = ticket.identity.get_mut(bit % bits / 8) {
                    *byte ^= 1 << (bit % 8);
                }
            }
            ticket
        });
        let early_data = ticket.as_ref().and(self.early_data);
        let psk = ticket.as_ref().map(|ticket| PskOffer {
            identity: &ticket.identity,
            obfuscated_age: ticket.obfuscated_age(now, self.age_shift_ms),
            binder_len: ticket.suite.hash_len(),
        });
        let age = psk.as_ref().map_or(0, |psk| psk.obfuscated_age);
        let parts = HelloParts {
            random: entropy.random,
            share: self.hello.key_share.then_some(public),
            cookie: None,
            early_data: early_data.is_some(),
            psk,
        };
        let mut message = hello::write(&self.hello, &parts);
        if let Some(ticket) = &ticket {
            let schedule = Schedule::early(ticket.suite, Some(&ticket.psk));
            put_binder(&mut message, &schedule, b"");
            if self.wrong_binder {
                *message.last_mut().expect("it ends with the binder") ^= 1;
            }
        }
        let offer = Offer {
            hello: self.hello,
            entropy: entropy.clone(),
            public,
            ticket,
            obfuscated_age: age,
        };
        FirstFlight::assemble(offer, message, early_data)
    }
}

/// What a connection has to know of the flight that it sent.
pub(crate) struct Offer {
    pub(crate) hello: Hello,
    pub(crate) entropy: Entropy,
    pub(crate) public: [u8; 32],
    pub(crate) ticket: Option<Ticket>,
    pub(crate) obfuscated_age: u32,
}

impl Offer {
    /// The early stage of the key schedule with the offered PSK.
    pub(crate) fn schedule(&self) -> Option<Schedule> {
        self.ticket.as_ref().map(|ticket| Schedule::early(ticket.suite, Some(&ticket.psk)))
    }

    /// The second ClientHello, in response to a HelloRetryRequest (section 4.1.2). `prefix` is the
    /// transcript so far.
    pub(crate) fn second_hello(
        &self,
        suite: Suite,
        prefix: &[u8],
        cookie: Option<&[u8]>,
    ) -> (Vec<u8>, bool) {
        // A PSK of another hash cannot be used with the chosen suite.
        let ticket = self.ticket.as_ref().filter(|it| it.suite.hash_len() == suite.hash_len());
        let psk = ticket.map(|ticket| PskOffer {
            identity: &ticket.identity,
            obfuscated_age: self.obfuscated_age,
            binder_len: ticket.suite.hash_len(),
        });
        let parts = HelloParts {
            random: self.entropy.random,
            share: Some(self.public),
            cookie,
            early_data: false,
            psk,
        };
        let mut message = hello::write(&self.hello, &parts);
        if let Some(ticket) = ticket {
            let schedule = Schedule::early(ticket.suite, Some(&ticket.psk));
            put_binder(&mut message, &schedule, prefix);
        }
        (message, ticket.is_some())
    }
}

/// Computes the binder of a ClientHello, and writes it at its end.
fn put_binder(hello: &mut [u8], schedule: &Schedule, prefix: &[u8]) {
    let binder_len = schedule.suite.hash_len();
    let truncated = hello.len() - PskOffer::binders_len(binder_len);
    let binder = schedule.binder(prefix, &hello[..truncated]);
    let at = hello.len() - binder_len;
    hello[at..].copy_from_slice(&binder);
}

/// A first flight. It can be sent any number of times: cloning it is cheap, and each
/// [`connection`](Self::connection) reads the response to one copy.
#[derive(Clone)]
pub struct FirstFlight(Arc<FlightParts>);

pub(crate) struct FlightParts {
    pub(crate) offer: Offer,
    /// The ClientHello message.
    pub(crate) hello: Vec<u8>,
    bytes: Vec<u8>,
    early_data: Option<Vec<u8>>,
}

impl FirstFlight {
    /// Makes a flight of a ClientHello message.
    pub(crate) fn assemble(offer: Offer, hello: Vec<u8>, early_data: Option<Vec<u8>>) -> Self {
        let mut bytes = Vec::new();
        record::put_plain(record::HANDSHAKE, 1, &hello, &mut bytes);
        let mut parts = FlightParts { offer, hello, bytes: Vec::new(), early_data };
        if let Some((mut keys, data)) = parts.early_keys().zip(parts.early_data.as_ref()) {
            keys.seal(record::APPLICATION_DATA, data, &mut bytes);
        }
        parts.bytes = bytes;
        Self(Arc::new(parts))
    }

    /// All its bytes: the ClientHello and the records of early data.
    pub fn bytes(&self) -> &[u8] {
        &self.0.bytes
    }

    /// Bytes of its early data, before protection; `None` if none was offered.
    pub fn early_data_len(&self) -> Option<usize> {
        self.0.early_data.as_ref().map(Vec::len)
    }

    /// A connection that sends this flight.
    pub fn connection(&self) -> Connection {
        Connection::new(self.0.clone())
    }
}

impl FlightParts {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn offers_early_data(&self) -> bool {
        self.early_data.is_some()
    }

    /// The secret of the early data (RFC 8446 section 7.1).
    pub(crate) fn early_secret(&self) -> Option<(Suite, Vec<u8>)> {
        let schedule = self.offer.schedule().filter(|_| self.early_data.is_some())?;
        let hash = schedule.suite.hash(&self.hello);
        Some((schedule.suite, schedule.derive("c e traffic", &hash)))
    }

    fn early_keys(&self) -> Option<RecordKeys> {
        self.early_secret().map(|(suite, secret)| RecordKeys::new(suite, &secret))
    }

    /// The keys for records after those of the flight.
    pub(crate) fn later_early_keys(&self) -> Option<RecordKeys> {
        let mut keys = self.early_keys()?;
        let records = self.early_data.as_ref()?.len().div_ceil(record::MAX_PLAINTEXT);
        keys.skip(records as u64);
        Some(keys)
    }
}

/// The base point of Curve25519 (RFC 7748 section 4.1).
const X25519_BASE: [u8; 32] = {
    let mut point = [0; 32];
    point[0] = 9;
    point
};
