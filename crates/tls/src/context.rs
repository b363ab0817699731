use std::os::raw::c_char;
use std::ptr;
use std::sync::{Arc, LazyLock};

use boring::error::ErrorStack;
use boring::ex_data::Index;
use boring::ssl::{SslContext, SslContextBuilder, SslMethod, SslMode, SslRef};
use boring_sys as ffi;

use crate::clock::SteadyClock;
use crate::{KeyLog, TlsError, Version};

/// Which ciphers and groups to use, in order of preference. `Default` leaves both to the library
/// (AES first where the processor has it; X25519 before the NIST curves).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CipherPolicy {
    /// TLS 1.2 and older: a cipher list as OpenSSL writes them.
    pub ciphers: Option<String>,
    /// TLS 1.3: names such as `TLS_AES_128_GCM_SHA256`, separated by colons.
    pub tls13_ciphers: Option<String>,
    /// Groups for the key exchange such as `X25519:P-256`, separated by colons.
    pub groups: Option<String>,
}

/// The names of the TLS 1.3 suites (RFC 8446 appendix B.4) that the library has.
const TLS13_CIPHERS: [(&str, u16); 3] = [
    ("TLS_AES_128_GCM_SHA256", 0x1301),
    ("TLS_AES_256_GCM_SHA384", 0x1302),
    ("TLS_CHACHA20_POLY1305_SHA256", 0x1303),
];

/// A context of either role with what both have in common.
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
    // Early data ends at a limit in the middle of a write, and callers' buffers may move.
    context.set_mode(SslMode::ENABLE_PARTIAL_WRITE | SslMode::ACCEPT_MOVING_WRITE_BUFFER);
    apply(policy, &mut context)?;
    if let Some(key_log) = key_log {
        context.set_keylog_callback(move |_: &SslRef, line: &str| key_log.line(line));
    }
    // SAFETY: the context is valid and the callback is a plain function.
    unsafe { ffi::SSL_CTX_set_current_time_cb(context.as_ptr(), Some(current_time)) };
    Ok(context)
}

/// The names of all groups that the library knows.
pub fn group_names() -> Vec<&'static str> {
    // SAFETY: asked for its length first, the library fills at most that many static strings.
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
    // SAFETY: the library passes a writable `timeval`.
    unsafe {
        (*out).tv_sec = micros.div_euclid(1_000_000);
        (*out).tv_usec = micros.rem_euclid(1_000_000);
    }
}

/// The protocols of ALPN as the wire has them: each with its length before it (RFC 7301 section
/// 3.1). Names that are empty or over 255 bytes are left out.
pub(crate) fn alpn_wire(protocols: &[Vec<u8>]) -> Vec<u8> {
    protocols
        .iter()
        .filter(|name| !name.is_empty() && name.len() <= 255)
        .flat_map(|name| std::iter::once(name.len() as u8).chain(name.iter().copied()))
        .collect()
}

/// A slot on a connection object; made once and for the whole process.
pub(crate) type Slot<T> = LazyLock<Index<boring::ssl::Ssl, T>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_names_hold_the_common_ones() {
        let names = group_names();
        assert!(names.contains(&"X25519") && names.contains(&"P-256"), "{names:?}");
    }

    #[test]
    fn unknown_names_are_refused_with_the_allowed_ones() {
        let policy = CipherPolicy { groups: Some("X25519:Q-1".into()), ..CipherPolicy::default() };
        let error = builder(Version::Tls12, Version::Tls13, &policy, None).err().unwrap();
        assert!(error.to_string().contains("X25519"), "{error}");
        let policy = CipherPolicy { tls13_ciphers: Some("TLS_X".into()), ..Default::default() };
        assert!(builder(Version::Tls12, Version::Tls13, &policy, None).is_err());
    }
}
