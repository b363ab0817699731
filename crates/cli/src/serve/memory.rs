//! Memory that closed connections leave in the allocator.
//!
//! glibc keeps freed memory for the next allocations. After a peak of connections that is most of
//! the process's memory, so it is returned to the system each time half of them have closed.

/// Decides when to return memory.
#[derive(Default)]
pub(super) struct MemoryReturn {
    /// The most connections that were open since memory was last returned.
    peak: u32,
}

/// Fewer closed connections leave too little memory to return.
const MIN_CLOSED_CONNECTIONS: u32 = 100;

impl MemoryReturn {
    /// Whether memory should be returned now. Call this once a second with the number of open
    /// connections.
    pub(super) fn is_due(&mut self, open: u32) -> bool {
        let closed = self.peak.saturating_sub(open);
        let is_due = closed >= MIN_CLOSED_CONNECTIONS.max(self.peak.div_ceil(2));
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
        // SAFETY: `malloc_trim` may be called at any time.
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
        assert_eq!(due, [500, 250, 125, 0]);
    }

    #[test]
    fn the_rest_is_returned_too_if_a_check_falls_between_the_closing_connections() {
        let mut memory = MemoryReturn::default();
        let due: Vec<_> =
            [310, 150, 0, 99, 0].into_iter().map(|open| memory.is_due(open)).collect();
        assert_eq!(due, [false, true, true, false, false]);
    }
}
