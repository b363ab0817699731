use std::fs;

use firstflight_report::MachineFacts;

/// What is worth knowing about the machine when figures are compared.
pub(crate) fn facts() -> MachineFacts {
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor = processor
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown", |(_, name)| name);
    MachineFacts {
        kernel: nix::sys::utsname::uname()
            .map(|name| format!("Linux {}", name.release().to_string_lossy()))
            .unwrap_or_default(),
        processor: processor.to_owned(),
        processors: std::thread::available_parallelism().map_or(1, Into::into),
    }
}
