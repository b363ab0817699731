//! Files of the repository that are made from the code.

use std::fs;
use std::path::Path;

/// Asserts that a file of the repository, at a path from its root, is what the code makes today.
/// With `INSTA_UPDATE=always`, which accepts snapshots too, the file is written: `make bless`.
///
/// # Panics
/// If the file differs, or cannot be written.
pub fn assert_committed(path: &str, made: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    if std::env::var("INSTA_UPDATE").is_ok_and(|value| value == "always") {
        fs::write(&file, made).unwrap_or_else(|error| panic!("cannot write {path}: {error}"));
    }
    let committed = fs::read_to_string(&file).unwrap_or_default();
    assert!(
        committed == made,
        "{path} is not what the code makes: run `make bless CRATE=...` with this test's crate"
    );
}
