//! Files with secrets in them: read whole, and only if nobody else can.

use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use zeroize::Zeroizing;

/// Why a file with secrets was not read.
#[derive(Debug)]
pub enum SecretFileError {
    /// The system's reason.
    Read(io::Error),
    /// Others may read or write it; its permission bits.
    ReadableByOthers(u32),
    /// It is longer than 64 KiB.
    TooLong,
}

/// The file's text and metadata, once it is certain that only its owner can read it. Symbolic
/// links are followed.
///
/// # Errors
/// [`SecretFileError`].
pub fn read(path: &Path) -> Result<(Zeroizing<String>, Metadata), SecretFileError> {
    // Asked before opening, as opening a pipe would wait for its writer.
    if !fs::metadata(path).map_err(SecretFileError::Read)?.is_file() {
        return Err(SecretFileError::Read(io::Error::other("it is not a regular file")));
    }
    let file = File::open(path).map_err(SecretFileError::Read)?;
    let metadata = file.metadata().map_err(SecretFileError::Read)?;
    let ours = nix::unistd::geteuid().as_raw();
    if too_open(metadata.mode(), metadata.uid(), ours) {
        return Err(SecretFileError::ReadableByOthers(metadata.mode() & 0o777));
    }
    // Room for all of it from the start: growing would leave copies of secrets behind.
    let mut text = Zeroizing::new(String::with_capacity(MAX_BYTES as usize + 1));
    file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(SecretFileError::Read)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(SecretFileError::TooLong);
    }
    Ok((text, metadata))
}

/// Whether others than we may read or write a file of this mode and owner.
///
/// A group may read what belongs to root if we are not root: so Kubernetes gives a pod with an
/// `fsGroup` its secrets, mode 0440 whatever was requested, and the pod can't change that.
fn too_open(mode: u32, owner: u32, ours: u32) -> bool {
    let given_by_root = owner == 0 && ours != 0;
    let forbidden = if given_by_root { 0o037 } else { 0o077 };
    mode & forbidden != 0
}

/// The longest file that is read.
pub(crate) const MAX_BYTES: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_may_read_what_root_gave_us() {
        let (root, user) = (0, 1000);
        for mode in [0o400, 0o600] {
            assert!(!too_open(mode, user, user) && !too_open(mode, root, root));
        }
        assert!(too_open(0o440, user, user) && too_open(0o440, root, root));
        assert!(too_open(0o440, user, root) && too_open(0o440, 1001, user));
        assert!(!too_open(0o440, root, user));
        for mode in [0o444, 0o460, 0o404, 0o402] {
            assert!(too_open(mode, root, user), "{mode:o}");
        }
    }
}
