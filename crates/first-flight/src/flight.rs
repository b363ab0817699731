//! First flights: what a client sends before it hears from the server (RFC 8446 section 2.3).

use std::sync::Arc;
use std::time::Duration;

use crate::Ticket;
use crate::connection::Connection;
use crate::entropy::Entropy;
use crate::hello::{self, Hello, HelloParts, PskOffer};
use crate::parts::{FlightParts, Offer, put_binder};
use crate::quic::{self, QuicParts, ZeroRttPackets, transport_parameters};
use crate::quic_connection::QuicConnection;
use crate::record;
use crate::schedule::Schedule;
use crate::tcp_connection::TcpConnection;
use crate::wire::extension;

/// A plan for a first flight, with optional faults.
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

    /// States a ticket age that is off by this many milliseconds.
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

    /// Builds the flight at the time `now`, on the clock of [`Ticket::received`].
    pub fn build(mut self, now: Duration, entropy: &Entropy) -> FirstFlight {
        let [destination, source] = entropy.connection_ids;
        if self.hello.quic.is_some() {
            let parameters = transport_parameters(&source);
            self.hello.extra.push((extension::QUIC_TRANSPORT_PARAMETERS, parameters));
        }
        let quic = self.hello.quic.clone().map(|first_stream| QuicParts {
            destination: destination.to_vec(),
            source,
            token: Vec::new(),
            first_stream,
            next_initial: 0,
            next_application: 0,
        });
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
        FirstFlight::assemble(offer, message, early_data, quic)
    }
}

/// A first flight. It can be sent any number of times: cloning it is cheap, and each
/// [`connection`](Self::connection) reads the response to one copy.
#[derive(Clone)]
pub struct FirstFlight(Arc<FlightParts>);

impl FirstFlight {
    /// Makes a flight from a ClientHello message.
    pub(crate) fn assemble(
        offer: Offer,
        hello: Vec<u8>,
        early_data: Option<Vec<u8>>,
        quic: Option<QuicParts>,
    ) -> Self {
        let mut parts = FlightParts { offer, hello, pieces: Vec::new(), early_data, quic };
        parts.pieces = match parts.quic.take() {
            Some(mut quic) => {
                let datagrams = parts.datagrams(&mut quic);
                parts.quic = Some(quic);
                datagrams
            }
            None => {
                let mut bytes = Vec::new();
                record::put_plain(record::HANDSHAKE, 1, &parts.hello, &mut bytes);
                if let Some((mut keys, data)) = parts.early_keys().zip(parts.early_data.as_ref()) {
                    keys.seal(record::APPLICATION_DATA, data, &mut bytes);
                }
                vec![bytes]
            }
        };
        Self(Arc::new(parts))
    }

    /// All bytes of the flight: over TCP the ClientHello and the records of early data, over QUIC
    /// the datagrams.
    pub fn bytes(&self) -> Vec<u8> {
        self.0.pieces.concat()
    }

    /// The same flight with another destination connection id, over QUIC. The source id stays, as
    /// the ClientHello contains it. `None` over TCP.
    pub fn with_connection_id(
        &self,
        destination: &[u8; 8],
        zero_rtt: ZeroRttPackets,
    ) -> Option<Self> {
        let old = self.0.quic.as_ref()?;
        let mut quic = QuicParts { destination: destination.to_vec(), ..old.clone() };
        let pieces = match zero_rtt {
            ZeroRttPackets::Protected => self.0.datagrams(&mut quic),
            _ => quic::rewrite(&self.0.pieces, old, destination, zero_rtt)?,
        };
        Some(Self(Arc::new(FlightParts { pieces, quic: Some(quic), ..(*self.0).clone() })))
    }

    /// The keys of its 0-RTT packets.
    #[cfg(test)]
    pub(crate) fn early_packet_keys(&self) -> firstflight_wire::PacketKeys {
        self.0.early_packet_keys().expect("early data")
    }

    /// A connection that sends this flight.
    pub fn connection(&self) -> Box<dyn Connection> {
        match self.0.quic {
            Some(_) => Box::new(QuicConnection::original(self.0.clone())),
            None => Box::new(TcpConnection::new(self.0.clone())),
        }
    }

    /// A connection that sends this flight as an attacker can: over QUIC it sends nothing in response
    /// to the server, for which an attacker has no keys, until it is
    /// [finished](Connection::finish).
    pub fn copy(&self) -> Box<dyn Connection> {
        match self.0.quic {
            Some(_) => Box::new(QuicConnection::copy(self.0.clone())),
            None => self.connection(),
        }
    }
}

/// The base point of Curve25519 (RFC 7748 section 4.1).
const X25519_BASE: [u8; 32] = {
    let mut point = [0; 32];
    point[0] = 9;
    point
};
