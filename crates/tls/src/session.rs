//! Sessions, and the fields of their DER form (`ssl_asn1.cc`) that BoringSSL has no API for.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use boring::ssl::{SslSession, SslSessionRef};
use boring::x509::X509Ref;
use boring_sys as ffi;
use foreign_types::ForeignTypeRef;
use zeroize::Zeroizing;

use crate::clock::SteadyClock;
use crate::der::{INTEGER, OCTET_STRING, SEQUENCE, element};
use crate::host_map::dns_names;
use crate::{TlsError, Version};

/// The sessions that a connection has received and nobody has taken yet: at most the newest 16,
/// however many the server sends.
pub type SessionInbox = Arc<Mutex<Vec<Session>>>;

const MAX_SESSIONS: usize = 16;

/// Appends; drops the oldest if there are too many.
pub(crate) fn keep_newest<T>(inbox: &mut Vec<T>, newest: T) {
    if inbox.len() >= MAX_SESSIONS {
        inbox.remove(0);
    }
    inbox.push(newest);
}

/// What a client needs to resume: the ticket, its secret, and properties of the connection that
/// issued it (RFC 8446 section 4.6.1; RFC 5077 before TLS 1.3).
#[derive(Clone)]
pub struct Session(SslSession);

impl Session {
    /// Parses the bytes of [`Session::to_bytes`], possibly of another process. The bytes are not
    /// authenticated: store them where only their owner can write.
    ///
    /// # Errors
    /// Returns [`TlsError::BadSession`] if the bytes are not a session.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TlsError> {
        SslSession::from_der(bytes)
            .map(Self)
            .map_err(|stack| TlsError::BadSession(crate::error::reasons(&stack)))
    }

    /// Serializes the session, including its secret.
    ///
    /// # Errors
    /// Returns [`TlsError::Setup`] if there is no memory.
    pub fn to_bytes(&self) -> Result<Vec<u8>, TlsError> {
        self.0.to_der().map_err(TlsError::setup("the serialization of a session"))
    }

    /// Whether the session allows early data.
    pub fn early_data_capable(&self) -> bool {
        // SAFETY: the pointer is valid while `self` lives, and the call only reads.
        unsafe { ffi::SSL_SESSION_early_data_capable(self.0.as_ptr()) == 1 }
    }

    /// The names that the session may be offered under in addition to its own: those of the server's
    /// certificate, in lower case, with wildcards, if the server permits it
    /// (draft-ietf-tls-cross-sni-resumption).
    pub fn further_names(&self) -> Vec<String> {
        // SAFETY: the pointer is valid while `self` lives, and the calls only read. The certificate
        // lives as long as the session.
        unsafe {
            if ffi::SSL_SESSION_is_resumable_across_names(self.0.as_ptr()) != 1 {
                return Vec::new();
            }
            let certificate = ffi::SSL_SESSION_get0_peer(self.0.as_ptr());
            match certificate.is_null() {
                true => Vec::new(),
                false => dns_names(X509Ref::from_ptr(certificate)),
            }
        }
    }

    /// Whether the session should be used only once (every TLS 1.3 ticket, RFC 8446 appendix C.4).
    pub fn single_use(&self) -> bool {
        // SAFETY: as above.
        unsafe { ffi::SSL_SESSION_should_be_single_use(self.0.as_ptr()) == 1 }
    }

    /// The version of the connection that issued the session.
    pub fn version(&self) -> Option<Version> {
        Version::from_boring(self.0.protocol_version())
    }

    /// When the session was issued, in seconds since the Unix epoch, and its lifetime in seconds.
    pub fn issued_and_lifetime(&self) -> (u64, u32) {
        // SAFETY: as above.
        unsafe {
            (
                ffi::SSL_SESSION_get_time(self.0.as_ptr()),
                ffi::SSL_SESSION_get_timeout(self.0.as_ptr()),
            )
        }
    }

    /// Returns a copy that claims to be issued `seconds` earlier. The ClientHello then states a
    /// ticket age that is too large. A server that checks freshness (RFC 8446 section 8.3) resumes
    /// the session and refuses its early data, so this tests refusals with any server.
    ///
    /// # Errors
    /// Returns [`TlsError::BadSession`] if BoringSSL cannot copy it.
    pub fn issued_earlier(&self, seconds: u32) -> Result<Self, TlsError> {
        // BoringSSL shares sessions by reference, so only a copy may be changed.
        let copy = Self::from_bytes(&self.to_bytes()?)?;
        let (issued, _) = copy.issued_and_lifetime();
        // SAFETY: the pointer is valid while `copy` lives, and the copy is not shared yet.
        unsafe {
            ffi::SSL_SESSION_set_time(copy.0.as_ptr(), issued.saturating_sub(seconds.into()))
        };
        Ok(copy)
    }

    /// Returns a copy that claims to be issued `seconds` later, so that the ClientHello states a
    /// ticket age that is too small. BoringSSL does not offer a session from the future, so the
    /// ticket has to be at least `seconds` old.
    ///
    /// # Errors
    /// As [`Session::issued_earlier`].
    pub fn issued_later(&self, seconds: u32) -> Result<Self, TlsError> {
        let copy = Self::from_bytes(&self.to_bytes()?)?;
        let (issued, _) = copy.issued_and_lifetime();
        // SAFETY: as above.
        unsafe {
            ffi::SSL_SESSION_set_time(copy.0.as_ptr(), issued.saturating_add(seconds.into()))
        };
        Ok(copy)
    }

    /// Returns a copy for a ClientHello with early data.
    ///
    /// BoringSSL counts whole seconds, so the ticket age that it states (RFC 8446 section 4.2.11.1)
    /// can be almost a second too large. Servers with finer clocks (GnuTLS) treat that as a forgery
    /// and refuse early data, but tolerate an age that is too small, since the network delays
    /// packets. So the copy is one second younger, unless it would be from the future.
    pub(crate) fn for_early_data(&self) -> Result<Self, TlsError> {
        let copy = Self::from_bytes(&self.to_bytes()?)?;
        let (issued, _) = copy.issued_and_lifetime();
        let now = SteadyClock::unix_micros().div_euclid(1_000_000);
        let now = u64::try_from(now).unwrap_or(issued);
        let issued = issued.saturating_add(1).min(now).max(issued);
        // SAFETY: as above.
        unsafe { ffi::SSL_SESSION_set_time(copy.0.as_ptr(), issued) };
        Ok(copy)
    }

    pub(crate) fn new(session: SslSession) -> Self {
        Self(session)
    }

    pub(crate) fn as_boring(&self) -> &SslSessionRef {
        &self.0
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The secret stays out of logs.
        f.debug_struct("Session")
            .field("version", &self.version())
            .field("early_data_capable", &self.early_data_capable())
            .finish_non_exhaustive()
    }
}

const TIME: u8 = 0xa0 | 1;
const TICKET_AGE_ADD: u8 = 0xa0 | 21;
const MAX_EARLY_DATA: u8 = 0xa0 | 24;
const QUIC_EARLY_DATA_CONTEXT: u8 = 0xa0 | 28;

/// Returns a copy that does not allow early data, or `None` if the bytes are not a session.
/// (`SSL_SESSION_copy_without_early_data` also drops `ticket_age_add`, so the copy could not be
/// resumed.)
pub(crate) fn without_early_data(session: &[u8]) -> Option<Vec<u8>> {
    with_field(session, MAX_EARLY_DATA, &[])
}

/// Returns a serialized session with another time of issue: `age` ago by [`SteadyClock`]. For a
/// [`TicketSealer`](crate::TicketSealer) that measures the age of its tickets by a clock that is
/// never set. Returns `None` if the bytes are not a session.
pub fn session_of_age(session: &[u8], age: Duration) -> Option<Zeroizing<Vec<u8>>> {
    let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
    let issued = SteadyClock::unix_micros().saturating_sub(age).max(0) as u64 / 1_000_000;
    with_field(session, TIME, &time_field(issued)).map(Zeroizing::new)
}

/// Encodes the time field of a session, in seconds since 1970.
fn time_field(time: u64) -> Vec<u8> {
    let bytes = time.to_be_bytes();
    // An INTEGER is as short as possible, and negative if its first bit is set.
    let skip = bytes.iter().take(7).take_while(|byte| **byte == 0).count();
    let mut number = bytes[skip..].to_vec();
    if number[0] & 0x80 != 0 {
        number.insert(0, 0);
    }
    [&[TIME, number.len() as u8 + 2, INTEGER, number.len() as u8][..], &number].concat()
}

/// Returns a copy with the field of this tag replaced, or unchanged if there is none. Returns `None` if
/// the bytes are not a session.
fn with_field(session: &[u8], tag: u8, field: &[u8]) -> Option<Vec<u8>> {
    let (fields, _) = element(session, SEQUENCE)?;
    let Some((before, after)) = split_around(fields, tag) else {
        return Some(session.to_vec());
    };
    let length = before.len() + field.len() + after.len();
    // Reserved at once, because growing would leave copies of the session's secret behind.
    let mut changed = Vec::with_capacity(1 + 1 + size_of::<usize>() + length);
    changed.push(SEQUENCE);
    match length {
        0..=0x7f => changed.push(length as u8),
        _ => {
            let bytes = length.to_be_bytes();
            let skip = bytes.iter().take_while(|byte| **byte == 0).count();
            changed.push(0x80 | (bytes.len() - skip) as u8);
            changed.extend_from_slice(&bytes[skip..]);
        }
    }
    for part in [before, field, after] {
        changed.extend_from_slice(part);
    }
    Some(changed)
}

/// Returns the QUIC early-data context under which the session was issued.
pub fn early_data_context(session: &[u8]) -> Option<&[u8]> {
    let (fields, _) = element(session, SEQUENCE)?;
    let (before, _) = split_around(fields, QUIC_EARLY_DATA_CONTEXT)?;
    let (content, _) = element(&fields[before.len()..], QUIC_EARLY_DATA_CONTEXT)?;
    Some(element(content, OCTET_STRING)?.0)
}

/// Returns when the session's ticket was issued, in seconds since 1970, and its `ticket_age_add`
/// (RFC 8446 section 4.6.1).
pub(crate) fn issued_and_age_add(session: &[u8]) -> Option<(u64, u32)> {
    let (fields, _) = element(session, SEQUENCE)?;
    let field = |tag, kind| {
        let (before, _) = split_around(fields, tag)?;
        let (content, _) = element(&fields[before.len()..], tag)?;
        Some(element(content, kind)?.0)
    };
    let time = field(TIME, INTEGER)?;
    if time.len() > 9 {
        return None;
    }
    let issued = time.iter().fold(0, |time: u64, byte| time << 8 | u64::from(*byte));
    let age_add = field(TICKET_AGE_ADD, OCTET_STRING)?;
    Some((issued, u32::from_be_bytes(age_add.try_into().ok()?)))
}

/// Returns what is before and after the field with this tag.
fn split_around(fields: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let mut rest = fields;
    while let Some((&found, _)) = rest.split_first() {
        let (_, after) = element(rest, found)?;
        if found == tag {
            return Some((&fields[..fields.len() - rest.len()], after));
        }
        rest = after;
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            if let Ok(session) = Session::from_bytes(&bytes) {
                prop_assert!(session.to_bytes().is_ok());
            }
        }
    }

    #[test]
    fn an_inbox_keeps_the_newest_16() {
        let mut inbox = Vec::new();
        for number in 0..40 {
            keep_newest(&mut inbox, number);
        }
        assert_eq!(inbox, (24..40).collect::<Vec<_>>());
    }

    #[test]
    fn a_field_is_found_and_removed() {
        let session = [0x30, 9, 0x02, 1, 1, 0xb8, 0, 0xbc, 2, 0x04, 0];
        assert_eq!(early_data_context(&session), Some(&[][..]));
        let shorter = without_early_data(&session).unwrap();
        assert_eq!(shorter, [0x30, 7, 0x02, 1, 1, 0xbc, 2, 0x04, 0]);
        assert_eq!(without_early_data(&shorter).unwrap(), shorter);
    }

    #[test]
    fn issue_time_and_ticket_age_add_are_read() {
        let session = [0x30, 15, 0xa1, 5, 0x02, 3, 1, 2, 3, 0xb5, 6, 0x04, 4, 0xff, 0, 0, 1];
        assert_eq!(issued_and_age_add(&session), Some((0x010203, 0xff00_0001)));
        let hour = Duration::from_secs(3600);
        let aged = session_of_age(&session, hour).unwrap();
        let (issued, age_add) = issued_and_age_add(&aged).unwrap();
        let now = SteadyClock::unix_micros() as u64 / 1_000_000;
        assert!((now - 3660..=now - 3600).contains(&issued), "{issued}");
        assert_eq!(age_add, 0xff00_0001);
        let before_1970 = session_of_age(&session, Duration::MAX).unwrap();
        assert_eq!(issued_and_age_add(&before_1970), Some((0, 0xff00_0001)));
    }

    #[test]
    fn the_field_of_a_time_is_der() {
        for (time, number) in [
            (0, &[0][..]),
            (0x7f, &[0x7f]),
            (0x80, &[0, 0x80]),
            (0x6543_2100, &[0x65, 0x43, 0x21, 0]),
            (0x8000_0000, &[0, 0x80, 0, 0, 0]),
        ] {
            let field = time_field(time);
            assert_eq!(field[..4], [0xa1, number.len() as u8 + 2, 2, number.len() as u8]);
            assert_eq!(field[4..], *number);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_as_der_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = early_data_context(&bytes);
            let _ = issued_and_age_add(&bytes);
            if let Some(shorter) = without_early_data(&bytes) {
                prop_assert!(shorter.len() <= bytes.len().max(2) + 4);
            }
            if let Some(aged) = session_of_age(&bytes, Duration::ZERO) {
                prop_assert!(aged.len() <= bytes.len().max(2) + 16);
            }
        }
    }
}
