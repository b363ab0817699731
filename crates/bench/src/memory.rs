//! A process's memory, by `/proc`.

use std::fs;
use std::io;

/// Resident memory of a process now, in KiB.
pub(crate) fn resident_kib(pid: u32) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    resident(&status).ok_or_else(|| io::Error::other("its status has no VmRSS"))
}

fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
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
        assert_eq!(resident("Name:\tx\nVmRSS:\t    1234 kB\n"), Some(1234));
        assert_eq!(resident("Name:\tx\n"), None);
    }
}
