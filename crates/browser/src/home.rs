//! A browser's directory: all files of it lie there, wherever it would put them.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use crate::{BrowserError, Settings};

/// The directory that stands for a user's home.
pub(crate) struct HomeDirectory {
    root: PathBuf,
}

impl HomeDirectory {
    /// Makes what is missing of it.
    pub(crate) fn make(root: &Path) -> Result<Self, BrowserError> {
        for directory in [root.to_owned(), root.join("tmp"), root.join("run")] {
            fs::create_dir_all(&directory).map_err(|source| BrowserError::File {
                verb: "make",
                path: directory.clone(),
                source,
            })?;
        }
        let root = fs::canonicalize(root).map_err(|source| BrowserError::File {
            verb: "find",
            path: root.to_owned(),
            source,
        })?;
        Ok(Self { root })
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.root.join(below)
    }

    /// Where its standard error goes.
    pub(crate) fn log(&self) -> PathBuf {
        self.root.join("browser.log")
    }

    /// A shell that runs a script with `program` as `$0`, in this home and apart from the user's
    /// session.
    pub(crate) fn shell(&self, script: &str, program: &Path, settings: &Settings) -> Command {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(script).arg(program).stderr(Stdio::null());
        // Some scripts end their whole group, which must not be ours.
        command.process_group(0);
        for name in env::vars_os().map(|(name, _)| name).filter(|name| is_of_a_screen(name)) {
            command.env_remove(name);
        }
        self.furnish(&mut command, settings);
        command.env("XDG_RUNTIME_DIR", self.root.join("run"));
        command.env("FIRSTFLIGHT_BROWSER_LOG", self.log());
        command
    }

    /// The program for a person in front of a screen, in this home.
    pub(crate) fn plain(&self, program: &Path, settings: &Settings) -> Command {
        let mut command = Command::new(program);
        self.furnish(&mut command, settings);
        command
    }

    fn furnish(&self, command: &mut Command, settings: &Settings) {
        for name in env::vars_os().map(|(name, _)| name).filter(|name| is_of_a_user(name)) {
            command.env_remove(name);
        }
        command.env("HOME", &self.root).env("TMPDIR", self.root.join("tmp"));
        match &settings.secrets {
            Some(secrets) => command.env("SSLKEYLOGFILE", secrets),
            None => command.env_remove("SSLKEYLOGFILE"),
        };
        command.current_dir(&self.root);
    }
}

/// Variables by which a program would find a user's files, bus or proxy, or be told otherwise than
/// by us. A log of Firefox's own (`MOZ_LOG`) may be requested from outside.
fn is_of_a_user(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    let lower = name.to_ascii_lowercase();
    (name.starts_with("XDG_") && name != "XDG_RUNTIME_DIR" && name != "XDG_SESSION_TYPE")
        || (name.starts_with("MOZ_") && !name.starts_with("MOZ_LOG"))
        || name.starts_with("DBUS_")
        || lower.ends_with("_proxy")
        || ["CHROMIUM_FLAGS", "CHROME_USER_DATA_DIR"].contains(&name)
}

/// Variables by which it would find a screen.
fn is_of_a_screen(name: &OsStr) -> bool {
    ["DISPLAY", "WAYLAND_DISPLAY", "XDG_SESSION_TYPE"].iter().any(|&screen| name == screen)
}
