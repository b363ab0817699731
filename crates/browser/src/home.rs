//! A browser's directory: all files of it lie there, wherever it would put them.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{BrowserError, Settings};

/// The directory that stands for a user's home.
pub(crate) struct Home {
    root: PathBuf,
}

impl Home {
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
        for (name, _) in std::env::vars_os() {
            if is_of_a_session(&name) {
                command.env_remove(&name);
            }
        }
        command.env("HOME", &self.root).env("TMPDIR", self.root.join("tmp"));
        command.env("XDG_RUNTIME_DIR", self.root.join("run"));
        command.env("FIRSTFLIGHT_BROWSER_LOG", self.log());
        if let Some(secrets) = &settings.secrets {
            command.env("SSLKEYLOGFILE", secrets);
        } else {
            command.env_remove("SSLKEYLOGFILE");
        }
        command.current_dir(&self.root);
        command
    }
}

/// Variables by which a program would find a user's files, screen, bus or proxy.
fn is_of_a_session(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    let lower = name.to_ascii_lowercase();
    name.starts_with("XDG_")
        || (name.starts_with("MOZ_") && !name.starts_with("MOZ_LOG"))
        || name.starts_with("DBUS_")
        || lower.ends_with("_proxy")
        || ["DISPLAY", "WAYLAND_DISPLAY", "CHROMIUM_FLAGS", "CHROME_USER_DATA_DIR"].contains(&name)
}
