//! Identifies the first flight of a client that offers early data, before BoringSSL accepts or
//! refuses it.

use std::os::raw::c_int;
use std::sync::LazyLock;
use std::{ptr, slice};

use boring::sha::Sha256;
use boring::ssl::{Ssl, SslContextBuilder, SslRef, SslVersion};
use boring_sys as ffi;
use foreign_types::ForeignTypeRef;

use crate::context::Slot;
use crate::pre_shared_key::PreSharedKey;
use crate::{SteadyClock, session, ticket};

/// A first flight that offers early data, accepted or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferedFlight {
    /// Identifies the flight: SHA-256 over the first ClientHello up to its binders, and the first
    /// binder (RFC 8446 section 8.2). All copies of a flight have the same digest, and no other
    /// flight has it: the binder is computed from the ticket's secret and the ClientHello before it
    /// (section 4.2.11.2). The client random would not suffice: an attacker could send a
    /// ClientHello of its own with the victim's client random, and claim the victim's flight first.
    pub digest: [u8; 32],
    /// The ticket age stated by the client minus the one measured by the server, in seconds (RFC
    /// 8446 section 8.3). `None` if the server cannot open the ticket.
    pub ticket_age_skew: Option<i32>,
    /// When the skew was measured, in microseconds since 1970 by [`SteadyClock`]. Time and skew
    /// together tell when the stated age is exact, however long the handshake takes, and even if
    /// the clock is set meanwhile.
    pub measured_at: i64,
}

/// Set on a connection whose first ClientHello offers early data.
static OFFERED: Slot<OfferedFlight> =
    LazyLock::new(|| Ssl::new_ex_index().expect("an index for an offer of early data"));

/// Makes a server's context record offers of early data.
pub(crate) fn install(context: &mut SslContextBuilder) {
    // SAFETY: the context is valid, and the callback has the expected signature.
    unsafe { ffi::SSL_CTX_set_dos_protection_cb(context.as_ptr(), Some(inspect_client_hello)) };
}

/// Returns the flight if the first ClientHello offered early data (RFC 8446 section 4.2.10).
pub(crate) fn offered_flight(ssl: &SslRef) -> Option<OfferedFlight> {
    ssl.ex_data(*OFFERED).copied()
}

/// Called by BoringSSL for each first ClientHello, once it knows whether a session is resumed. This
/// is its hook for DoS protection; it is used here to inspect only, and never rejects.
unsafe extern "C" fn inspect_client_hello(hello: *const ffi::SSL_CLIENT_HELLO) -> c_int {
    const CONTINUE: c_int = 1;
    // SAFETY: BoringSSL passes a ClientHello that is valid during the call, of a connection that
    // nobody else uses meanwhile.
    unsafe {
        let Some(psk) = extension(hello, ffi::TLSEXT_TYPE_pre_shared_key as u16) else {
            return CONTINUE;
        };
        let Some(offered) = PreSharedKey::read(psk) else { return CONTINUE };
        let ssl = SslRef::from_ptr_mut((*hello).ssl);
        // A client may resume a session of TLS 1.2 beside the ticket that it offers here.
        let resumed = ssl.session_reused() && ssl.version2() == Some(SslVersion::TLS1_3);
        if !resumed {
            ticket::use_up_unresumed(ssl, offered.identity);
        }
        if extension(hello, ffi::TLSEXT_TYPE_early_data as u16).is_none() {
            return CONTINUE;
        }
        let message = slice::from_raw_parts((*hello).client_hello, (*hello).client_hello_len);
        // pre_shared_key is the last extension (RFC 8446 section 4.2.11), so the binders end the
        // message.
        let Some(truncated) = message.len().checked_sub(offered.binders_length) else {
            return CONTINUE;
        };
        let mut digest = Sha256::new();
        digest.update(&message[..truncated]);
        digest.update(offered.binder);
        let ticket_age_skew = match resumed {
            true => Some(ffi::SSL_get_ticket_age_skew((*hello).ssl)),
            false => skew_of_unused_ticket(ssl, &offered),
        };
        // The clock is read after BoringSSL has read it for the skew: a pause in between makes a
        // strike record live longer, never shorter.
        let measured_at = SteadyClock::unix_micros();
        let digest = digest.finish();
        ssl.set_ex_data(*OFFERED, OfferedFlight { digest, ticket_age_skew, measured_at });
    }
    CONTINUE
}

/// Computes the skew of a ticket that BoringSSL did not use (because of version, cipher or site). A
/// copy of its flight could be accepted under another configuration.
fn skew_of_unused_ticket(ssl: &SslRef, offered: &PreSharedKey<'_>) -> Option<i32> {
    let session = ticket::reopen(ssl, offered.identity)?.take_session()?;
    let (issued, age_add) = session::issued_and_age_add(&session)?;
    let now = SteadyClock::unix_micros().div_euclid(1_000_000);
    let stated = i64::from(offered.obfuscated_age.wrapping_sub(age_add) / 1000);
    let skew = stated - now.saturating_sub_unsigned(issued);
    Some(skew.clamp(i32::MIN.into(), i32::MAX.into()) as i32)
}

/// Returns the content of an extension.
///
/// # Safety
/// `hello` is valid, and stays so for as long as the result is used.
unsafe fn extension<'a>(hello: *const ffi::SSL_CLIENT_HELLO, kind: u16) -> Option<&'a [u8]> {
    let (mut data, mut length) = (ptr::null(), 0);
    // SAFETY: the ClientHello is valid; the result points into it.
    unsafe {
        let found = ffi::SSL_early_callback_ctx_extension_get(hello, kind, &mut data, &mut length);
        match (found, length) {
            (1, 0) => Some(&[]),
            (1, _) => Some(slice::from_raw_parts(data, length)),
            _ => None,
        }
    }
}
