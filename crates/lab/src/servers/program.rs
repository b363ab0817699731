//! Installed programs: their paths, versions and TLS libraries, and the processes of a running one.

use std::collections::HashSet;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use procfs::process::{Stat, all_processes};

/// An installed program.
#[derive(Debug)]
pub(super) struct InstalledProgram {
    pub program: PathBuf,
    /// Its name and version in the record, such as `nginx/1.22.1 (OpenSSL 3.0.22)`.
    pub version: String,
    /// The output that describes its version and build.
    pub about: String,
}

impl InstalledProgram {
    /// Finds a program, and runs it with `arguments` to learn its version.
    pub(super) fn query(
        name: &str,
        arguments: &[&str],
        version: fn(&str) -> String,
    ) -> Option<Self> {
        Self::query_at(find(name)?, arguments, version)
    }

    /// Like [`Self::query`], for a program at a known path.
    pub(super) fn query_at(
        program: PathBuf,
        arguments: &[&str],
        version: fn(&str) -> String,
    ) -> Option<Self> {
        let output = Command::new(&program).args(arguments).stdin(Stdio::null()).output().ok()?;
        let mut about = String::from_utf8_lossy(&output.stdout).into_owned();
        about.push_str(&String::from_utf8_lossy(&output.stderr));
        Some(Self { program, version: version(&about), about })
    }

    /// The groups of the key exchange in OpenSSL's notation. The post-quantum group is included
    /// only if the TLS library supports it, since the server does not start with an unknown name.
    pub(super) fn groups(&self) -> &'static str {
        match has_ml_kem(&self.about) {
            true => "X25519MLKEM768:X25519:P-256",
            false => "X25519:P-256",
        }
    }
}

/// The first executable file of this name in `PATH`, or in the `sbin` directories, which the `PATH`
/// of ordinary users lacks.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let sbin = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    env::split_paths(&path)
        .chain(sbin)
        .map(|directory| directory.join(name))
        .find(|path| is_program(path))
}

pub(super) fn is_program(path: &Path) -> bool {
    nix::unistd::access(path, nix::unistd::AccessFlags::X_OK).is_ok() && path.is_file()
}

/// The TLS library in the version output of a program, such as `OpenSSL 3.0.22`. Programs print the
/// library that they were built with before the one that they run with, so the last one counts.
pub(super) fn library(about: &str) -> Option<String> {
    let words: Vec<&str> = about
        .split(|c: char| c.is_whitespace() || "(),".contains(c))
        .filter(|word| !word.is_empty())
        .collect();
    let named = words.windows(2).rev().find(|pair| {
        LIBRARIES.contains(&pair[0]) && pair[1].starts_with(|c: char| c.is_ascii_digit())
    });
    match named {
        Some(pair) => Some(format!("{} {}", pair[0], pair[1])),
        // BoringSSL has no version.
        None => words.iter().find(|word| LIBRARIES.contains(word)).map(|word| (*word).to_owned()),
    }
}

const LIBRARIES: [&str; 4] = ["OpenSSL", "AWS-LC", "BoringSSL", "LibreSSL"];

/// Whether the TLS library supports X25519MLKEM768: OpenSSL since 3.5, AWS-LC since 1.40.
fn has_ml_kem(about: &str) -> bool {
    let Some(library) = library(about) else { return false };
    let (name, version) = library.split_once(' ').unwrap_or((&library, ""));
    let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    match name {
        "OpenSSL" => version >= (3, 5),
        "AWS-LC" => version >= (1, 40),
        "BoringSSL" => true,
        _ => false,
    }
}

/// `roots` and all their running descendants. A descendant whose parent has ended is found by its
/// process group.
pub(super) fn process_tree(roots: &[u32]) -> Vec<u32> {
    let others: Vec<Stat> = all_processes()
        .into_iter()
        .flatten()
        .filter_map(|process| process.ok()?.stat().ok())
        .collect();
    let mut found = roots.to_vec();
    let mut known: HashSet<u32> = roots.iter().copied().collect();
    loop {
        let before = found.len();
        for other in &others {
            let [pid, parent, group] = [other.pid, other.ppid, other.pgrp].map(|id| id as u32);
            if (known.contains(&parent) || roots.contains(&group)) && known.insert(pid) {
                found.push(pid);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

/// The processor time of all threads of these processes so far, including ended threads. Processes
/// that have ended are not counted.
pub(crate) fn processor_time(pids: &[u32]) -> Duration {
    let time = |pid: &u32| {
        let clock = clock_getcpuclockid(Pid::from_raw(*pid as i32)).ok()?;
        clock_gettime(clock).ok().map(Duration::from)
    };
    pids.iter().filter_map(time).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NGINX: &str = "nginx version: nginx/1.22.1\nbuilt with OpenSSL 3.0.20 7 Apr 2026 \
                         (running with OpenSSL 3.0.22 25 Aug 2026)\nTLS SNI support enabled\n\
                         configure arguments: --with-openssl-opt=OpenSSL";

    #[test]
    fn the_tls_library_is_the_one_used_at_run_time() {
        assert_eq!(library(NGINX).as_deref(), Some("OpenSSL 3.0.22"));
        let haproxy = "Built with OpenSSL version : OpenSSL 3.0.20 x\n\
                       Running on OpenSSL version : AWS-LC 1.61.4\n";
        assert_eq!(library(haproxy).as_deref(), Some("AWS-LC 1.61.4"));
        assert_eq!(library("built with BoringSSL\n").as_deref(), Some("BoringSSL"));
        assert_eq!(library("Caddy 2.6.2"), None);
    }

    #[test]
    fn post_quantum_groups_are_used_only_with_libraries_that_support_them() {
        for (about, known) in [
            (NGINX, false),
            ("OpenSSL 3.4.1 x", false),
            ("OpenSSL 3.5.0 x", true),
            ("OpenSSL 4.0.0 x", true),
            ("AWS-LC 1.61.4 x", true),
            ("built with BoringSSL", true),
            ("LibreSSL 4.1.0", false),
            ("", false),
        ] {
            assert_eq!(has_ml_kem(about), known, "{about}");
        }
    }

    #[test]
    fn programs_are_found_by_name() {
        assert!(find("sh").is_some_and(|path| path.is_absolute()));
        assert_eq!(find("no-such-program-here"), None);
    }

    #[test]
    fn the_process_tree_includes_children_of_children_and_their_time() {
        // Prints a line when its child runs.
        let script = "sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo ready; \
                      read line' & wait";
        let mut shell = Command::new("sh")
            .args(["-c", &format!("exec 3<&0; {}", script.replace("read line", "read line <&3"))])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = std::io::BufReader::new(shell.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut output, &mut String::new()).unwrap();
        let found = process_tree(&[shell.id()]);
        let time = processor_time(&found);
        let parent_time = processor_time(&[shell.id()]);
        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(time > parent_time, "{time:?} of all, {parent_time:?} of the parent");
    }
}
