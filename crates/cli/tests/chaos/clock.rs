//! A process whose clock a test can set.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Lets a command read its offset from the real time from `dir`, each time anew.
pub(crate) fn follow(command: &mut Command, dir: &Path) {
    // Preload the library directly. The faketime command would stay the parent of the server.
    command.env("LD_PRELOAD", library()).env("FAKETIME_NO_CACHE", "1");
    command.env("FAKETIME_TIMESTAMP_FILE", dir.join("clock"));
    command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("DONT_FAKE_MONOTONIC", "1");
}

/// Sets the offset, as faketime has it. The file is replaced atomically.
pub(crate) fn set(dir: &Path, offset: &str) {
    fs::write(dir.join("clock.new"), format!("{offset}\n")).unwrap();
    fs::rename(dir.join("clock.new"), dir.join("clock")).unwrap();
}

fn library() -> PathBuf {
    let found = fs::read_dir("/usr/lib").unwrap().flatten().find_map(|entry| {
        let library = entry.path().join("faketime/libfaketimeMT.so.1");
        library.is_file().then_some(library)
    });
    found.expect("faketime is not installed; run `make deps-test`")
}
