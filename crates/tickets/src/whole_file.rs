//! Files that are written whole or not at all.

use std::fs::{Metadata, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
use std::path::Path;

use tempfile::NamedTempFile;

/// A temporary file beside `path` that has the bytes on disk, to be renamed. Mode and owner are
/// those of `like`; without it, mode 0600 and our own.
pub(crate) fn prepare(
    path: &Path,
    bytes: &[u8],
    like: Option<&Metadata>,
) -> io::Result<NamedTempFile> {
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let mut file = NamedTempFile::new_in(directory)?;
    file.write_all(bytes)?;
    if let Some(like) = like {
        let own = file.as_file().metadata()?;
        if (own.uid(), own.gid()) != (like.uid(), like.gid()) {
            fchown(file.as_file(), Some(like.uid()), Some(like.gid()))?;
        }
        // After the owner: a change of that takes bits away.
        file.as_file().set_permissions(Permissions::from_mode(like.mode() & 0o777))?;
    }
    file.as_file().sync_all()?;
    Ok(file)
}
