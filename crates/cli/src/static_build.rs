//! Name resolution in the static build.
//!
//! glibc resolves names of hosts and users with the NSS modules that `nsswitch.conf` lists, and
//! loads them together with the system's libc. In a static program that libc conflicts with the
//! linked one unless both have the same version, and the process crashes: a program built on Debian
//! 12 gets SIGFPE on Debian 13 with `resolve` listed. The built-in services `files` and `dns` need
//! no module.

/// Resolves names with files and DNS only. Does nothing unless the build is static.
///
/// Call this before the first lookup, while the process has one thread.
pub(crate) fn use_built_in_name_services() {
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
    // SAFETY: both strings end with NUL, and glibc copies what it keeps of them. It rejects unknown
    // names, without any effect.
    unsafe {
        __nss_configure_lookup(database.as_ptr(), sources.as_ptr());
    }
}
