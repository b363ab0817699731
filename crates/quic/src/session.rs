use std::sync::Arc;

use boring::error::ErrorStack;
use boring::ssl::Ssl;
use boring_sys as ffi;
use firstflight_tls::{KeyLog, quic_support};
use foreign_types::ForeignType;
use quinn_proto::crypto::{self, ExportKeyingMaterialError, KeyPair, Keys};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{Side, TransportError, TransportErrorCode};

use crate::header::HeaderKey;
use crate::initial::key_pairs;
use crate::late::{LateHeaderKey, LatePacketKey, LateSecret};
use crate::method::{self, Level, PendingOutput};
use crate::packet::PacketKey;
use crate::parameters::{MAX_CONNECTION_IDS, with_connection_id_limit};
use crate::suite::Secret;

/// The alerts that this crate itself raises (RFC 8446 section 6).
pub(crate) const UNEXPECTED_MESSAGE: u8 = 10;
pub(crate) const INTERNAL_ERROR: u8 = 80;

/// The outcome of one step of the handshake.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// All bytes were processed: more are needed, the handshake is complete, or early data can be
    /// sent.
    Done,
    /// The ticket's session has to be looked up.
    NeedsSession,
    /// The server has refused early data.
    EarlyDataRefused,
}

/// The TLS handshake of one connection, for both roles: CRYPTO bytes in, CRYPTO bytes and keys out.
pub(crate) struct Handshaking {
    pub(crate) ssl: Ssl,
    side: Side,
    /// The encryption level of incoming bytes. It changes when quinn has received the keys of the
    /// next level and calls again.
    reading: Level,
    /// The encryption level of outgoing bytes.
    writing: Level,
    /// Whether the last of a server's tickets waits for the client's Finished.
    pub(crate) withholds_last_ticket: bool,
    /// The peer's 1-RTT secret of generation 0, as soon as it is known.
    late: LateSecret,
    /// The current key phase.
    phase: Option<Phase>,
    key_log: Option<Arc<dyn KeyLog>>,
}

/// The 1-RTT secrets of the newest key phase that quinn has keys for.
struct Phase {
    local: Secret,
    /// `None` if not known yet, see [`Handshaking::late`].
    remote: Option<Secret>,
    generation: u32,
}

impl Handshaking {
    /// Prepares a new connection with its role and transport parameters.
    pub(crate) fn new(
        mut ssl: Ssl,
        side: Side,
        parameters: &[u8],
        key_log: Option<Arc<dyn KeyLog>>,
    ) -> Self {
        method::prepare(&mut ssl);
        // SAFETY: the connection is valid and its handshake has not started.
        unsafe {
            match side {
                Side::Server => ffi::SSL_set_accept_state(ssl.as_ptr()),
                Side::Client => ffi::SSL_set_connect_state(ssl.as_ptr()),
            }
        }
        // SAFETY: the connection is valid, the parameters are readable and copied.
        let done = unsafe {
            ffi::SSL_set_quic_transport_params(ssl.as_ptr(), parameters.as_ptr(), parameters.len())
        };
        assert_eq!(done, 1, "copying fails only without memory");
        Self {
            ssl,
            side,
            reading: Level::Initial,
            writing: Level::Initial,
            withholds_last_ticket: false,
            late: LateSecret::default(),
            phase: None,
            key_log,
        }
    }

    /// Adds received CRYPTO bytes.
    pub(crate) fn provide(&mut self, bytes: &[u8]) -> Result<(), TransportError> {
        // SAFETY: the connection is valid, and the call only reads.
        let expected = unsafe { ffi::SSL_quic_read_level(self.ssl.as_ptr()) };
        // BoringSSL knows which level it reads, quinn which level the bytes came from. Bytes of an
        // earlier level are an error (RFC 9001 section 4.1.3).
        if expected != self.reading.to_ffi() {
            return Err(error(UNEXPECTED_MESSAGE, "handshake bytes at a level that has ended"));
        }
        // SAFETY: the connection is valid, the bytes are readable and copied.
        let done = unsafe {
            ffi::SSL_provide_quic_data(self.ssl.as_ptr(), expected, bytes.as_ptr(), bytes.len())
        };
        if done == 1 { Ok(()) } else { Err(self.failure()) }
    }

    /// Processes the received bytes.
    pub(crate) fn advance(&mut self) -> Result<Step, TransportError> {
        let ssl = self.ssl.as_ptr();
        if self.is_complete() {
            // SAFETY: the connection is valid, and its handshake complete.
            return match unsafe { ffi::SSL_process_quic_post_handshake(ssl) } {
                1 => Ok(Step::Done),
                _ => Err(self.failure()),
            };
        }
        // SAFETY: the connection is valid.
        let (result, code) = unsafe {
            let result = ffi::SSL_do_handshake(ssl);
            (result, ffi::SSL_get_error(ssl, result))
        };
        if result == 1 {
            return Ok(Step::Done);
        }
        match code {
            ffi::SSL_ERROR_WANT_READ => Ok(Step::Done),
            ffi::SSL_ERROR_PENDING_TICKET => Ok(Step::NeedsSession),
            ffi::SSL_ERROR_EARLY_DATA_REJECTED => Ok(Step::EarlyDataRefused),
            _ => Err(self.failure()),
        }
    }

    /// Writes pending key log lines.
    pub(crate) fn log_keys(&self) {
        let Some(log) = &self.key_log else { return };
        let lines = std::mem::take(&mut method::pending_output(&self.ssl).key_lines);
        for line in lines {
            log.line(&line);
        }
    }

    /// Whether the peer's Finished has been verified.
    pub(crate) fn is_complete(&self) -> bool {
        self.ssl.is_init_finished()
    }

    pub(crate) fn in_early_data(&self) -> bool {
        // SAFETY: the connection is valid, and the call only reads.
        unsafe { ffi::SSL_in_early_data(self.ssl.as_ptr()) == 1 }
    }

    /// Moves the messages of the current level to `out`. Returns the keys of the next level once they
    /// are known.
    pub(crate) fn write(&mut self, out: &mut Vec<u8>) -> Option<Keys> {
        let mut output = method::pending_output(&self.ssl);
        // A server that accepts early data has tickets before the client's Finished (RFC 8446
        // section 4.6.1).
        let has_tickets = self.writing == Level::Application;
        let messages = &mut output.messages[self.writing as usize];
        let ready = match has_tickets && self.withholds_last_ticket && !self.is_complete() {
            true => start_of_last_message(messages),
            false => messages.len(),
        };
        out.extend(messages.drain(..ready));
        let keys = match self.writing {
            Level::Initial => {
                let (read, write) = take_secrets(&mut output, Level::Handshake, true)?;
                self.reading = Level::Handshake;
                self.writing = Level::Handshake;
                key_pairs(&write, &read?)
            }
            Level::Handshake => {
                let both = self.side == Side::Client;
                let (read, write) = take_secrets(&mut output, Level::Application, both)?;
                self.writing = Level::Application;
                drop(output);
                self.one_rtt_keys(read, write)
            }
            Level::Early | Level::Application => {
                if let Some(read) = output.read[Level::Application as usize].take() {
                    // The client's Finished is verified: its 1-RTT packets can be opened.
                    let _ = self.late.set(read);
                }
                drop(output);
                if self.is_complete() {
                    self.reading = Level::Application;
                }
                return None;
            }
        };
        if self.is_complete() {
            self.reading = Level::Application;
        }
        Some(keys)
    }

    /// The first 1-RTT keys. On a server, BoringSSL provides the read secret only after the client's
    /// Finished.
    fn one_rtt_keys(&mut self, read: Option<Secret>, write: Secret) -> Keys {
        let keys = match &read {
            Some(read) => key_pairs(&write, read),
            None => Keys {
                header: KeyPair {
                    local: Box::new(HeaderKey::new(&write)),
                    remote: Box::new(LateHeaderKey::new(self.late.clone())),
                },
                packet: KeyPair {
                    local: Box::new(PacketKey::new(&write)),
                    remote: self.late_packet_key(&write, 0),
                },
            },
        };
        self.phase = Some(Phase { local: write, remote: read, generation: 0 });
        keys
    }

    fn late_packet_key(&self, local: &Secret, generation: u32) -> Box<dyn crypto::PacketKey> {
        Box::new(LatePacketKey::new(local.suite, self.late.clone(), generation))
    }

    /// The keys of the next key phase (RFC 9001 section 6).
    pub(crate) fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn crypto::PacketKey>>> {
        let phase = self.phase.as_mut()?;
        phase.local = phase.local.next();
        // The deferred secret is of generation 0 and has to be updated to the current one.
        phase.remote = match (phase.remote.take(), self.late.get()) {
            (Some(remote), _) => Some(remote.next()),
            (None, Some(late)) => {
                Some((0..=phase.generation).fold(late.clone(), |secret, _| secret.next()))
            }
            (None, None) => None,
        };
        phase.generation += 1;
        let phase = self.phase.as_ref()?;
        Some(KeyPair {
            // Few connections live long enough to need these.
            local: Box::new(LatePacketKey::from_secret(&phase.local)),
            remote: match &phase.remote {
                Some(remote) => Box::new(LatePacketKey::from_secret(remote)),
                None => self.late_packet_key(&phase.local, phase.generation),
            },
        })
    }

    /// The 0-RTT keys: for writing on a client, for reading on a server. Returns them only once, so that
    /// the secret, which decrypts the first flight, is not stored any longer. quinn requests them once
    /// and drops them after the handshake.
    pub(crate) fn early_keys(
        &self,
    ) -> Option<(Box<dyn crypto::HeaderKey>, Box<dyn crypto::PacketKey>)> {
        let mut output = method::pending_output(&self.ssl);
        let secrets = match self.side {
            Side::Client => &mut output.write,
            Side::Server => &mut output.read,
        };
        let secret = secrets[Level::Early as usize].take()?;
        Some((Box::new(HeaderKey::new(&secret)), Box::new(PacketKey::new(&secret))))
    }

    /// The peer's encoded transport parameters, once received.
    pub(crate) fn peer_parameters(&self) -> Option<&[u8]> {
        let (mut at, mut length) = (std::ptr::null(), 0);
        // SAFETY: the connection is valid; the parameters belong to it and stay until it goes.
        unsafe {
            ffi::SSL_get_peer_quic_transport_params(self.ssl.as_ptr(), &mut at, &mut length);
            (length > 0).then(|| std::slice::from_raw_parts(at, length))
        }
    }

    /// RFC 8446 section 7.5.
    pub(crate) fn export(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        // SAFETY: the connection is valid, all buffers are valid for their lengths.
        let done = unsafe {
            ffi::SSL_export_keying_material(
                self.ssl.as_ptr(),
                output.as_mut_ptr(),
                output.len(),
                label.as_ptr().cast(),
                label.len(),
                context.as_ptr(),
                context.len(),
                1,
            )
        };
        if done == 1 {
            return Ok(());
        }
        drop(ErrorStack::get());
        Err(ExportKeyingMaterialError)
    }

    /// Converts BoringSSL's error into a transport error (RFC 9001 section 4.8).
    fn failure(&self) -> TransportError {
        let stack = ErrorStack::get();
        let alert = method::pending_output(&self.ssl).alert.unwrap_or(INTERNAL_ERROR);
        error(alert, &quic_support::tls_error(&self.ssl, &stack).to_string())
    }
}

/// Takes the read and write secrets of a level, once the write secret is known; with `both`, once both
/// are known.
fn take_secrets(
    output: &mut PendingOutput,
    level: Level,
    both: bool,
) -> Option<(Option<Secret>, Secret)> {
    let level = level as usize;
    if both && output.read[level].is_none() {
        return None;
    }
    let write = output.write[level].take()?;
    Some((output.read[level].take(), write))
}

/// The offset of the last of these handshake messages (RFC 8446 section 4: one byte of type, three of
/// length).
fn start_of_last_message(messages: &[u8]) -> usize {
    let mut at = 0;
    while let Some([_, length @ ..]) = messages[at..].first_chunk::<4>() {
        let length = length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        let next = at + 4 + length;
        if next >= messages.len() {
            break;
        }
        at = next;
    }
    at
}

/// A transport error for a TLS alert.
pub(crate) fn error(alert: u8, reason: &str) -> TransportError {
    TransportError {
        code: TransportErrorCode::crypto(alert),
        frame: None,
        reason: reason.to_owned(),
    }
}

/// Encodes transport parameters.
pub(crate) fn to_wire(parameters: &TransportParameters) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(128);
    parameters.write(&mut bytes);
    bytes
}

/// Decodes a peer's transport parameters. Lowers its connection ID limit to [`MAX_CONNECTION_IDS`].
pub(crate) fn from_wire(side: Side, wire: &[u8]) -> Result<TransportParameters, TransportError> {
    let wire = with_connection_id_limit(wire, MAX_CONNECTION_IDS);
    TransportParameters::read(side, &mut std::io::Cursor::new(wire)).map_err(TransportError::from)
}
