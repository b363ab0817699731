//! The machines that guides are tried on: fresh, with our package at hand.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use firstflight_rig::{Machine, Root};
use tempfile::TempDir;

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// What a server has anyway, and after a `+` what guides install.
const PACKAGES: [&str; 7] =
    ["curl", "openssl", "procps", "python3", "+haproxy", "+nginx", "+redis-server"];

/// Made when the first guide asks for it.
#[derive(Default)]
pub(crate) struct Stage(OnceLock<Made>);

struct Made {
    root: Root,
    _packages: TempDir,
    deb: PathBuf,
}

impl Stage {
    /// Fresh machines, which have the package in root's home, as after a download.
    pub(crate) fn machines(&self, names: &[String]) -> Vec<Machine> {
        let made = self.0.get_or_init(make);
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let machines = match names[..] {
            [one] => vec![made.root.boot(one)],
            _ => made.root.boot_several(&names),
        };
        let name = made.deb.file_name().expect("a file").to_string_lossy();
        for machine in &machines {
            machine.copy(&made.deb, &format!("/root/{name}"));
        }
        machines
    }
}

/// The package has the binary that this test was built with.
fn make() -> Made {
    let packages = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(Path::new(REPOSITORY).join("scripts/package"));
    command.args(["deb", "--binary", env!("CARGO_BIN_EXE_firstflight"), "--out"]);
    // Packed for a minute's use, and read as it is.
    command.arg(packages.path());
    command.env("PACKAGE_COMPRESSION", "none").env("PACKAGE_ARCHIVE", "no");
    let output = command.output().expect("scripts/package");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "scripts/package: {}\n{said}", output.status);
    let entries = fs::read_dir(packages.path()).expect("the packages");
    let mut files = entries.map(|entry| entry.expect("a package").path());
    let deb = files.find(|file| file.extension().is_some_and(|extension| extension == "deb"));
    let deb = deb.unwrap_or_else(|| panic!("scripts/package made no .deb:\n{said}"));
    Made { root: Root::make(&PACKAGES), _packages: packages, deb }
}
