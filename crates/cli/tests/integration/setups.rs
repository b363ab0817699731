//! The set-ups under `examples/`, run as they stand: what differs on the test's machine (paths,
//! ports, names of hosts) is put in by name, and has to be there to be replaced.

mod compose;
pub(crate) mod haproxy;
mod kubernetes;
pub(crate) mod nginx;
mod proxies;

use std::fs;
use std::path::PathBuf;

/// Where a file of the examples lies.
pub(crate) fn example(name: &str) -> PathBuf {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    fs::canonicalize(examples).unwrap().join(name)
}

/// An example's text with what is another's on this machine. Each of it is in the example once.
pub(crate) fn placed(name: &str, places: &[(&str, String)]) -> String {
    let mut text = fs::read_to_string(example(name)).unwrap();
    for (theirs, ours) in places {
        assert_eq!(text.matches(theirs).count(), 1, "{theirs} in {name}");
        text = text.replace(theirs, ours);
    }
    text
}
