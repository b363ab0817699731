use std::fmt;
use std::os::raw::{c_int, c_void};
use std::ptr;
use std::str::FromStr;

use boring::error::ErrorStack;
use boring::ssl::{SslContextBuilder, SslRef};
use boring_sys as ffi;
use foreign_types::ForeignTypeRef;

use crate::{CipherPolicy, TlsError, Version};

/// Whose order counts among ciphers, on a server. Where a [`CipherPolicy`] names none for TLS 1.2,
/// they are those with ECDHE and AEAD alone, and below TLS 1.2, which has none of these, all others
/// after them. A list that is given stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CipherPreference {
    /// What is cheap here and there. With AES instructions, AES and ChaCha20 cost this machine
    /// about the same, so the client's order counts: a phone without them names ChaCha20 first.
    /// Without them ChaCha20 comes first for whoever has it. Where ciphers are not equally good,
    /// this server's order counts. The default.
    #[default]
    Hardware,
    /// The client's order, whatever this machine has.
    Client,
}

/// The ciphers of TLS 1.2 that have forward secrecy and AEAD, in two groups of equals.
const EQUALS_1_2: &str = "[ECDHE-ECDSA-AES128-GCM-SHA256|ECDHE-ECDSA-CHACHA20-POLY1305|\
    ECDHE-ECDSA-AES256-GCM-SHA384]:[ECDHE-RSA-AES128-GCM-SHA256|ECDHE-RSA-CHACHA20-POLY1305|\
    ECDHE-RSA-AES256-GCM-SHA384]";

/// The same with ChaCha20 first, for machines without AES instructions.
const CHACHA_FIRST_1_2: &str = "ECDHE-ECDSA-CHACHA20-POLY1305:[ECDHE-ECDSA-AES128-GCM-SHA256|\
    ECDHE-ECDSA-AES256-GCM-SHA384]:ECDHE-RSA-CHACHA20-POLY1305:[ECDHE-RSA-AES128-GCM-SHA256|\
    ECDHE-RSA-AES256-GCM-SHA384]";

/// Those of TLS 1.3.
const EQUALS_1_3: [u16; 3] = [0x1301, 0x1302, 0x1303];

impl CipherPreference {
    pub(crate) fn apply(
        self,
        policy: &CipherPolicy,
        min_version: Version,
        context: &mut SslContextBuilder,
    ) -> Result<(), TlsError> {
        // SAFETY: a look at the processor.
        let aes = unsafe { ffi::EVP_has_aes_hardware() } == 1;
        let refused = TlsError::setup("the order of ciphers");
        if policy.ciphers.is_none() {
            let good = if self == Self::Client || aes { EQUALS_1_2 } else { CHACHA_FIRST_1_2 };
            // What is older than TLS 1.2 has no AEAD.
            let others = if min_version < Version::Tls12 { ":ALL" } else { "" };
            context.set_strict_cipher_list(&format!("{good}{others}")).map_err(&refused)?;
        }
        if self == Self::Hardware {
            // SAFETY: the context is valid, and the callback fits what the library calls it with.
            unsafe {
                ffi::SSL_CTX_set_cert_cb(context.as_ptr(), Some(prefer_ours), ptr::null_mut());
            }
        }
        // With AES instructions the library takes the client's order by itself in TLS 1.3.
        if self == Self::Client && policy.tls13_ciphers.is_none() {
            let flags = [ffi::SSL_CIPHER_FLAG_EQUAL_PREFERENCE_WITH_NEXT as u32; 2];
            let flags = [flags[0], flags[1], 0];
            let ids = EQUALS_1_3;
            // SAFETY: both arrays are readable for the length given, and copied.
            let done = unsafe {
                ffi::SSL_CTX_set1_tls13_ciphers(
                    context.as_ptr(),
                    ids.as_ptr(),
                    flags.as_ptr(),
                    ids.len(),
                )
            };
            if done != 1 {
                return Err(refused(ErrorStack::get()));
            }
        }
        Ok(())
    }
}

/// Called by the library once the version is known, before it chooses a cipher. In TLS 1.3 ours
/// would also be the order of groups, and cost clients whose key share is of another one a round
/// trip and their early data.
unsafe extern "C" fn prefer_ours(ssl: *mut ffi::SSL, _: *mut c_void) -> c_int {
    const GO_ON: c_int = 1;
    // SAFETY: called by the library with a connection that nobody else uses meanwhile.
    unsafe {
        if ffi::SSL_version(ssl) < ffi::TLS1_3_VERSION as c_int {
            ffi::SSL_set_options(ssl, ffi::SSL_OP_CIPHER_SERVER_PREFERENCE as u32);
        }
    }
    GO_ON
}

/// Whether HTTP/2 may be spoken under the cipher that a server has chosen: RFC 9113 appendix A
/// prohibits all of TLS 1.2 that are not both ephemeral and AEAD.
pub(crate) fn is_good_for_http2(ssl: &SslRef) -> bool {
    // SAFETY: the connection is valid, and ciphers are static.
    unsafe {
        let cipher = ffi::SSL_get_pending_cipher(ssl.as_ptr());
        let ephemeral = |kx| kx == ffi::NID_kx_ecdhe as c_int || kx == ffi::NID_kx_any as c_int;
        !cipher.is_null()
            && ffi::SSL_CIPHER_is_aead(cipher) == 1
            && ephemeral(ffi::SSL_CIPHER_get_kx_nid(cipher))
    }
}

impl FromStr for CipherPreference {
    type Err = TlsError;

    fn from_str(word: &str) -> Result<Self, TlsError> {
        match word {
            "hardware" => Ok(Self::Hardware),
            "client" => Ok(Self::Client),
            _ => Err(TlsError::UnknownPreference(word.to_owned())),
        }
    }
}

impl fmt::Display for CipherPreference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hardware => "hardware",
            Self::Client => "client",
        })
    }
}
