//! How the C library's allocator treats large buffers.

/// Makes glibc map each buffer of 1 MiB or more. By default it starts to reuse memory once such a
/// buffer was freed, and clears it first: half a millisecond for each QUIC connection, since quinn
/// receives into a buffer of 3 MB.
///
/// Not for servers: glibc then also returns freed memory after each small peak.
#[allow(unsafe_code)]
pub(crate) fn map_large_buffers() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `mallopt` may be called at any time.
    unsafe {
        nix::libc::mallopt(nix::libc::M_MMAP_THRESHOLD, 1 << 20);
    }
}
