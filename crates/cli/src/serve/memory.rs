//! Memory that closed connections leave in the allocator.
//!
//! glibc keeps freed memory for the next allocations. After a peak of connections that is most of
//! the process's memory, so it is returned to the system when half of them have closed.

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
