//! Passwords in files of their own, so that a configuration can be shown to anybody.

use std::fmt::Display;
use std::path::Path;

use firstflight_tickets::{SecretFileError, read_secret_file};

/// The first line of a file that nobody else can read.
///
/// # Errors
/// A sentence with the fix.
pub(super) fn read(path: &Path) -> Result<String, String> {
    let cannot = |reason: &dyn Display| {
        format!("cannot read the password in {}: {reason}; give a readable file", path.display())
    };
    let (text, _) = read_secret_file(path).map_err(|error| match error {
        SecretFileError::Read(reason) => cannot(&reason),
        SecretFileError::ReadableByOthers(mode) => format!(
            "the password in {0} can be read by others (mode {mode:03o}); run `chmod 600 {0}`",
            path.display()
        ),
        SecretFileError::TooLong => cannot(&"it is too long for a password"),
    })?;
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => Err(format!("{} has no password in its first line", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_first_line_of_a_file_that_is_ours_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("password");
        let write = |text: &str, mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            read(&path)
        };
        assert_eq!(write("hush\nold\n", 0o600).unwrap(), "hush");
        assert_eq!(write("no end of line", 0o400).unwrap(), "no end of line");
        let error = write("hush\n", 0o640).unwrap_err();
        assert!(error.contains("mode 640") && error.contains("chmod 600"), "{error}");
        assert!(!error.contains("hush"));
        assert!(write("\nhush", 0o600).unwrap_err().contains("no password"));
        assert!(read(dir.path()).unwrap_err().contains("not a regular file"));
        assert!(read(&dir.path().join("none")).unwrap_err().contains("give a readable file"));
    }
}
