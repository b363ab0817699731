//! The interface of a connection that has sent a first flight, over TCP or QUIC.

use std::time::Duration;

use crate::{ProtocolError, Suite, Ticket};

/// What a server did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It requested another ClientHello, which discards the early data. The connection sends that
    /// ClientHello automatically.
    HelloRetryRequest,
    /// It chose a suite, and accepted the ticket or not.
    ServerHello {
        /// The suite.
        suite: Suite,
        /// Whether the ticket was accepted.
        resumed: bool,
    },
    /// Its extensions: whether it accepts the early data.
    EncryptedExtensions {
        /// Whether the early data was accepted.
        early_data: bool,
        /// The application protocol.
        alpn: Option<String>,
    },
    /// The content of its Certificate message. It is not verified, but shows whether two names have
    /// the same certificate.
    Certificate(Vec<u8>),
    /// Its Finished, which is valid. The handshake can be completed.
    Finished,
    /// Application data.
    ApplicationData {
        /// The stream over QUIC; 0 over TCP.
        stream: u64,
        /// The data.
        data: Vec<u8>,
        /// Whether the stream ends with it.
        end: bool,
        /// Whether it came before we sent our Finished.
        before_finished: bool,
    },
    /// A ticket.
    Ticket(Ticket),
    /// An alert.
    Alert(Alert),
    /// A Retry packet: the server validates the client's address. The connection of an original
    /// sends the flight again automatically, with the token.
    AddressValidation,
    /// The server has abandoned a stream, with this error code of the application protocol.
    StreamReset {
        /// The stream.
        stream: u64,
        /// The code.
        code: u64,
    },
}

/// An alert (RFC 8446 section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alert(pub u8);

impl Alert {
    /// The end of the data; not an error.
    pub const CLOSE_NOTIFY: Self = Self(0);

    /// The name in the RFC.
    pub fn name(self) -> &'static str {
        match self.0 {
            0 => "close_notify",
            10 => "unexpected_message",
            20 => "bad_record_mac",
            22 => "record_overflow",
            40 => "handshake_failure",
            42 => "bad_certificate",
            47 => "illegal_parameter",
            50 => "decode_error",
            51 => "decrypt_error",
            70 => "protocol_version",
            71 => "insufficient_security",
            80 => "internal_error",
            86 => "inappropriate_fallback",
            90 => "user_canceled",
            109 => "missing_extension",
            110 => "unsupported_extension",
            112 => "unrecognized_name",
            115 => "unknown_psk_identity",
            116 => "certificate_required",
            120 => "no_application_protocol",
            _ => "unknown alert",
        }
    }
}

/// One copy of a first flight: reads the response, and may complete the handshake.
pub trait Connection {
    /// Takes the bytes (TCP) or datagrams (QUIC) to send next; first those of the flight.
    fn take_output(&mut self) -> Vec<Vec<u8>>;

    /// Takes the next event.
    fn next_event(&mut self) -> Option<Event>;

    /// Whether the server's Finished has been received.
    fn is_ready(&self) -> bool;

    /// Processes bytes of the server (over QUIC one datagram), which arrived at the time `now`.
    ///
    /// # Errors
    /// If they violate the protocol. The connection is then unusable, but keeps its events.
    fn receive(&mut self, bytes: &[u8], now: Duration) -> Result<(), ProtocolError>;

    /// Sends more early data, after that of the flight. Returns whether that is possible: early data
    /// was offered, and its end was not sent. Over QUIC, uses a new stream.
    fn send_early_data(&mut self, data: &[u8]) -> bool;

    /// Completes the handshake: EndOfEarlyData over TCP, if early data was accepted, and Finished.
    /// Returns whether that is possible: the server's Finished must have been received.
    fn finish(&mut self) -> bool;

    /// Sends application data after the handshake. Returns whether that is possible: the handshake
    /// must have been completed by [`finish`](Self::finish). Over QUIC, uses a new stream, which
    /// ends with the data.
    fn send(&mut self, data: &[u8]) -> bool;

    /// Announces the end of the connection, if the handshake is complete.
    fn close(&mut self);

    /// Takes new lines of the connection's NSS key log, with its secrets.
    fn take_key_log(&mut self) -> Vec<String>;

    /// Retransmits unacknowledged datagrams. Returns whether there are any: never over TCP, where
    /// the kernel retransmits.
    fn retransmit(&mut self) -> bool {
        false
    }
}
