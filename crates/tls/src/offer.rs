//! The first flight that a client offers early data with, which the library describes only if it
//! accepts it.

use std::os::raw::c_int;
use std::sync::LazyLock;
use std::{ptr, slice};

use boring::sha::Sha256;
use boring::ssl::{Ssl, SslContextBuilder, SslRef};
use boring_sys as ffi;
use foreign_types::ForeignTypeRef;

use crate::context::Slot;
use crate::{OpenedTicket, SteadyClock, session_der, ticket};

/// A first flight with early data, as its ClientHello describes it, whether TLS accepts it or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferedFlight {
    /// Names the flight: SHA-256 over the first ClientHello up to its binders, and the first
    /// binder. A copy has the same name, and no other flight has it: the binder is computed from
    /// the ticket's secret and all of the ClientHello before it (RFC 8446 section 4.2.11.2), and
    /// the Finished message of a handshake without the ticket covers the ClientHello too. So
    /// knowing a flight's client random is not enough to claim it.
    pub name: [u8; 32],
    /// The ticket age that the client states less the one that the server computes, in seconds
    /// (RFC 8446 section 8.3). `None`: the ticket is not one that this server can open.
    pub ticket_age_skew: Option<i32>,
}

/// Set for a connection whose first ClientHello offers early data.
static OFFERED: Slot<OfferedFlight> =
    LazyLock::new(|| Ssl::new_ex_index().expect("an index for an offer of early data"));

/// Makes a server's context take note of offers.
pub(crate) fn install(context: &mut SslContextBuilder) {
    // SAFETY: the context is valid, and the callback fits what the library calls it with.
    unsafe { ffi::SSL_CTX_set_dos_protection_cb(context.as_ptr(), Some(look)) };
}

/// The flight that a server's client offers early data with in its first ClientHello (RFC 8446
/// section 4.2.10).
pub(crate) fn flight(ssl: &SslRef) -> Option<OfferedFlight> {
    ssl.ex_data(*OFFERED).copied()
}

/// Called by the library for each first ClientHello, once it knows whether a session is resumed.
/// The name is its own: no connection is refused here.
unsafe extern "C" fn look(hello: *const ffi::SSL_CLIENT_HELLO) -> c_int {
    const GO_ON: c_int = 1;
    // SAFETY: called by the library with a ClientHello that is valid during the call, of a
    // connection that nobody else uses meanwhile.
    unsafe {
        if extension(hello, ffi::TLSEXT_TYPE_early_data as u16).is_none() {
            return GO_ON;
        }
        let Some(psk) = extension(hello, ffi::TLSEXT_TYPE_pre_shared_key as u16) else {
            return GO_ON;
        };
        let message = slice::from_raw_parts((*hello).client_hello, (*hello).client_hello_len);
        let Some(offered) = PreSharedKey::read(psk) else { return GO_ON };
        // pre_shared_key is the last extension (RFC 8446 section 4.2.11), so the binders end the
        // message.
        let Some(truncated) = message.len().checked_sub(offered.binders_length) else {
            return GO_ON;
        };
        let mut digest = Sha256::new();
        digest.update(&message[..truncated]);
        digest.update(offered.binder);
        let ssl = SslRef::from_ptr_mut((*hello).ssl);
        let ticket_age_skew = match ssl.session_reused() {
            true => Some(ffi::SSL_get_ticket_age_skew((*hello).ssl)),
            false => skew_of_unused(ssl, &offered),
        };
        ssl.set_ex_data(*OFFERED, OfferedFlight { name: digest.finish(), ticket_age_skew });
    }
    GO_ON
}

/// The skew of a ticket that the library has not used (another version or cipher, another site).
/// A copy of its flight may be accepted under another configuration.
fn skew_of_unused(ssl: &SslRef, offered: &PreSharedKey<'_>) -> Option<i32> {
    let session = match ticket::open_again(ssl, offered.identity)? {
        OpenedTicket::Session(session) | OpenedTicket::WithoutEarlyData(session, _) => session,
        OpenedTicket::Elsewhere(_) | OpenedTicket::Ignored => return None,
    };
    let (issued, age_add) = session_der::issued_and_age_add(&session)?;
    let now = SteadyClock::unix_micros().div_euclid(1_000_000);
    let stated = i64::from(offered.obfuscated_age.wrapping_sub(age_add) / 1000);
    let skew = stated - now.saturating_sub_unsigned(issued);
    Some(skew.clamp(i32::MIN.into(), i32::MAX.into()) as i32)
}

/// # Safety
/// `hello` is valid, and stays so for as long as the result is used.
unsafe fn extension<'a>(hello: *const ffi::SSL_CLIENT_HELLO, kind: u16) -> Option<&'a [u8]> {
    let (mut data, mut length) = (ptr::null(), 0);
    // SAFETY: the ClientHello is valid; the library points into it.
    unsafe {
        let found = ffi::SSL_early_callback_ctx_extension_get(hello, kind, &mut data, &mut length);
        match (found, length) {
            (1, 0) => Some(&[]),
            (1, _) => Some(slice::from_raw_parts(data, length)),
            _ => None,
        }
    }
}

/// The part of a pre_shared_key extension (RFC 8446 section 4.2.11) that the server looks at: the
/// library uses the first identity only.
#[derive(Debug, PartialEq, Eq)]
struct PreSharedKey<'a> {
    identity: &'a [u8],
    obfuscated_age: u32,
    binder: &'a [u8],
    /// Of the list of binders, with the two bytes of its length.
    binders_length: usize,
}

impl<'a> PreSharedKey<'a> {
    fn read(extension: &'a [u8]) -> Option<Self> {
        let (identities, binders) = sized(extension)?;
        let (identity, rest) = sized(identities)?;
        let (age, _) = rest.split_first_chunk()?;
        let (list, _) = sized(binders)?;
        let (&length, list) = list.split_first()?;
        Some(Self {
            identity,
            obfuscated_age: u32::from_be_bytes(*age),
            binder: list.get(..length.into())?,
            binders_length: binders.len(),
        })
    }
}

/// A vector with a length of two bytes, and what follows it.
fn sized(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(u16::from_be_bytes(*length).into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rfc8446_4_2_11_the_first_identity_and_binder() {
        let extension = [
            0, 15, 0, 2, 7, 8, 0, 0, 1, 2, 0, 1, 9, 0, 0, 0, 3, // two identities
            0, 6, 2, 5, 6, 2, 1, 1, // two binders
        ];
        let expected = PreSharedKey {
            identity: &[7, 8],
            obfuscated_age: 0x0102,
            binder: &[5, 6],
            binders_length: 8,
        };
        assert_eq!(PreSharedKey::read(&extension), Some(expected));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Some(read) = PreSharedKey::read(&bytes) {
                prop_assert!(read.binders_length <= bytes.len());
            }
        }
    }
}
