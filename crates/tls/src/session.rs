use std::fmt;

use boring::ssl::{SslSession, SslSessionRef};
use boring_sys as ffi;
use foreign_types::ForeignTypeRef;

use crate::clock::SteadyClock;
use crate::{TlsError, Version};

/// What a client needs to resume: the ticket, its secret and the properties of the connection
/// that issued it (RFC 8446 section 4.6.1; RFC 5077 before it).
#[derive(Clone)]
pub struct Session(SslSession);

impl Session {
    /// Reads what [`Session::to_bytes`] wrote, also in another process.
    ///
    /// # Errors
    /// [`TlsError::BadSession`] when the bytes are truncated or none of ours. The bytes carry no
    /// proof of origin: keep them where only their owner can write.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TlsError> {
        SslSession::from_der(bytes)
            .map(Self)
            .map_err(|stack| TlsError::BadSession(crate::error::reasons(&stack)))
    }

    /// The session as bytes. They contain its secret.
    ///
    /// # Errors
    /// [`TlsError::Setup`] when the library cannot write it, which means no memory.
    pub fn to_bytes(&self) -> Result<Vec<u8>, TlsError> {
        self.0.to_der().map_err(TlsError::setup("a session to be written"))
    }

    /// Whether early data may be offered with it.
    pub fn early_data_capable(&self) -> bool {
        // SAFETY: the pointer is valid while `self` lives, and the call only reads.
        unsafe { ffi::SSL_SESSION_early_data_capable(self.0.as_ptr()) == 1 }
    }

    /// Whether it must be used only once (every TLS 1.3 ticket, RFC 8446 appendix C.4).
    pub fn single_use(&self) -> bool {
        // SAFETY: as above.
        unsafe { ffi::SSL_SESSION_should_be_single_use(self.0.as_ptr()) == 1 }
    }

    /// The version of the connection that issued it.
    pub fn version(&self) -> Option<Version> {
        Version::from_boring(self.0.protocol_version())
    }

    /// When it was issued and for how long it is good, both in seconds (since the Unix epoch, and
    /// from then on).
    pub fn issued_and_lifetime(&self) -> (u64, u32) {
        // SAFETY: as above.
        unsafe {
            (
                ffi::SSL_SESSION_get_time(self.0.as_ptr()),
                ffi::SSL_SESSION_get_timeout(self.0.as_ptr()),
            )
        }
    }

    /// The same session, as if it had been issued that much earlier. The ClientHello then states a
    /// ticket age that the server does not reckon, and a server that checks freshness (RFC 8446
    /// section 8.3) resumes it and refuses its early data: a way to try refusals on any server.
    ///
    /// # Errors
    /// [`TlsError::BadSession`] when the library cannot copy it.
    pub fn issued_earlier(&self, seconds: u32) -> Result<Self, TlsError> {
        // The library shares sessions by reference, so only a copy may be changed.
        let copy = Self::from_bytes(&self.to_bytes()?)?;
        let (issued, _) = copy.issued_and_lifetime();
        // SAFETY: the pointer is valid while `copy` lives, and nobody else has the copy yet.
        unsafe {
            ffi::SSL_SESSION_set_time(copy.0.as_ptr(), issued.saturating_sub(seconds.into()))
        };
        Ok(copy)
    }

    /// The same session, as if it had been issued that much later: the ClientHello then states less
    /// than the ticket's age. A session whose time of issue is in the future is not offered, so the
    /// ticket has to be that old.
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

    /// The same session for a ClientHello with early data that is about to be written.
    ///
    /// The library reckons in whole seconds, so the age that it states (RFC 8446 section 4.2.11.1)
    /// may be almost a second more than it is. Servers that know better take that for a forgery and
    /// refuse early data (GnuTLS does); a little less than it is they put down to the way. So the
    /// session is made a second younger, unless it is younger than that.
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
}
