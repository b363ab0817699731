//! How the C library's allocator treats large buffers.

/// Has buffers of a mebibyte and more mapped, always. By default glibc reuses the memory of such a
/// buffer once one was freed, and clears it first: for each QUIC connection half a millisecond, since
/// quinn receives into 3 MB.
///
/// Not for servers: glibc then also returns freed memory after each small peak.
#[allow(unsafe_code)]
pub(crate) fn map_large_buffers() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it may be called at any time.
    unsafe {
        nix::libc::mallopt(nix::libc::M_MMAP_THRESHOLD, 1 << 20);
    }
}
