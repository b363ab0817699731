//! Context settings that both roles share: versions, ciphers, groups, key log, clock.

use std::os::raw::{c_char, c_int, c_void};
use std::str::FromStr;
use std::sync::{Arc, LazyLock};
use std::{fmt, ptr};

use boring::error::ErrorStack;
use boring::ex_data::Index;
use boring::ssl::{SslContext, SslContextBuilder, SslMethod, SslMode, SslRef};
use boring_sys as ffi;
use foreign_types::ForeignTypeRef;

use crate::clock::SteadyClock;
use crate::{KeyLog, TlsError, Version};

/// Ciphers and groups in order of preference. The default is BoringSSL's (AES first if the
/// processor has AES instructions; X25519 before the NIST curves).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CipherPolicy {
    /// TLS 1.2 and older: a cipher list in OpenSSL's syntax.
    pub ciphers: Option<String>,
    /// TLS 1.3: names such as `TLS_AES_128_GCM_SHA256`, separated by colons.
    pub tls13_ciphers: Option<String>,
    /// Groups for the key exchange, separated by colons, such as `X25519:P-256`.
    pub groups: Option<String>,
}

/// The TLS 1.3 cipher suites (RFC 8446 appendix B.4) that BoringSSL implements.
const TLS13_CIPHERS: [(&str, u16); 3] = [
    ("TLS_AES_128_GCM_SHA256", 0x1301),
    ("TLS_AES_256_GCM_SHA384", 0x1302),
    ("TLS_CHACHA20_POLY1305_SHA256", 0x1303),
];

/// Creates a context with the settings that both roles share.
pub(crate) fn builder(
    min: Version,
    max: Version,
    policy: &CipherPolicy,
    key_log: Option<Arc<dyn KeyLog>>,
) -> Result<SslContextBuilder, TlsError> {
    let mut context =
        SslContext::builder(SslMethod::tls()).map_err(TlsError::setup("a new context"))?;
    context
        .set_min_proto_version(Some(min.to_boring()))
        .and_then(|()| context.set_max_proto_version(Some(max.to_boring())))
        .map_err(TlsError::setup("the range of TLS versions"))?;
    // Early data can end in the middle of a write, and callers' buffers may move.
    context.set_mode(SslMode::ENABLE_PARTIAL_WRITE | SslMode::ACCEPT_MOVING_WRITE_BUFFER);
    apply(policy, &mut context)?;
    if let Some(key_log) = key_log {
        context.set_keylog_callback(move |_: &SslRef, line: &str| key_log.line(line));
    }
    // SAFETY: the context is valid and the callback is a plain function.
    unsafe { ffi::SSL_CTX_set_current_time_cb(context.as_ptr(), Some(current_time)) };
    Ok(context)
}

/// Returns the names of all groups that BoringSSL implements.
pub fn group_names() -> Vec<&'static str> {
    // SAFETY: the first call returns the length, the second fills at most that many static strings.
    unsafe {
        let count = ffi::SSL_get_all_group_names(ptr::null_mut(), 0);
        let mut names: Vec<*const c_char> = vec![ptr::null(); count];
        let count = ffi::SSL_get_all_group_names(names.as_mut_ptr(), names.len());
        names
            .into_iter()
            .take(count)
            .filter(|name| !name.is_null())
            .filter_map(|name| std::ffi::CStr::from_ptr(name).to_str().ok())
            .filter(|name| !name.is_empty())
            .collect()
    }
}

fn apply(policy: &CipherPolicy, context: &mut SslContextBuilder) -> Result<(), TlsError> {
    if let Some(list) = &policy.ciphers {
        context
            .set_strict_cipher_list(list)
            .map_err(|_: ErrorStack| TlsError::UnknownCipher(list.clone()))?;
    }
    if let Some(list) = &policy.tls13_ciphers {
        set_tls13_ciphers(context, list)?;
    }
    if let Some(list) = &policy.groups {
        context.set_curves_list(list).map_err(|_: ErrorStack| TlsError::UnknownGroup {
            list: list.clone(),
            allowed: group_names().join(", "),
        })?;
    }
    Ok(())
}

fn set_tls13_ciphers(context: &mut SslContextBuilder, list: &str) -> Result<(), TlsError> {
    let unknown = || TlsError::UnknownCipher(list.to_owned());
    let ids = list
        .split(':')
        .map(|name| TLS13_CIPHERS.iter().find(|(known, _)| *known == name).map(|(_, id)| *id))
        .collect::<Option<Vec<u16>>>()
        .ok_or_else(unknown)?;
    // SAFETY: `ids` is readable for its length and copied; no flags are given.
    let done = unsafe {
        ffi::SSL_CTX_set1_tls13_ciphers(context.as_ptr(), ids.as_ptr(), ptr::null(), ids.len())
    };
    if done == 1 { Ok(()) } else { Err(unknown()) }
}

unsafe extern "C" fn current_time(_: *const ffi::SSL, out: *mut ffi::timeval) {
    let micros = SteadyClock::unix_micros();
    // SAFETY: BoringSSL passes a writable `timeval`.
    unsafe {
        (*out).tv_sec = micros.div_euclid(1_000_000);
        (*out).tv_usec = micros.rem_euclid(1_000_000);
    }
}

/// Encodes ALPN protocol names (RFC 7301 section 3.1). Skips names that are empty or longer than
/// 255 bytes.
pub(crate) fn alpn_wire(protocols: &[Vec<u8>]) -> Vec<u8> {
    protocols
        .iter()
        .filter(|name| !name.is_empty() && name.len() <= 255)
        .flat_map(|name| std::iter::once(name.len() as u8).chain(name.iter().copied()))
        .collect()
}

/// A slot for data on connections, allocated once per process.
pub(crate) type Slot<T> = LazyLock<Index<boring::ssl::Ssl, T>>;

/// Whether the server's or the client's cipher order decides.
///
/// Without a list in [`CipherPolicy`], TLS 1.2 uses ciphers with ECDHE and AEAD only. If versions
/// below 1.2 are enabled, all other ciphers follow, since those versions have no AEAD. A configured
/// list is used unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CipherPreference {
    /// Prefers what is cheap for both peers (the default). With AES instructions, AES and ChaCha20
    /// cost the server about the same, so the client's order decides: a phone without AES
    /// instructions lists ChaCha20 first. Without them, the server prefers ChaCha20. Between ciphers
    /// that are not equally good, the server's order decides.
    #[default]
    Hardware,
    /// Always uses the client's order.
    Client,
}

/// The TLS 1.2 ciphers with forward secrecy and AEAD, in two groups of equal preference.
const TLS12_EQUAL_CIPHERS: &str = "[ECDHE-ECDSA-AES128-GCM-SHA256|ECDHE-ECDSA-CHACHA20-POLY1305|\
    ECDHE-ECDSA-AES256-GCM-SHA384]:[ECDHE-RSA-AES128-GCM-SHA256|ECDHE-RSA-CHACHA20-POLY1305|\
    ECDHE-RSA-AES256-GCM-SHA384]";

/// The same ciphers with ChaCha20 first, for processors without AES instructions.
const TLS12_CHACHA_FIRST: &str = "ECDHE-ECDSA-CHACHA20-POLY1305:[ECDHE-ECDSA-AES128-GCM-SHA256|\
    ECDHE-ECDSA-AES256-GCM-SHA384]:ECDHE-RSA-CHACHA20-POLY1305:[ECDHE-RSA-AES128-GCM-SHA256|\
    ECDHE-RSA-AES256-GCM-SHA384]";

/// The TLS 1.3 ciphers, all of equal preference.
const TLS13_EQUAL_CIPHERS: [u16; 3] = [0x1301, 0x1302, 0x1303];

impl CipherPreference {
    pub(crate) fn apply(
        self,
        policy: &CipherPolicy,
        min_version: Version,
        context: &mut SslContextBuilder,
    ) -> Result<(), TlsError> {
        // SAFETY: reads a CPU feature.
        let aes = unsafe { ffi::EVP_has_aes_hardware() } == 1;
        let refused = TlsError::setup("the order of ciphers");
        if policy.ciphers.is_none() {
            let preferred =
                if self == Self::Client || aes { TLS12_EQUAL_CIPHERS } else { TLS12_CHACHA_FIRST };
            // Versions below TLS 1.2 have no AEAD.
            let others = if min_version < Version::Tls12 { ":ALL" } else { "" };
            context.set_strict_cipher_list(&format!("{preferred}{others}")).map_err(&refused)?;
        }
        if self == Self::Hardware {
            // SAFETY: the context is valid, and the callback has the expected signature.
            unsafe {
                ffi::SSL_CTX_set_cert_cb(
                    context.as_ptr(),
                    Some(prefer_server_order),
                    ptr::null_mut(),
                );
            }
        }
        // In TLS 1.3, BoringSSL uses the client's order by default only with AES instructions.
        if self == Self::Client && policy.tls13_ciphers.is_none() {
            let flags = [ffi::SSL_CIPHER_FLAG_EQUAL_PREFERENCE_WITH_NEXT as u32; 2];
            let flags = [flags[0], flags[1], 0];
            let ids = TLS13_EQUAL_CIPHERS;
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

/// Called by BoringSSL once the version is known, before it selects a cipher. Not used in TLS 1.3,
/// where the option would also apply to groups: a client whose key share is for another group would
/// lose a round trip and its early data.
unsafe extern "C" fn prefer_server_order(ssl: *mut ffi::SSL, _: *mut c_void) -> c_int {
    const CONTINUE: c_int = 1;
    // SAFETY: BoringSSL passes a connection that nobody else uses meanwhile.
    unsafe {
        if ffi::SSL_version(ssl) < ffi::TLS1_3_VERSION as c_int {
            ffi::SSL_set_options(ssl, ffi::SSL_OP_CIPHER_SERVER_PREFERENCE as u32);
        }
    }
    CONTINUE
}

/// Whether HTTP/2 may be used with the cipher that the server has selected. RFC 9113 appendix A
/// prohibits TLS 1.2 ciphers that are not both ephemeral and AEAD.
pub(crate) fn allows_http2(ssl: &SslRef) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_names_include_the_common_groups() {
        let names = group_names();
        assert!(names.contains(&"X25519") && names.contains(&"P-256"), "{names:?}");
    }

    #[test]
    fn an_unknown_group_is_rejected_with_the_list_of_known_ones() {
        let policy = CipherPolicy { groups: Some("X25519:Q-1".into()), ..CipherPolicy::default() };
        let error = builder(Version::Tls12, Version::Tls13, &policy, None).err().unwrap();
        assert!(error.to_string().contains("X25519"), "{error}");
        let policy = CipherPolicy { tls13_ciphers: Some("TLS_X".into()), ..Default::default() };
        assert!(builder(Version::Tls12, Version::Tls13, &policy, None).is_err());
    }
}
