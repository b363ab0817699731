//! Events: what packets and records carry, in the terms of the RFCs, and where in a stream it is.

use std::fmt;
use std::ops::Range;

use firstflight_wire::PacketKind;
use serde::Serialize;

use crate::tls::decrypt::Opened;
use crate::tls::record::{self, Record};

/// What a packet is, or one item that it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "what", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// The client's SYN.
    Syn,
    /// The server's SYN-ACK.
    SynAck,
    /// A bare acknowledgement.
    Ack,
    /// A FIN: the sender has no more data.
    Fin,
    /// A RST.
    Reset,
    /// Payload that is not TLS, or that could not be parsed.
    Payload {
        /// Its length.
        bytes: u64,
    },
    /// A ClientHello.
    ClientHello,
    /// A HelloRetryRequest (RFC 8446 section 4.1.4).
    HelloRetryRequest,
    /// A ServerHello.
    ServerHello,
    /// The EncryptedExtensions.
    EncryptedExtensions {
        /// Whether early data was accepted; `None` if none was offered.
        early_data: Option<bool>,
    },
    /// A Certificate message, possibly compressed.
    Certificate,
    /// Another handshake message.
    Handshake {
        /// The message's type (RFC 8446 section 4, RFC 5246 section 7.4).
        message: u8,
    },
    /// A Finished message.
    Finished,
    /// A session ticket.
    NewSessionTicket,
    /// A ChangeCipherSpec record; without meaning in TLS 1.3 (RFC 8446 appendix D.4).
    ChangeCipherSpec,
    /// A decrypted record of early data.
    EarlyData {
        /// The length of its plaintext.
        bytes: u64,
    },
    /// A record of application data.
    ApplicationData {
        /// The length of its plaintext, if known.
        bytes: Option<u64>,
    },
    /// The alert that closes a direction without error (RFC 8446 section 6.1).
    CloseNotify,
    /// Another alert.
    Alert {
        /// Its description; `None` if it is encrypted.
        description: Option<u8>,
    },
    /// A record (over QUIC: a packet) that no secret decrypts.
    Encrypted {
        /// Its length with its header.
        bytes: u64,
    },
    /// A QUIC packet; its frames follow.
    Packet {
        /// Its kind.
        kind: PacketKind,
        /// Its packet number; `None` if no secret decrypts it.
        number: Option<u64>,
    },
    /// A Retry packet (RFC 9000 section 17.2.5).
    Retry {
        /// Its token's length.
        token_bytes: u64,
    },
    /// A Version Negotiation packet (RFC 9000 section 17.2.1).
    VersionNegotiation,
    /// A CRYPTO frame with part of a message that was never completed.
    Crypto {
        /// The length of its data.
        bytes: u64,
    },
    /// A STREAM frame.
    Stream {
        /// The stream's number.
        id: u64,
        /// The length of its data.
        bytes: u64,
        /// Whether it ends the stream.
        fin: bool,
        /// Whether it is in a 0-RTT packet.
        early: bool,
    },
    /// A NEW_TOKEN frame.
    NewToken {
        /// The token's length.
        bytes: u64,
    },
    /// A CONNECTION_CLOSE frame.
    Close {
        /// The error's number.
        code: u64,
        /// Whether it is an application error.
        by_application: bool,
    },
    /// Another frame of QUIC.
    Frame {
        /// Its type (RFC 9000 section 12.4).
        frame: u64,
    },
}

impl Event {
    /// The alert with this content: level, then description (RFC 8446 section 6).
    pub(crate) fn alert(content: &[u8]) -> Self {
        match *content {
            [_, 0] => Self::CloseNotify,
            [_, description] => Self::Alert { description: Some(description) },
            _ => Self::Alert { description: None },
        }
    }

    /// The event of a decrypted record that is not a handshake message.
    pub(crate) fn opened(opened: &Opened) -> Self {
        let bytes = opened.content.len() as u64;
        match opened.content_type {
            record::APPLICATION_DATA => Self::ApplicationData { bytes: Some(bytes) },
            record::ALERT => Self::alert(&opened.content),
            _ => Self::Encrypted { bytes },
        }
    }

    /// The event of a record that was not decrypted, by its header.
    pub(crate) fn undecrypted(record: &Record<'_>) -> Self {
        match record.content_type {
            record::CHANGE_CIPHER_SPEC => Self::ChangeCipherSpec,
            record::ALERT => Self::Alert { description: None },
            _ => Self::Encrypted { bytes: record.wire_len() as u64 },
        }
    }

    /// The event of a handshake message of this type.
    pub(crate) fn message(kind: u8) -> Self {
        match kind {
            1 => Self::ClientHello,
            2 => Self::ServerHello,
            4 => Self::NewSessionTicket,
            11 | 25 => Self::Certificate,
            20 => Self::Finished,
            message => Self::Handshake { message },
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Syn => f.write_str("SYN"),
            Self::SynAck => f.write_str("SYN-ACK"),
            Self::Ack => f.write_str("ACK"),
            Self::Fin => f.write_str("FIN"),
            Self::Reset => f.write_str("RST"),
            Self::Payload { bytes } => write!(f, "payload {bytes} B"),
            Self::ClientHello => f.write_str("ClientHello"),
            Self::HelloRetryRequest => f.write_str("HelloRetryRequest"),
            Self::ServerHello => f.write_str("ServerHello"),
            Self::EncryptedExtensions { early_data } => f.write_str(match early_data {
                None => "EncryptedExtensions",
                Some(true) => "EncryptedExtensions (early data accepted)",
                Some(false) => "EncryptedExtensions (early data refused)",
            }),
            Self::Certificate => f.write_str("Certificate"),
            Self::Handshake { message } => match message_name(message) {
                Some(name) => f.write_str(name),
                None => write!(f, "handshake message {message}"),
            },
            Self::Finished => f.write_str("Finished"),
            Self::NewSessionTicket => f.write_str("NewSessionTicket"),
            Self::ChangeCipherSpec => f.write_str("ChangeCipherSpec"),
            Self::EarlyData { bytes } => write!(f, "early data {bytes} B"),
            Self::ApplicationData { bytes: Some(bytes) } => {
                write!(f, "application data {bytes} B")
            }
            Self::ApplicationData { bytes: None } => f.write_str("application data"),
            Self::CloseNotify => f.write_str("close_notify"),
            Self::Alert { description: Some(number) } => match alert_name(number) {
                Some(name) => write!(f, "alert {name}"),
                None => write!(f, "alert {number}"),
            },
            Self::Alert { description: None } => f.write_str("alert, encrypted"),
            Self::Encrypted { bytes } => write!(f, "encrypted {bytes} B"),
            Self::Packet { kind, number: Some(number) } => write!(f, "{kind} packet {number}"),
            Self::Packet { kind, number: None } => write!(f, "{kind} packet"),
            Self::Retry { token_bytes } => write!(f, "Retry, token {token_bytes} B"),
            Self::VersionNegotiation => f.write_str("Version Negotiation"),
            Self::Crypto { bytes } => write!(f, "CRYPTO {bytes} B"),
            Self::Stream { id, bytes, fin, early } => {
                let early = if early { "early data, " } else { "" };
                let fin = if fin { ", FIN" } else { "" };
                write!(f, "{early}stream {id} {bytes} B{fin}")
            }
            Self::NewToken { bytes } => write!(f, "NEW_TOKEN {bytes} B"),
            Self::Close { code, by_application } => {
                let layer = if by_application { "application" } else { "transport" };
                write!(f, "CONNECTION_CLOSE, {layer} error {code:#x}")
            }
            Self::Frame { frame } => match frame_name(frame) {
                Some(name) => f.write_str(name),
                None => write!(f, "frame {frame:#x}"),
            },
        }
    }
}

/// Names of messages without an event variant.
fn message_name(kind: u8) -> Option<&'static str> {
    Some(match kind {
        0 => "HelloRequest",
        5 => "EndOfEarlyData",
        12 => "ServerKeyExchange",
        13 => "CertificateRequest",
        14 => "ServerHelloDone",
        15 => "CertificateVerify",
        16 => "ClientKeyExchange",
        22 => "CertificateStatus",
        24 => "KeyUpdate",
        _ => return None,
    })
}

/// Names of the alerts that occur in practice (RFC 8446 section 6.2).
fn alert_name(description: u8) -> Option<&'static str> {
    Some(match description {
        10 => "unexpected_message",
        20 => "bad_record_mac",
        22 => "record_overflow",
        40 => "handshake_failure",
        42 => "bad_certificate",
        45 => "certificate_expired",
        46 => "certificate_unknown",
        47 => "illegal_parameter",
        48 => "unknown_ca",
        50 => "decode_error",
        51 => "decrypt_error",
        70 => "protocol_version",
        71 => "insufficient_security",
        80 => "internal_error",
        86 => "inappropriate_fallback",
        90 => "user_canceled",
        109 => "missing_extension",
        112 => "unrecognized_name",
        115 => "unknown_psk_identity",
        116 => "certificate_required",
        120 => "no_application_protocol",
        _ => return None,
    })
}

/// Names of frames without an event variant (RFC 9000 section 12.4, RFC 9221,
/// draft-ietf-quic-ack-frequency).
fn frame_name(frame: u64) -> Option<&'static str> {
    Some(match frame {
        0x01 => "PING",
        0x04 => "RESET_STREAM",
        0x05 => "STOP_SENDING",
        0x10 => "MAX_DATA",
        0x11 => "MAX_STREAM_DATA",
        0x12 | 0x13 => "MAX_STREAMS",
        0x14 => "DATA_BLOCKED",
        0x15 => "STREAM_DATA_BLOCKED",
        0x16 | 0x17 => "STREAMS_BLOCKED",
        0x18 => "NEW_CONNECTION_ID",
        0x19 => "RETIRE_CONNECTION_ID",
        0x1a => "PATH_CHALLENGE",
        0x1b => "PATH_RESPONSE",
        0x1e => "HANDSHAKE_DONE",
        0x1f => "IMMEDIATE_ACK",
        0x30 | 0x31 => "DATAGRAM",
        0xaf => "ACK_FREQUENCY",
        _ => return None,
    })
}

/// An event and its byte range in the stream of its direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StreamEvent {
    pub(crate) span: Range<usize>,
    pub(crate) event: Event,
}

/// Records the events of a stream, TLS record by TLS record.
#[derive(Debug, Default)]
pub(crate) struct EventRecorder {
    pub(crate) all: Vec<StreamEvent>,
    /// The number of events when the current record started.
    record_start: usize,
    content: RecordContent,
}

/// What the current record holds.
#[derive(Debug, Default)]
enum RecordContent {
    /// Not parsed.
    #[default]
    Unknown,
    /// The whole record is this event.
    Whole(Event),
    /// Handshake messages, or parts of them.
    Messages,
}

impl EventRecorder {
    pub(crate) fn start_record(&mut self) {
        self.record_start = self.all.len();
        self.content = RecordContent::Unknown;
    }

    /// Sets the event of the current record as a whole.
    pub(crate) fn set_record(&mut self, event: Event) {
        self.content = RecordContent::Whole(event);
    }

    /// Marks the current record as one with messages. Push each in the record in which it ends.
    pub(crate) fn set_messages(&mut self) {
        self.content = RecordContent::Messages;
    }

    /// Adds a message that ends in the current record.
    pub(crate) fn push(&mut self, span: Range<usize>, event: Event) {
        self.all.push(StreamEvent { span, event });
    }

    /// Finishes the current record. Its header is attributed to the message that starts right after
    /// it, and its last bytes to the last message, unless a further message is `unfinished`.
    pub(crate) fn finish_record(&mut self, record: &Record<'_>, unfinished: bool) {
        let whole = match std::mem::take(&mut self.content) {
            RecordContent::Unknown => Event::undecrypted(record),
            RecordContent::Whole(event) => event,
            RecordContent::Messages => {
                let messages = &mut self.all[self.record_start..];
                if let Some(first) = messages.first_mut()
                    && first.span.start == record.payload_start()
                {
                    first.span.start = record.start;
                }
                if let (Some(last), false) = (messages.last_mut(), unfinished) {
                    last.span.end = record.end();
                }
                return;
            }
        };
        self.push(record.start..record.end(), whole);
    }
}
