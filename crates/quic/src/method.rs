//! The callbacks through which BoringSSL provides secrets and handshake messages to QUIC, in place of
//! records.

use std::os::raw::c_int;
use std::slice;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use boring::ex_data::Index;
use boring::ssl::{Ssl, SslContextBuilder, SslRef};
use boring_sys as ffi;
use firstflight_tls::KeyLog;
use foreign_types::ForeignTypeRef;

use crate::suite::{Secret, Suite};

/// An encryption level (RFC 9001 section 4.1.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Initial = 0,
    Early = 1,
    Handshake = 2,
    Application = 3,
}

impl Level {
    fn from_ffi(level: ffi::ssl_encryption_level_t) -> Option<Self> {
        use ffi::ssl_encryption_level_t as L;
        match level {
            L::ssl_encryption_initial => Some(Self::Initial),
            L::ssl_encryption_early_data => Some(Self::Early),
            L::ssl_encryption_handshake => Some(Self::Handshake),
            L::ssl_encryption_application => Some(Self::Application),
            _ => None,
        }
    }

    pub(crate) fn to_ffi(self) -> ffi::ssl_encryption_level_t {
        ffi::ssl_encryption_level_t(self as _)
    }
}

/// A connection's output that was not taken yet.
#[derive(Default)]
pub(crate) struct PendingOutput {
    /// Read secrets, by level.
    pub(crate) read: [Option<Secret>; 4],
    /// Write secrets, by level.
    pub(crate) write: [Option<Secret>; 4],
    /// Handshake messages for the peer, by level.
    pub(crate) messages: [Vec<u8>; 4],
    /// The alert that ended the connection.
    pub(crate) alert: Option<u8>,
    /// Lines for the key log.
    pub(crate) key_lines: Vec<String>,
}

static PENDING_OUTPUT: LazyLock<Index<Ssl, Mutex<PendingOutput>>> =
    LazyLock::new(|| Ssl::new_ex_index().expect("an index for pending output"));

/// Makes a connection store its output.
pub(crate) fn prepare(ssl: &mut SslRef) {
    ssl.set_ex_data(*PENDING_OUTPUT, Mutex::default());
}

/// Returns the pending output of a prepared connection.
pub(crate) fn pending_output(ssl: &SslRef) -> MutexGuard<'_, PendingOutput> {
    let output = ssl.ex_data(*PENDING_OUTPUT).expect("every connection here is prepared");
    output.lock().unwrap_or_else(PoisonError::into_inner)
}

static METHOD: ffi::SSL_QUIC_METHOD = ffi::SSL_QUIC_METHOD {
    set_read_secret: Some(set_read_secret),
    set_write_secret: Some(set_write_secret),
    add_handshake_data: Some(add_handshake_data),
    flush_flight: Some(flush_flight),
    send_alert: Some(send_alert),
};

/// Makes the connections of a context use QUIC. Key log lines are stored with the connection, so the
/// lines of a discarded handshake are never written.
pub(crate) fn install(context: &mut SslContextBuilder, key_log: Option<&Arc<dyn KeyLog>>) {
    // SAFETY: the context is valid, and the method is static.
    let done = unsafe { ffi::SSL_CTX_set_quic_method(context.as_ptr(), &METHOD) };
    assert_eq!(done, 1, "a context for TLS takes the method");
    if key_log.is_some() {
        context
            .set_keylog_callback(|ssl, line| pending_output(ssl).key_lines.push(line.to_owned()));
    }
}

/// The connection that is the argument of a callback.
///
/// # Safety
/// `ssl` must come from BoringSSL, which calls back only while the connection is valid.
unsafe fn connection<'a>(ssl: *mut ffi::SSL) -> &'a SslRef {
    // SAFETY: see above.
    unsafe { SslRef::from_ptr(ssl) }
}

/// # Safety
/// `cipher` must be valid and `secret` readable for `secret_len` bytes, as in the callbacks
/// `set_read_secret` and `set_write_secret`.
unsafe fn secret(
    cipher: *const ffi::SSL_CIPHER,
    secret: *const u8,
    secret_len: usize,
) -> Option<Secret> {
    // SAFETY: the cipher is valid, the secret readable for its length.
    unsafe {
        let suite = Suite::from_id(ffi::SSL_CIPHER_get_protocol_id(cipher))?;
        Secret::new(suite, slice::from_raw_parts(secret, secret_len))
    }
}

unsafe extern "C" fn set_read_secret(
    ssl: *mut ffi::SSL,
    level: ffi::ssl_encryption_level_t,
    cipher: *const ffi::SSL_CIPHER,
    bytes: *const u8,
    length: usize,
) -> c_int {
    // SAFETY: called by the library with a valid connection, cipher and secret.
    let (connection, secret) = unsafe { (connection(ssl), secret(cipher, bytes, length)) };
    let Some(level) = Level::from_ffi(level) else { return 0 };
    pending_output(connection).read[level as usize] = secret;
    1
}

unsafe extern "C" fn set_write_secret(
    ssl: *mut ffi::SSL,
    level: ffi::ssl_encryption_level_t,
    cipher: *const ffi::SSL_CIPHER,
    bytes: *const u8,
    length: usize,
) -> c_int {
    // SAFETY: called by the library with a valid connection, cipher and secret.
    let (connection, secret) = unsafe { (connection(ssl), secret(cipher, bytes, length)) };
    let Some(level) = Level::from_ffi(level) else { return 0 };
    pending_output(connection).write[level as usize] = secret;
    1
}

unsafe extern "C" fn add_handshake_data(
    ssl: *mut ffi::SSL,
    level: ffi::ssl_encryption_level_t,
    bytes: *const u8,
    length: usize,
) -> c_int {
    // SAFETY: called by the library with a valid connection and `length` readable bytes.
    let (connection, bytes) = unsafe { (connection(ssl), slice::from_raw_parts(bytes, length)) };
    let Some(level) = Level::from_ffi(level) else { return 0 };
    pending_output(connection).messages[level as usize].extend_from_slice(bytes);
    1
}

unsafe extern "C" fn flush_flight(_: *mut ffi::SSL) -> c_int {
    // quinn reads the pending output after every step.
    1
}

unsafe extern "C" fn send_alert(
    ssl: *mut ffi::SSL,
    _: ffi::ssl_encryption_level_t,
    alert: u8,
) -> c_int {
    // SAFETY: called by the library with a valid connection.
    pending_output(unsafe { connection(ssl) }).alert = Some(alert);
    1
}
