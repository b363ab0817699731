//! A running browser of any kind.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::chromium::Chromium;
use crate::driver::{Driver, Settings, Window};
use crate::firefox::Firefox;
use crate::{BrowserError, BrowserKind, Environment, Frame, Installed, Navigation};

/// A running browser with its own profile. It is killed with all its processes when this is dropped.
///
/// Every command has a timeout. A browser that does not respond in time is killed, and all further
/// calls fail.
pub struct Browser {
    kind: BrowserKind,
    driver: Box<dyn Driver>,
}

/// A tab or window that was opened by [`Browser::open_window`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowId(String);

impl Browser {
    /// Starts a browser with the profile in this directory, which is created if it is empty. Waits until
    /// the browser accepts commands. If the browser ends, or is killed because it is not ready within
    /// [`COMMAND_TIMEOUT`](crate::COMMAND_TIMEOUT), it is started once more, with another new profile if
    /// the directory was empty.
    ///
    /// # Errors
    /// If the browser cannot be started, or is not ready the second time either.
    pub fn open(
        installed: &Installed,
        environment: &dyn Environment,
        profile: &Path,
        settings: &Settings,
    ) -> Result<Self, BrowserError> {
        let driver = open_or_retry(profile, || -> Result<Box<dyn Driver>, BrowserError> {
            Ok(match installed.kind {
                BrowserKind::Chromium => {
                    Box::new(Chromium::open(installed, environment, profile, settings)?)
                }
                BrowserKind::Firefox => {
                    Box::new(Firefox::open(installed, environment, profile, settings)?)
                }
            })
        })?;
        Ok(Self { kind: installed.kind, driver })
    }

    /// Creates a profile, and returns a command that starts the browser for a person: with a window and
    /// without a driver. A page to open can be added as an argument.
    ///
    /// Without a driver, Firefox resolves all names to the first address of [`Settings::hosts`].
    ///
    /// # Errors
    /// If files cannot be written.
    pub fn prepare(
        installed: &Installed,
        profile: &Path,
        settings: &Settings,
    ) -> Result<Command, BrowserError> {
        match installed.kind {
            BrowserKind::Chromium => Chromium::prepare(installed, profile, settings),
            BrowserKind::Firefox => Firefox::prepare(installed, profile, settings),
        }
    }

    /// The kind of browser.
    pub fn kind(&self) -> BrowserKind {
        self.kind
    }

    /// The id of its process and process group, as seen in its environment.
    pub fn id(&self) -> u32 {
        self.driver.id()
    }

    /// Opens a page from `about:blank`, like the address bar. Waits for the load event and until the
    /// largest contentful paint has settled.
    ///
    /// # Errors
    /// [`BrowserError::NavigationFailed`] if the page cannot be opened; the browser stays usable. If it
    /// takes longer than `timeout`, the browser is killed.
    pub fn navigate(&mut self, url: &str, timeout: Duration) -> Result<Navigation, BrowserError> {
        self.driver.navigate(url, timeout)
    }

    /// Like [`Browser::navigate`], and records frames while the page loads. Recording slows the browser.
    ///
    /// # Errors
    /// Like [`Browser::navigate`].
    pub fn navigate_with_frames(
        &mut self,
        url: &str,
        timeout: Duration,
    ) -> Result<(Navigation, Vec<Frame>), BrowserError> {
        self.driver.navigate_with_frames(url, timeout)
    }

    /// Closes all connections to servers. Keeps sessions, and what was learnt about HTTP/3.
    ///
    /// # Errors
    /// If the browser does not respond.
    pub fn close_connections(&mut self) -> Result<(), BrowserError> {
        self.driver.close_connections()
    }

    /// Takes a screenshot of the visible part of the page, as PNG.
    ///
    /// # Errors
    /// If the browser does not respond.
    pub fn screenshot(&mut self) -> Result<Vec<u8>, BrowserError> {
        self.driver.screenshot()
    }

    /// Evaluates an expression in the page. Waits for a promise.
    ///
    /// # Errors
    /// [`BrowserError::Script`] if it throws.
    pub fn evaluate(&mut self, script: &str) -> Result<Value, BrowserError> {
        self.driver.evaluate(script)
    }

    /// Sends a command of the protocol: the Chrome DevTools Protocol (for the driven page) or WebDriver
    /// BiDi.
    ///
    /// # Errors
    /// [`BrowserError::Refused`] if the response is an error.
    pub fn command(&mut self, method: &str, parameters: Value) -> Result<Value, BrowserError> {
        self.driver.command(method, parameters)
    }

    /// Opens a tab, which is driven from now on.
    ///
    /// # Errors
    /// If the browser does not respond.
    pub fn new_tab(&mut self) -> Result<WindowId, BrowserError> {
        self.open_window(Window::Tab)
    }

    /// Opens a tab or window, which is driven from now on.
    ///
    /// # Errors
    /// If the browser does not respond.
    pub fn open_window(&mut self, window: Window) -> Result<WindowId, BrowserError> {
        self.driver.open_window(window).map(WindowId)
    }

    /// The tab or window that is driven.
    pub fn window(&self) -> WindowId {
        WindowId(self.driver.window())
    }

    /// Activates another tab or window, which is driven from now on.
    ///
    /// # Errors
    /// [`BrowserError::Refused`] if it has been closed.
    pub fn show(&mut self, window: &WindowId) -> Result<(), BrowserError> {
        self.driver.show(&window.0)
    }

    /// Closes the browser, so that its profile can be used again. Kills it after five seconds.
    ///
    /// # Errors
    /// [`BrowserError::NotClosed`] if it cannot be killed.
    pub fn close(mut self) -> Result<(), BrowserError> {
        self.driver.close().map_err(|source| BrowserError::NotClosed { browser: self.kind, source })
    }
}

/// Opens a browser, and retries once if it does not become ready: about one start of Firefox in
/// several hundred hangs without an error. Before the retry, a new profile is emptied; if that
/// fails, the first error is returned.
fn open_or_retry<T>(
    profile: &Path,
    mut open: impl FnMut() -> Result<T, BrowserError>,
) -> Result<T, BrowserError> {
    let is_new = match fs::read_dir(profile) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == ErrorKind::NotFound,
    };
    match open() {
        Err(
            error @ (BrowserError::TimedOut { .. }
            | BrowserError::Exited { .. }
            | BrowserError::Start { .. }),
        ) => {
            if is_new && remove_entries(profile).is_err() {
                return Err(error);
            }
            tracing::warn!(%error, "the browser is started once more");
            open()
        }
        opened => opened,
    }
}

/// Empties a directory, which need not exist.
fn remove_entries(directory: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::time::Duration;

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn a_failed_start_is_retried_once_unless_the_browser_is_missing() {
        let directory = TempDir::new().unwrap();
        let hang = || BrowserError::TimedOut {
            browser: BrowserKind::Firefox,
            step: "start".to_owned(),
            command: String::new(),
            timeout: Duration::from_secs(60),
            log: String::new(),
        };
        let open_with = |outcomes: Vec<Result<(), BrowserError>>| {
            let mut outcomes = outcomes.into_iter();
            let opened = open_or_retry(directory.path(), || outcomes.next().unwrap());
            (opened, outcomes.len())
        };
        assert!(matches!(open_with(vec![Err(hang()), Ok(())]), (Ok(()), 0)));
        let exit = || BrowserError::Exited {
            browser: BrowserKind::Chromium,
            step: "start".to_owned(),
            log: String::new(),
        };
        assert!(matches!(open_with(vec![Err(exit()), Ok(())]), (Ok(()), 0)));
        let refused = BrowserError::Start {
            program: "firefox".into(),
            source: ErrorKind::ConnectionRefused.into(),
        };
        assert!(matches!(open_with(vec![Err(refused), Ok(())]), (Ok(()), 0)));
        let twice = open_with(vec![Err(hang()), Err(hang()), Ok(())]);
        assert!(matches!(twice, (Err(BrowserError::TimedOut { .. }), 1)));
        let missing = BrowserError::Missing { kind: BrowserKind::Firefox };
        let failed = open_with(vec![Err(missing), Ok(())]);
        assert!(matches!(failed, (Err(BrowserError::Missing { .. }), 1)));
    }

    #[test]
    fn a_retry_has_a_new_profile_unless_one_existed_before() {
        let directory = TempDir::new().unwrap();
        for (name, expected) in [("new", 1), ("used", 3)] {
            let profile = directory.path().join(name);
            if name == "used" {
                fs::create_dir_all(&profile).unwrap();
                fs::write(profile.join("earlier"), "").unwrap();
            }
            let mut starts = 0;
            let files = open_or_retry(&profile, || {
                starts += 1;
                fs::create_dir_all(&profile).unwrap();
                fs::write(profile.join(starts.to_string()), "").unwrap();
                match starts {
                    1 => Err(BrowserError::Exited {
                        browser: BrowserKind::Chromium,
                        step: "start".to_owned(),
                        log: String::new(),
                    }),
                    _ => Ok(fs::read_dir(&profile).unwrap().count()),
                }
            });
            assert_eq!(files.unwrap(), expected, "{name}");
        }
    }

    #[test]
    fn a_retry_keeps_the_profile_directory_and_needs_it_to_be_emptied() {
        let directory = TempDir::new().unwrap();
        let profile = directory.path().join("profile");
        let exited = || BrowserError::Exited {
            browser: BrowserKind::Chromium,
            step: "start".to_owned(),
            log: String::new(),
        };
        fs::create_dir(&profile).unwrap();
        fs::set_permissions(&profile, fs::Permissions::from_mode(0o711)).unwrap();
        let mut starts = 0;
        let opened = open_or_retry(&profile, || {
            starts += 1;
            assert_eq!(profile.metadata().unwrap().mode() & 0o777, 0o711);
            assert_eq!(fs::read_dir(&profile).unwrap().count(), 0);
            fs::create_dir_all(profile.join("a/b")).unwrap();
            fs::write(profile.join("c"), "").unwrap();
            if starts == 1 { Err(exited()) } else { Ok(()) }
        });
        opened.unwrap();

        let profile = directory.path().join("file");
        let mut starts = 0;
        let opened: Result<(), _> = open_or_retry(&profile, || {
            starts += 1;
            fs::write(&profile, "").unwrap();
            Err(exited())
        });
        assert!(matches!(opened, Err(BrowserError::Exited { .. })) && starts == 1);
    }

    #[test]
    fn the_command_without_a_response_is_named() {
        let error = BrowserError::TimedOut {
            browser: BrowserKind::Firefox,
            step: "start".to_owned(),
            command: String::new(),
            timeout: Duration::from_secs(60),
            log: "; its last output was: x".to_owned(),
        };
        assert_eq!(
            error.during("session.new").to_string(),
            "firefox did not start within 60 s and was killed; it did not respond to session.new; \
             its last output was: x"
        );
    }
}
