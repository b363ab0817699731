//! Any spelling of a path: if some server could take it for one below a rule, the rule holds.
#![no_main]

use std::sync::LazyLock;

use firstflight_config::{Mode, Policy};
use libfuzzer_sys::fuzz_target;
use percent_encoding::percent_decode;

fuzz_target!(|path: &str| {
    static POLICY: LazyLock<Policy> = LazyLock::new(|| {
        Policy::new(Mode::Permissive).rule("/api/pay", Mode::Disabled).expect("a rule")
    });
    let mode = POLICY.mode(path);
    if laxly_read(path).starts_with(&["api".to_owned(), "pay".to_owned()]) {
        assert_eq!(mode, Mode::Disabled);
    }
});

/// The segments of a path as the most obliging of servers takes it: decoded as often as it can
/// be, either slash a separator, parameters cut off, dots and empty segments resolved, lower case.
fn laxly_read(path: &str) -> Vec<String> {
    let mut bytes = path.as_bytes().to_vec();
    loop {
        let decoded: Vec<u8> = percent_decode(&bytes).collect();
        if decoded == bytes {
            break;
        }
        bytes = decoded;
    }
    let mut segments = Vec::new();
    for segment in String::from_utf8_lossy(&bytes).split(['/', '\\']) {
        match segment.split(';').next().unwrap_or_default() {
            "" | "." => {}
            ".." => drop(segments.pop()),
            name => segments.push(name.to_lowercase()),
        }
    }
    segments
}
