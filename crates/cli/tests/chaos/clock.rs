//! A process whose clock a test can set.

use std::fs;
use std::path::Path;
use std::process::Command;

use firstflight_testkit::faketime_library;

/// Makes a command read the offset of its clock from a file in `dir`, whenever it reads the clock.
pub(crate) fn follow(command: &mut Command, dir: &Path) {
    command.env("LD_PRELOAD", faketime_library()).env("FAKETIME_NO_CACHE", "1");
    command.env("FAKETIME_TIMESTAMP_FILE", dir.join("clock"));
    command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("DONT_FAKE_MONOTONIC", "1");
}

/// Sets the offset, in the format of faketime. The file is replaced atomically.
pub(crate) fn set(dir: &Path, offset: &str) {
    fs::write(dir.join("clock.new"), format!("{offset}\n")).unwrap();
    fs::rename(dir.join("clock.new"), dir.join("clock")).unwrap();
}
