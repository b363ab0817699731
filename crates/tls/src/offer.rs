//! Whether a client offered early data, which the library tells only of what it accepts.

use std::os::raw::c_int;
use std::ptr;
use std::sync::LazyLock;

use boring::ssl::{Ssl, SslContextBuilder, SslRef};
use boring_sys as ffi;
use foreign_types::ForeignTypeRef;

use crate::context::Slot;

/// There for a connection whose ClientHello had the extension.
static OFFERED: Slot<()> =
    LazyLock::new(|| Ssl::new_ex_index().expect("an index for an offer of early data"));

/// Makes a server's context take note of offers.
pub(crate) fn install(context: &mut SslContextBuilder) {
    // SAFETY: the context is valid, and the callback fits what the library calls it with.
    unsafe { ffi::SSL_CTX_set_dos_protection_cb(context.as_ptr(), Some(look)) };
}

/// Whether a server's client offered early data in its first ClientHello (RFC 8446 section
/// 4.2.10), be it any good or not.
pub(crate) fn was_made(ssl: &SslRef) -> bool {
    ssl.ex_data(*OFFERED).is_some()
}

/// Called by the library for each first ClientHello, once it knows whether a session is resumed.
/// The name is its own: nobody is turned away here.
unsafe extern "C" fn look(hello: *const ffi::SSL_CLIENT_HELLO) -> c_int {
    const GO_ON: c_int = 1;
    // SAFETY: called by the library with a ClientHello that is valid during the call, of a
    // connection that nobody else has hold of meanwhile.
    unsafe {
        let (mut data, mut length) = (ptr::null(), 0);
        let early_data = ffi::TLSEXT_TYPE_early_data as u16;
        if ffi::SSL_early_callback_ctx_extension_get(hello, early_data, &mut data, &mut length) == 1
        {
            SslRef::from_ptr_mut((*hello).ssl).set_ex_data(*OFFERED, ());
        }
    }
    GO_ON
}
