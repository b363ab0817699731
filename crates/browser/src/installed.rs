//! Finds installed browsers.

use std::env;
use std::fmt;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use crate::{BrowserError, Environment, LocalMachine};

/// A kind of browser, by the protocol that drives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BrowserKind {
    /// Firefox and its ESR: network stack Necko, TLS by NSS, QUIC by neqo.
    Firefox,
    /// Chromium and Chrome: TLS by BoringSSL, QUIC by QUICHE.
    Chromium,
}

impl BrowserKind {
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::Firefox, Self::Chromium];

    /// The name in settings and records: `firefox` or `chromium`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Firefox => "firefox",
            Self::Chromium => "chromium",
        }
    }

    /// The Debian package.
    pub fn package(self) -> &'static str {
        match self {
            Self::Firefox => "firefox-esr",
            Self::Chromium => "chromium",
        }
    }

    /// The names of its programs, the most likely first.
    fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Firefox => &["firefox-esr", "firefox"],
            Self::Chromium => {
                &["chromium", "chromium-browser", "google-chrome-stable", "google-chrome"]
            }
        }
    }

    /// The kind of a browser with this version string.
    fn from_version(version: &str) -> Option<Self> {
        let contains = |name: &str| version.split_whitespace().any(|other| other == name);
        if contains("Firefox") {
            Some(Self::Firefox)
        } else if contains("Chromium") || contains("Chrome") {
            Some(Self::Chromium)
        } else {
            None
        }
    }
}

impl fmt::Display for BrowserKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for BrowserKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| format!("{text:?} is not a browser; use firefox or chromium"))
    }
}

/// An installed browser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// The kind of browser.
    pub kind: BrowserKind,
    /// The path of its program.
    pub program: PathBuf,
    /// The version, such as `Mozilla Firefox 153.7.0esr`.
    pub version: String,
}

impl Installed {
    /// Finds the first browser of this kind in `PATH` that prints its version.
    ///
    /// # Errors
    /// [`BrowserError::Missing`] if there is none.
    pub fn find(kind: BrowserKind) -> Result<Self, BrowserError> {
        let path = env::var_os("PATH").unwrap_or_default();
        let directories: Vec<_> = env::split_paths(&path).collect();
        kind.programs()
            .iter()
            .flat_map(|name| directories.iter().map(move |directory| directory.join(name)))
            .filter(|program| program.is_file())
            .find_map(|program| Self::at(&program).ok().filter(|found| found.kind == kind))
            .ok_or(BrowserError::Missing { kind })
    }

    /// Identifies the browser at a path, by its output for `--version`.
    ///
    /// # Errors
    /// If the program cannot be started, or prints no version of a browser within 20 seconds.
    pub fn at(program: &Path) -> Result<Self, BrowserError> {
        let output = version_line(program)?;
        let Some(kind) = BrowserKind::from_version(&output) else {
            return Err(BrowserError::NotABrowser {
                path: program.to_owned(),
                reason: format!(
                    "its --version is {:?}",
                    output.chars().take(80).collect::<String>()
                ),
            });
        };
        Ok(Self { kind, program: program.to_owned(), version: short_version(&output) })
    }
}

/// Returns the first line that a program prints for `--version`, and kills it.
fn version_line(program: &Path) -> Result<String, BrowserError> {
    let fail = |source| BrowserError::Start { program: program.to_owned(), source };
    // The output goes to a file, so that no thread has to read it: the lab enters namespaces
    // afterwards, which the kernel refuses while a thread is still ending.
    let mut output = tempfile::tempfile().map_err(fail)?;
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stderr(Stdio::null());
    command.stdout(output.try_clone().map_err(fail)?);
    let mut process = LocalMachine.start(command).map_err(fail)?;
    let deadline = Instant::now() + VERSION_TIMEOUT;
    while !process.has_ended().map_err(fail)? {
        if Instant::now() > deadline {
            let reason = format!("--version does not end within {} s", VERSION_TIMEOUT.as_secs());
            return Err(BrowserError::NotABrowser { path: program.to_owned(), reason });
        }
        thread::sleep(POLL_INTERVAL);
    }
    let mut bytes = Vec::new();
    output.rewind().map_err(fail)?;
    output.take(1024).read_to_end(&mut bytes).map_err(fail)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default().to_owned())
}

/// Removes the build information that Debian appends.
fn short_version(version: &str) -> String {
    version.split(" built on ").next().unwrap_or(version).trim().to_owned()
}

const VERSION_TIMEOUT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browser_is_identified_by_its_version() {
        assert_eq!(
            BrowserKind::from_version("Mozilla Firefox 153.7.0esr"),
            Some(BrowserKind::Firefox)
        );
        assert_eq!(
            BrowserKind::from_version("Chromium 156.0.8078.79 built on Debian"),
            Some(BrowserKind::Chromium)
        );
        assert_eq!(
            BrowserKind::from_version("Google Chrome 156.0.8078.79"),
            Some(BrowserKind::Chromium)
        );
        assert_eq!(BrowserKind::from_version("GNU bash, version 5.2.15"), None);
        assert_eq!(
            short_version("Chromium 156.0.8078.79 built on Debian GNU/Linux 12 (bookworm)"),
            "Chromium 156.0.8078.79"
        );
    }

    #[test]
    fn kinds_are_displayed_as_they_are_parsed() {
        for kind in BrowserKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert!("lynx".parse::<BrowserKind>().unwrap_err().contains("firefox or chromium"));
    }
}
