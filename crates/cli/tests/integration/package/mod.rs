//! What `make package` makes, of the program that these tests are built with: the Debian package on
//! a fresh machine, the image's root with nothing else in it, manual pages and completions.

mod deb;
mod image;
mod pages;

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// The program under test: the one built for tests, or, to try what is shipped, the one that
/// FIRSTFLIGHT_PROGRAM names.
fn program() -> String {
    std::env::var("FIRSTFLIGHT_PROGRAM")
        .unwrap_or_else(|_| env!("CARGO_BIN_EXE_firstflight").to_owned())
}

/// What scripts/package makes of a kind, in a directory.
fn package(kind: &str, version: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/package");
    let mut command = Command::new(script);
    command.args(["--binary", &program(), "--version", version, kind, "--out"]).arg(dir.path());
    // Packed for a minute's use, and read as it is by those who install it.
    said(command.env("PACKAGE_COMPRESSION", "none").env("PACKAGE_ARCHIVE", "no"));
    let file = dir.path().join(match kind {
        "deb" => format!("firstflight_{version}_amd64.deb"),
        _ => format!("firstflight-{version}-image.tar"),
    });
    assert!(file.exists(), "{}", file.display());
    (dir, file)
}

/// What a command says that must not fail.
fn said(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    out
}
