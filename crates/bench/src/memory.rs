//! A process's memory, by `/proc`.

use std::io;

use procfs::process::Process;

/// Resident memory of a process now, in KiB.
pub(crate) fn resident_kib(pid: u32) -> io::Result<u64> {
    let status = Process::new(pid as i32).and_then(|process| process.status());
    let resident = status.map_err(io::Error::other)?.vmrss;
    resident.ok_or_else(|| io::Error::other("its status has no VmRSS"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_touched_shows() {
        let before = resident_kib(std::process::id()).unwrap();
        let touched = vec![1u8; 32 << 20];
        let after = resident_kib(std::process::id()).unwrap();
        assert!(std::hint::black_box(touched)[1 << 20] == 1 && after >= before + (24 << 10));
    }
}
