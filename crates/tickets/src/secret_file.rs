//! Files with secrets: read only if nobody else can read them, and written atomically.

use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
use std::path::Path;

use tempfile::NamedTempFile;
use zeroize::Zeroizing;

/// Why a file with secrets was not read.
#[derive(Debug)]
pub enum SecretFileError {
    /// The system's reason.
    Read(io::Error),
    /// Others may read or write the file, which has these permission bits.
    ReadableByOthers(u32),
    /// The file is longer than 64 KiB.
    TooLong,
}

/// Reads a file's text and metadata, if only its owner can read it. Follows symbolic links.
///
/// # Errors
/// [`SecretFileError`].
pub fn read(path: &Path) -> Result<(Zeroizing<String>, Metadata), SecretFileError> {
    // Checked before opening, because opening a pipe would wait for its writer.
    if !fs::metadata(path).map_err(SecretFileError::Read)?.is_file() {
        return Err(SecretFileError::Read(io::Error::other("it is not a regular file")));
    }
    let file = File::open(path).map_err(SecretFileError::Read)?;
    let metadata = file.metadata().map_err(SecretFileError::Read)?;
    let process_user = nix::unistd::geteuid().as_raw();
    if is_readable_by_others(metadata.mode(), metadata.uid(), process_user) {
        return Err(SecretFileError::ReadableByOthers(metadata.mode() & 0o777));
    }
    // Allocates once: growing would leave copies of secrets in memory.
    let mut text = Zeroizing::new(String::with_capacity(MAX_BYTES as usize + 1));
    file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(SecretFileError::Read)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(SecretFileError::TooLong);
    }
    Ok((text, metadata))
}

/// Whether other users may read or write a file of this mode and owner.
///
/// If this process is not root, a group may read a file that belongs to root: Kubernetes mounts
/// secrets for a pod with an `fsGroup` with mode 0440, and the pod cannot change that.
fn is_readable_by_others(mode: u32, owner: u32, process_user: u32) -> bool {
    let mounted_by_root = owner == 0 && process_user != 0;
    let forbidden = if mounted_by_root { 0o037 } else { 0o077 };
    mode & forbidden != 0
}

/// The longest file that is read.
pub(crate) const MAX_BYTES: u64 = 64 * 1024;

/// Writes a temporary file beside `path`, to be renamed by [`persist`]. Mode and owner are those of
/// `reference`; without it, mode 0600 and this process's user.
pub(crate) fn prepare(
    path: &Path,
    bytes: &[u8],
    reference: Option<&Metadata>,
) -> io::Result<NamedTempFile> {
    let mut file = NamedTempFile::new_in(directory_of(path))?;
    file.write_all(bytes)?;
    if let Some(reference) = reference {
        let own = file.as_file().metadata()?;
        if (own.uid(), own.gid()) != (reference.uid(), reference.gid()) {
            fchown(file.as_file(), Some(reference.uid()), Some(reference.gid()))?;
        }
        // After the owner, because changing the owner clears mode bits.
        file.as_file().set_permissions(Permissions::from_mode(reference.mode() & 0o777))?;
    }
    file.as_file().sync_all()?;
    Ok(file)
}

/// Renames a [prepared](prepare) file to `path`, replacing an existing file.
pub(crate) fn persist(file: NamedTempFile, path: &Path) -> io::Result<()> {
    file.persist(path)?;
    sync_directory(path);
    Ok(())
}

/// As [`persist`], but fails with [`io::ErrorKind::AlreadyExists`] if `path` exists.
pub(crate) fn persist_new(file: NamedTempFile, path: &Path) -> io::Result<()> {
    file.persist_noclobber(path)?;
    sync_directory(path);
    Ok(())
}

/// Writes the new name to disk, so that keys that were replaced do not come back after a power failure.
/// Errors do not matter: the file is in use by then, and not all file systems support this.
fn sync_directory(path: &Path) {
    let _ = File::open(directory_of(path)).and_then(|directory| directory.sync_all());
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_may_read_a_file_that_root_mounted() {
        let (root, user) = (0, 1000);
        for mode in [0o400, 0o600] {
            assert!(
                !is_readable_by_others(mode, user, user)
                    && !is_readable_by_others(mode, root, root)
            );
        }
        assert!(
            is_readable_by_others(0o440, user, user) && is_readable_by_others(0o440, root, root)
        );
        assert!(
            is_readable_by_others(0o440, user, root) && is_readable_by_others(0o440, 1001, user)
        );
        assert!(!is_readable_by_others(0o440, root, user));
        for mode in [0o444, 0o460, 0o404, 0o402] {
            assert!(is_readable_by_others(mode, root, user), "{mode:o}");
        }
    }
}
