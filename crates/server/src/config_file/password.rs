//! Passwords in files of their own, so that a configuration can be shown to anybody.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The first line of a file that nobody else can read.
///
/// # Errors
/// A sentence with the mend.
pub(super) fn read(path: &Path) -> Result<String, String> {
    let cannot = |reason: String| {
        format!("cannot read the password in {}: {reason}; give a readable file", path.display())
    };
    let metadata = fs::metadata(path).map_err(|error| cannot(error.to_string()))?;
    if !metadata.is_file() {
        return Err(cannot("it is no regular file".to_owned()));
    }
    let mode = metadata.mode() & 0o777;
    if too_open(mode, metadata.uid(), nix::unistd::geteuid().as_raw()) {
        return Err(format!(
            "the password in {0} can be read by others (mode {mode:03o}); run `chmod 600 {0}`",
            path.display()
        ));
    }
    let text = fs::read_to_string(path).map_err(|error| cannot(error.to_string()))?;
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => Err(format!("{} has no password in its first line", path.display())),
    }
}

/// A group may read what belongs to root if we are not root: so Kubernetes gives its secrets to a
/// pod with an `fsGroup`.
fn too_open(mode: u32, owner: u32, ours: u32) -> bool {
    let forbidden = if owner == 0 && ours != 0 { 0o037 } else { 0o077 };
    mode & forbidden != 0
}

#[cfg(test)]
mod tests {
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
        assert!(read(dir.path()).unwrap_err().contains("no regular file"));
        assert!(read(&dir.path().join("none")).unwrap_err().contains("give a readable file"));
    }

    #[test]
    fn a_group_may_read_what_root_gave_us() {
        assert!(!too_open(0o440, 0, 1000) && too_open(0o444, 0, 1000));
        assert!(too_open(0o440, 1000, 1000) && too_open(0o440, 0, 0));
    }
}
