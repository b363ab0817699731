//! The profile of a browser: a directory for all its files, and the certificates that it trusts.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use crate::{BrowserError, BrowserKind, Settings};

/// The directory that replaces the home of a user.
pub(crate) struct ProfileDirectory {
    root: PathBuf,
}

impl ProfileDirectory {
    /// Creates the directory, if it is missing.
    pub(crate) fn create(root: &Path) -> Result<Self, BrowserError> {
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

    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.root.join(relative)
    }

    /// The file with the standard error of the browser.
    pub(crate) fn log(&self) -> PathBuf {
        self.root.join("browser.log")
    }

    /// A shell that runs a script with `program` as `$0`, in this directory and without the session of
    /// the user.
    pub(crate) fn shell(&self, script: &str, program: &Path, settings: &Settings) -> Command {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(script).arg(program).stderr(Stdio::null());
        // Some scripts kill their process group, which must not include this process.
        command.process_group(0);
        for name in env::vars_os().map(|(name, _)| name).filter(|name| is_screen_variable(name)) {
            command.env_remove(name);
        }
        self.set_environment(&mut command, settings);
        command.env("XDG_RUNTIME_DIR", self.root.join("run"));
        command.env("FIRSTFLIGHT_BROWSER_LOG", self.log());
        command
    }

    /// A command that starts the program on the user's screen, with its files in this directory.
    pub(crate) fn interactive_command(&self, program: &Path, settings: &Settings) -> Command {
        let mut command = Command::new(program);
        self.set_environment(&mut command, settings);
        command
    }

    fn set_environment(&self, command: &mut Command, settings: &Settings) {
        for name in env::vars_os().map(|(name, _)| name).filter(|name| is_user_variable(name)) {
            command.env_remove(name);
        }
        command.env("HOME", &self.root).env("TMPDIR", self.root.join("tmp"));
        match &settings.key_log {
            Some(secrets) => command.env("SSLKEYLOGFILE", secrets),
            None => command.env_remove("SSLKEYLOGFILE"),
        };
        command.current_dir(&self.root);
    }
}

/// Variables that refer to files, buses or proxies of a user, or change the behaviour of a browser.
/// `MOZ_LOG` is kept, so that logs of Firefox can be requested.
fn is_user_variable(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    let lower = name.to_ascii_lowercase();
    (name.starts_with("XDG_") && name != "XDG_RUNTIME_DIR" && name != "XDG_SESSION_TYPE")
        || (name.starts_with("MOZ_") && !name.starts_with("MOZ_LOG"))
        || name.starts_with("DBUS_")
        || lower.ends_with("_proxy")
        || ["CHROMIUM_FLAGS", "CHROME_USER_DATA_DIR"].contains(&name)
}

/// Variables that refer to a screen.
fn is_screen_variable(name: &OsStr) -> bool {
    ["DISPLAY", "WAYLAND_DISPLAY", "XDG_SESSION_TYPE"].iter().any(|&screen| name == screen)
}

/// Adds all certificates of the settings to the NSS database in a directory. Creates the database if
/// necessary.
pub(crate) fn add_certificates(
    kind: BrowserKind,
    directory: &Path,
    settings: &Settings,
) -> Result<(), BrowserError> {
    if settings.trust.is_empty() {
        return Ok(());
    }
    let fail = |reason: String| BrowserError::Trust { browser: kind, reason };
    fs::create_dir_all(directory).map_err(|error| fail(error.to_string()))?;
    let database = format!("sql:{}", directory.display());
    if !directory.join("cert9.db").exists() {
        certutil(&["-N", "--empty-password", "-d", &database]).map_err(fail)?;
    }
    for (file, path) in settings.trust.iter().enumerate() {
        let pem = fs::read_to_string(path)
            .map_err(|error| fail(format!("cannot read {}: {error}", path.display())))?;
        for (index, certificate) in certificates(&pem).iter().enumerate() {
            let name = format!("firstflight {file}.{index}");
            let der_file = directory.join("firstflight-trust.der");
            fs::write(&der_file, certificate).map_err(|error| fail(error.to_string()))?;
            let der_file = der_file.display().to_string();
            // P: a trusted server certificate. C: a trusted authority for servers.
            certutil(&["-A", "-d", &database, "-n", &name, "-t", "CP,,", "-i", &der_file])
                .map_err(fail)?;
        }
    }
    Ok(())
}

fn certutil(arguments: &[&str]) -> Result<(), String> {
    let mut command = Command::new("certutil");
    command.args(arguments).stdin(Stdio::null());
    let output = command.output().map_err(|error| format!("cannot start certutil: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(format!("certutil reports {:?}", stderr.trim()))
}

/// Reads the certificates of a PEM file (RFC 7468), as DER.
pub(crate) fn certificates(pem: &str) -> Vec<Vec<u8>> {
    pem.split("-----BEGIN CERTIFICATE-----")
        .skip(1)
        .filter_map(|rest| rest.split("-----END CERTIFICATE-----").next())
        .filter_map(|body| {
            let body: String = body.split_whitespace().collect();
            BASE64_STANDARD.decode(body).ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_certificate_of_a_file_is_found() {
        let pem = "words\n-----BEGIN CERTIFICATE-----\nAAEC\nAwQ=\n-----END CERTIFICATE-----\n\
                   -----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n\
                   -----BEGIN CERTIFICATE-----\n/w==\n-----END CERTIFICATE-----\n";
        assert_eq!(certificates(pem), [vec![0, 1, 2, 3, 4], vec![255]]);
        assert!(
            certificates("-----BEGIN CERTIFICATE-----\n*\n-----END CERTIFICATE-----").is_empty()
        );
    }
}
