//! Names of hosts and users in the static build.
//!
//! glibc looks names up by modules that the machine's `nsswitch.conf` lists, and loads them with
//! the machine's own libc. A static program has another one in it already: the two do not fit
//! together unless they are of the same version, and the process dies (seen: SIGFPE on Debian 13
//! with `resolve` listed, by a program built on Debian 12). What is built in needs no module.

/// Has names looked up in files and by DNS alone. Does nothing in a build that is not static.
///
/// To be called before anything is looked up, and while there is one thread.
pub(crate) fn keep_to_what_is_built_in() {
    #[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
    for (database, sources) in [
        (c"hosts", c"files dns"),
        (c"networks", c"files"),
        (c"services", c"files"),
        (c"protocols", c"files"),
        (c"passwd", c"files"),
        (c"group", c"files"),
        (c"initgroups", c"files"),
    ] {
        configure(database, sources);
    }
}

#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
#[allow(unsafe_code)]
fn configure(database: &std::ffi::CStr, sources: &std::ffi::CStr) {
    use std::ffi::{c_char, c_int};

    unsafe extern "C" {
        // <nss.h>
        fn __nss_configure_lookup(database: *const c_char, sources: *const c_char) -> c_int;
    }
    // SAFETY: both are strings with an end, and glibc copies what it keeps of them. A name that it
    // does not know is refused, and changes nothing.
    unsafe {
        __nss_configure_lookup(database.as_ptr(), sources.as_ptr());
    }
}
