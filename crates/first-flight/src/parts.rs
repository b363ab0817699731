//! The parts of a first flight: its offer, and the secrets that a connection needs to read the
//! response.

use firstflight_wire::{PacketKeys, Version};

use crate::entropy::Entropy;
use crate::hello::{self, Hello, HelloParts, PskOffer};
use crate::quic::{QuicParts, first_flight};
use crate::record::{self, RecordKeys};
use crate::schedule::Schedule;
use crate::{Suite, Ticket};

/// What a flight offers, with the private values that its connections need.
#[derive(Clone)]
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

    /// The second ClientHello, in response to a HelloRetryRequest (section 4.1.2), and whether it
    /// offers the PSK. `prefix` is the transcript so far.
    pub(crate) fn second_hello(
        &self,
        suite: Suite,
        prefix: &[u8],
        cookie: Option<&[u8]>,
    ) -> (Vec<u8>, bool) {
        // A PSK of another hash cannot be used with the chosen suite.
        let ticket =
            self.ticket.as_ref().filter(|ticket| ticket.suite.hash_len() == suite.hash_len());
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
pub(crate) fn put_binder(hello: &mut [u8], schedule: &Schedule, prefix: &[u8]) {
    let binder_len = schedule.suite.hash_len();
    let truncated = hello.len() - PskOffer::binders_len(binder_len);
    let binder = schedule.binder(prefix, &hello[..truncated]);
    let at = hello.len() - binder_len;
    hello[at..].copy_from_slice(&binder);
}

#[derive(Clone)]
pub(crate) struct FlightParts {
    pub(crate) offer: Offer,
    /// The ClientHello message.
    pub(crate) hello: Vec<u8>,
    /// One piece over TCP, datagrams over QUIC.
    pub(crate) pieces: Vec<Vec<u8>>,
    pub(crate) early_data: Option<Vec<u8>>,
    pub(crate) quic: Option<QuicParts>,
}

impl FlightParts {
    pub(crate) fn pieces(&self) -> Vec<Vec<u8>> {
        self.pieces.clone()
    }

    /// The datagrams of the flight, with the next packet numbers.
    pub(crate) fn datagrams(&self, quic: &mut QuicParts) -> Vec<Vec<u8>> {
        let keys = self.early_packet_keys();
        first_flight(quic, &self.hello, keys.as_ref().zip(self.early_data.as_deref()))
    }

    /// The keys of 0-RTT packets.
    pub(crate) fn early_packet_keys(&self) -> Option<PacketKeys> {
        let (suite, secret) = self.early_secret()?;
        PacketKeys::new(Version::One, suite, &secret)
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

    pub(crate) fn early_keys(&self) -> Option<RecordKeys> {
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
