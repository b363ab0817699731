//! The machines of guides: new ones, with the package of this project.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use firstflight_testkit::{Machine, Root, TEST_TIMEOUT, output_within};
use tempfile::TempDir;

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Packages of a usual server, and after a `+` those that guides install.
const PACKAGES: [&str; 7] =
    ["curl", "openssl", "procps", "python3", "+haproxy", "+nginx", "+redis-server"];

/// Created for the first guide that needs it.
#[derive(Default)]
pub(crate) struct Stage(OnceLock<Made>);

struct Made {
    root: Root,
    _packages: TempDir,
    deb: PathBuf,
}

impl Stage {
    /// Creates machines with the package in root's home, as after a download. The last one can also
    /// replace Let's Encrypt.
    pub(crate) fn machines(&self, names: &[String], lets_encrypt: bool) -> Vec<Machine> {
        let made = self.0.get_or_init(make);
        let mut names: Vec<_> = names.iter().map(String::as_str).collect();
        names.extend(lets_encrypt.then_some(LETS_ENCRYPT));
        let machines = match names[..] {
            [name] => vec![made.root.boot(name)],
            _ => made.root.boot_several(&names),
        };
        let name = made.deb.file_name().expect("a file").to_string_lossy();
        for machine in &machines {
            machine.copy(&made.deb, &format!("/root/{name}"));
        }
        if lets_encrypt && let Some((authority, others)) = machines.split_last() {
            lets_encrypt_for(authority, others);
        }
        machines
    }
}

const LETS_ENCRYPT: &str = "acme-v02.api.letsencrypt.org";

/// Resolves names to the first of the other machines, and makes all of them trust the authority.
fn lets_encrypt_for(authority: &Machine, others: &[Machine]) {
    for program in ["pebble", "pebble-challtestsrv"] {
        authority.copy(&Path::new("/usr/bin").join(program), &format!("/root/{program}"));
    }
    authority.write("/root/lets_encrypt.sh", include_str!("lets_encrypt.sh"));
    let address =
        authority.output(&format!("getent ahostsv4 {} | cut -d' ' -f1", others[0].name()));
    let address = address.lines().next().expect("an address");
    authority.output(&format!("bash lets_encrypt.sh {address}"));
    for machine in others {
        for file in ["own", "root"] {
            let to = format!("/usr/local/share/ca-certificates/lets-encrypt-{file}.crt");
            machine.copy(&authority.path(&format!("/root/{file}.pem")), &to);
        }
        machine.output("update-ca-certificates");
    }
}

/// Builds a package with the binary of this test.
fn make() -> Made {
    let packages = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(Path::new(REPOSITORY).join("scripts/package"));
    command.args(["deb", "--binary", env!("CARGO_BIN_EXE_firstflight"), "--out"]);
    // Not compressed, because it is used for a minute only.
    command.arg(packages.path());
    command.env("PACKAGE_COMPRESSION", "none").env("PACKAGE_ARCHIVE", "no");
    let output = output_within(&mut command, 5 * TEST_TIMEOUT);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "scripts/package: {}\n{stderr}", output.status);
    let entries = fs::read_dir(packages.path()).expect("the packages");
    let mut files = entries.map(|entry| entry.expect("a package").path());
    let deb = files.find(|file| file.extension().is_some_and(|extension| extension == "deb"));
    let deb = deb.unwrap_or_else(|| panic!("scripts/package made no .deb:\n{stderr}"));
    Made { root: Root::make(&PACKAGES), _packages: packages, deb }
}
