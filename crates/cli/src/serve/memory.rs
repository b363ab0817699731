//! How the allocator (glibc's) keeps memory that connections have freed.
//!
//! By default it returns memory above 128 KiB at once, and merges small free pieces whenever a large
//! one is requested. A connection over QUIC allocates 80 KiB in pieces of 2 to 14 KiB, so a busy server
//! did both all the time. It keeps more instead; after a peak of connections that would be most of the
//! process's memory, so all of it is returned when half of them have closed.

/// Decides when to return memory.
#[derive(Default)]
pub(super) struct MemoryReturn {
    /// The most connections that were open since memory was returned.
    peak: u32,
}

/// Fewer connections leave too little.
const MIN_PEAK: u32 = 200;

impl MemoryReturn {
    /// Whether memory should be returned now. Call this once a second with the number of open
    /// connections.
    pub(super) fn is_due(&mut self, open: u32) -> bool {
        let is_due = self.peak >= MIN_PEAK && open <= self.peak / 2;
        self.peak = if is_due { open } else { self.peak.max(open) };
        is_due
    }
}

/// Sets what the allocator does by itself. Call this before other threads start.
#[allow(unsafe_code)]
pub(super) fn configure_allocator() {
    #[cfg(target_env = "gnu")]
    {
        use std::ffi::c_int;

        unsafe extern "C" {
            // <malloc.h>
            fn mallopt(parameter: c_int, value: c_int) -> c_int;
        }
        const M_MXFAST: c_int = 1;
        const M_TRIM_THRESHOLD: c_int = -1;
        const M_TOP_PAD: c_int = -2;
        const M_MMAP_THRESHOLD: c_int = -3;
        for (parameter, bytes) in [
            // No pieces are kept unmerged, except the few of each size that a thread caches.
            (M_MXFAST, 0),
            (M_TRIM_THRESHOLD, 2 << 20),
            (M_TOP_PAD, 1 << 20),
            // Setting the threshold for trimming ends its adjustment.
            (M_MMAP_THRESHOLD, 1 << 20),
        ] {
            // SAFETY: no other thread allocates yet. A refused value leaves the default.
            unsafe {
                mallopt(parameter, bytes);
            }
        }
    }
}

/// Returns freed memory to the system. Other threads that allocate wait meanwhile.
#[allow(unsafe_code)]
pub(super) fn return_freed() {
    #[cfg(target_env = "gnu")]
    {
        use std::ffi::c_int;

        unsafe extern "C" {
            // <malloc.h>
            fn malloc_trim(pad: usize) -> c_int;
        }
        // SAFETY: it may be called at any time.
        unsafe {
            malloc_trim(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_returned_each_time_half_of_the_connections_have_closed() {
        let mut memory = MemoryReturn::default();
        let open = [1000, 800, 501, 500, 400, 251, 250, 200, 126, 125, 0];
        let due: Vec<_> = open.into_iter().filter(|open| memory.is_due(*open)).collect();
        assert_eq!(due, [500, 250, 125], "125: fewer than 200 were open afterwards");
    }
}
