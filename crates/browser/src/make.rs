//! Which browsers there are, and which of them this machine has.

use std::env;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use crate::{BrowserError, OnThisMachine, Place};

/// A family of browsers that is driven in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Make {
    /// Firefox, its ESR and their kin: network stack Necko, TLS by NSS, QUIC by neqo.
    Firefox,
    /// Chromium and its kin, such as Chrome: TLS by BoringSSL, QUIC by QUICHE.
    Chromium,
}

impl Make {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Firefox, Self::Chromium];

    /// Its name in settings and records: `firefox` or `chromium`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Firefox => "firefox",
            Self::Chromium => "chromium",
        }
    }

    /// Debian's package of it.
    pub fn package(self) -> &'static str {
        match self {
            Self::Firefox => "firefox-esr",
            Self::Chromium => "chromium",
        }
    }

    /// Names of its programs, the likeliest first.
    fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Firefox => &["firefox-esr", "firefox"],
            Self::Chromium => {
                &["chromium", "chromium-browser", "google-chrome-stable", "google-chrome"]
            }
        }
    }

    /// The make of a program that calls itself so.
    fn of(version: &str) -> Option<Self> {
        let is = |word: &str| version.split_whitespace().any(|other| other == word);
        if is("Firefox") {
            Some(Self::Firefox)
        } else if is("Chromium") || is("Chrome") {
            Some(Self::Chromium)
        } else {
            None
        }
    }
}

impl fmt::Display for Make {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Make {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|make| make.name() == text)
            .ok_or_else(|| format!("{text:?} is no browser; say firefox or chromium"))
    }
}

/// A browser that this machine has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// Its make.
    pub make: Make,
    /// Its program.
    pub program: PathBuf,
    /// What it calls itself, such as `Mozilla Firefox 153.7.0esr`.
    pub version: String,
}

impl Installed {
    /// The first of its make in `PATH` that says its version.
    ///
    /// # Errors
    /// [`BrowserError::Missing`] if there is none.
    pub fn find(make: Make) -> Result<Self, BrowserError> {
        let path = env::var_os("PATH").unwrap_or_default();
        let directories: Vec<_> = env::split_paths(&path).collect();
        make.programs()
            .iter()
            .flat_map(|name| directories.iter().map(move |directory| directory.join(name)))
            .filter(|program| program.is_file())
            .find_map(|program| Self::at(&program).ok().filter(|found| found.make == make))
            .ok_or(BrowserError::Missing { make })
    }

    /// The browser at a path, by its response to `--version`.
    ///
    /// # Errors
    /// If it cannot be started, or answers nothing of that kind within 20 seconds.
    pub fn at(program: &Path) -> Result<Self, BrowserError> {
        let said = first_line(program)?;
        let Some(make) = Make::of(&said) else {
            return Err(BrowserError::NotABrowser {
                path: program.to_owned(),
                said: format!("its --version is {:?}", said.chars().take(80).collect::<String>()),
            });
        };
        Ok(Self { make, program: program.to_owned(), version: tidy(&said) })
    }
}

/// The first line that a program says of its version; it is ended after that.
fn first_line(program: &Path) -> Result<String, BrowserError> {
    let fail = |source| BrowserError::Start { program: program.to_owned(), source };
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut running = OnThisMachine.start(command).map_err(fail)?;
    let (sender, said) = channel();
    if let Some(stdout) = running.stdout() {
        thread::Builder::new()
            .name("browser's version".to_owned())
            .spawn(move || {
                let mut bytes = Vec::new();
                // What came before an error is as good as what there is.
                let _ = stdout.take(1024).read_to_end(&mut bytes);
                // Nobody listens after the limit.
                let _ = sender.send(bytes);
            })
            .map_err(fail)?;
    }
    let bytes = said.recv_timeout(VERSION_LIMIT).map_err(|_| BrowserError::NotABrowser {
        path: program.to_owned(),
        said: format!("no answer to --version within {} s", VERSION_LIMIT.as_secs()),
    })?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default().to_owned())
}

/// Without what Debian says about its build.
fn tidy(version: &str) -> String {
    version.split(" built on ").next().unwrap_or(version).trim().to_owned()
}

const VERSION_LIMIT: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browser_is_known_by_what_it_calls_itself() {
        assert_eq!(Make::of("Mozilla Firefox 153.7.0esr"), Some(Make::Firefox));
        assert_eq!(Make::of("Chromium 156.0.8078.79 built on Debian"), Some(Make::Chromium));
        assert_eq!(Make::of("Google Chrome 156.0.8078.79"), Some(Make::Chromium));
        assert_eq!(Make::of("GNU bash, version 5.2.15"), None);
        assert_eq!(
            tidy("Chromium 156.0.8078.79 built on Debian GNU/Linux 12 (bookworm)"),
            "Chromium 156.0.8078.79"
        );
    }

    #[test]
    fn makes_are_written_as_they_are_read() {
        for make in Make::ALL {
            assert_eq!(make.to_string().parse(), Ok(make));
        }
        assert!("lynx".parse::<Make>().unwrap_err().contains("firefox or chromium"));
    }
}
