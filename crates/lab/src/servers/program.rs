//! Finding programs, and what they say of themselves.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program that was found.
#[derive(Debug)]
pub(super) struct Found {
    pub program: PathBuf,
    /// What it is in the record, such as `nginx/1.22.1 (OpenSSL 3.0.22)`.
    pub version: String,
    /// All that it says about its version and how it was built.
    pub about: String,
}

impl Found {
    /// Looks for a program and asks it with `arguments` what it is.
    pub(super) fn ask(name: &str, arguments: &[&str], version: fn(&str) -> String) -> Option<Self> {
        Self::at(find(name)?, arguments, version)
    }

    /// The same for a program at a known place.
    pub(super) fn at(
        program: PathBuf,
        arguments: &[&str],
        version: fn(&str) -> String,
    ) -> Option<Self> {
        let said = Command::new(&program).args(arguments).stdin(Stdio::null()).output().ok()?;
        let mut about = String::from_utf8_lossy(&said.stdout).into_owned();
        about.push_str(&String::from_utf8_lossy(&said.stderr));
        Some(Self { program, version: version(&about), about })
    }

    /// Groups for a library in the notation of OpenSSL, the post-quantum one first where the
    /// library has it: an unknown name would keep the server from starting.
    pub(super) fn groups(&self) -> &'static str {
        match has_ml_kem(&self.about) {
            true => "X25519MLKEM768:X25519:P-256",
            false => "X25519:P-256",
        }
    }
}

/// The first executable file of this name in `PATH`, or where Debian puts servers, where ordinary
/// users do not look.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    env::split_paths(&path).chain(usual).map(|place| place.join(name)).find(|path| is_program(path))
}

pub(super) fn is_program(path: &Path) -> bool {
    nix::unistd::access(path, nix::unistd::AccessFlags::X_OK).is_ok() && path.is_file()
}

/// The TLS library in what a program says of itself, such as `OpenSSL 3.0.22`; the last one named,
/// since programs name the one that they were built with before the one that they run with.
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
        // Without a version: BoringSSL has none.
        None => words.iter().find(|word| LIBRARIES.contains(word)).map(|word| (*word).to_owned()),
    }
}

const LIBRARIES: [&str; 4] = ["OpenSSL", "AWS-LC", "BoringSSL", "LibreSSL"];

/// OpenSSL has X25519MLKEM768 since 3.5, and so have the BoringSSL and AWS-LC of that time.
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

#[cfg(test)]
mod tests {
    use super::*;

    const NGINX: &str = "nginx version: nginx/1.22.1\nbuilt with OpenSSL 3.0.20 7 Apr 2026 \
                         (running with OpenSSL 3.0.22 25 Aug 2026)\nTLS SNI support enabled\n\
                         configure arguments: --with-openssl-opt=OpenSSL";

    #[test]
    fn the_library_is_the_one_that_it_runs_with() {
        assert_eq!(library(NGINX).as_deref(), Some("OpenSSL 3.0.22"));
        let haproxy = "Built with OpenSSL version : OpenSSL 3.0.20 x\n\
                       Running on OpenSSL version : AWS-LC 1.61.4\n";
        assert_eq!(library(haproxy).as_deref(), Some("AWS-LC 1.61.4"));
        assert_eq!(library("built with BoringSSL\n").as_deref(), Some("BoringSSL"));
        assert_eq!(library("Caddy 2.6.2"), None);
    }

    #[test]
    fn post_quantum_groups_are_named_only_to_libraries_that_know_them() {
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
    fn programs_are_found_by_name_and_others_are_not() {
        assert!(find("sh").is_some_and(|path| path.is_absolute()));
        assert_eq!(find("no-such-program-here"), None);
    }
}
