//! Files for the static directory, small ones read at once.
//!
//! An answer that is there when the request has been read leaves in one write with the server's
//! handshake flight; reading on another thread would let the flight go first and the answer after
//! it. Small files nearly always lie in the page cache, where a read takes microseconds. Large ones
//! are read on tokio's file threads as they are sent.

use std::fs::Metadata;
use std::future::{Ready, ready};
use std::io::{self, Cursor, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::Mode;
use tokio::io::{AsyncRead, AsyncSeek, ReadBuf};
use tower_http::services::fs::{Backend, File};

/// Files up to this size are read at once: what leaves in a few flights anyway.
const SMALL: u64 = 64 * 1024;

/// Opens files below a directory. Symbolic links lead nowhere outside it, whatever happens in it
/// meanwhile: the kernel sees to that, name by name.
#[derive(Clone, Debug)]
pub(crate) struct PromptBackend {
    root: Arc<Path>,
    follow_symlinks: bool,
}

impl PromptBackend {
    /// Files below `root`.
    ///
    /// # Errors
    /// What keeps the kernel from opening below a directory.
    pub(crate) fn new(root: &Path, follow_symlinks: bool) -> io::Result<Self> {
        let files = Self { root: root.into(), follow_symlinks };
        match files.below(root, OFlag::O_PATH) {
            Ok(_) => Ok(files),
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "symbolic links cannot be kept within a directory: this kernel is older than Linux \
                 5.6, or the sandbox forbids openat2 (systemd's RestrictSUIDSGID does); allow links \
                 with follow_symlinks = true",
            )),
            Err(error) => Err(error),
        }
    }

    /// Opens a path, which is the directory's or below it.
    fn below(&self, path: &Path, flags: OFlag) -> io::Result<std::fs::File> {
        let flags = flags | OFlag::O_CLOEXEC;
        if self.follow_symlinks {
            return Ok(open(path, flags, Mode::empty())?.into());
        }
        let below = path.strip_prefix(&self.root).map_err(io::Error::other)?;
        let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
        // Each time by its name: what it stands for may be replaced, as deployments do.
        let flags_of_root = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let root: OwnedFd = open(&*self.root, flags_of_root, Mode::empty())?;
        let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        let how = OpenHow::new().flags(flags).resolve(resolve);
        let mut tries = 0;
        loop {
            match openat2(&root, below, how) {
                Ok(file) => return Ok(file.into()),
                // Something was renamed while the kernel looked.
                Err(Errno::EAGAIN) if tries < RENAMES => tries += 1,
                Err(Errno::EAGAIN | Errno::EXDEV | Errno::ELOOP | Errno::ENAMETOOLONG) => {
                    return Err(io::ErrorKind::NotFound.into());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn metadata_of(&self, path: &Path) -> io::Result<Metadata> {
        self.below(path, OFlag::O_PATH)?.metadata()
    }

    fn read(&self, path: &Path) -> io::Result<PromptFile> {
        // Opening a pipe could keep the whole worker waiting.
        let file = self.below(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "it is no regular file"));
        }
        let content = match metadata.len() {
            0..=SMALL => {
                let mut bytes = Vec::with_capacity(metadata.len() as usize);
                // A file that grows meanwhile is served as long as it was.
                file.take(metadata.len()).read_to_end(&mut bytes)?;
                PromptContent::Read(Cursor::new(bytes))
            }
            _ => PromptContent::Handle(tokio::fs::File::from_std(file)),
        };
        Ok(PromptFile { metadata, content })
    }
}

/// How often a name is looked up again when something was renamed meanwhile.
const RENAMES: usize = 4;

/// An open file: all of a small one, a handle to a large one.
#[derive(Debug)]
pub(crate) struct PromptFile {
    metadata: Metadata,
    content: PromptContent,
}

#[derive(Debug)]
enum PromptContent {
    Read(Cursor<Vec<u8>>),
    Handle(tokio::fs::File),
}

impl Backend for PromptBackend {
    type File = PromptFile;
    type Metadata = Metadata;
    type OpenFuture = Ready<io::Result<PromptFile>>;
    type MetadataFuture = Ready<io::Result<Metadata>>;

    fn open(&self, path: PathBuf) -> Self::OpenFuture {
        ready(self.read(&path))
    }

    fn metadata(&self, path: PathBuf) -> Self::MetadataFuture {
        ready(self.metadata_of(&path))
    }
}

impl File for PromptFile {
    type Metadata = Metadata;
    type MetadataFuture<'a> = Ready<io::Result<Metadata>>;

    fn metadata(&self) -> Self::MetadataFuture<'_> {
        ready(Ok(self.metadata.clone()))
    }
}

impl AsyncRead for PromptFile {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.content {
            PromptContent::Read(bytes) => Pin::new(bytes).poll_read(cx, buffer),
            PromptContent::Handle(file) => Pin::new(file).poll_read(cx, buffer),
        }
    }
}

impl AsyncSeek for PromptFile {
    fn start_seek(mut self: Pin<&mut Self>, position: io::SeekFrom) -> io::Result<()> {
        match &mut self.content {
            PromptContent::Read(bytes) => Pin::new(bytes).start_seek(position),
            PromptContent::Handle(file) => Pin::new(file).start_seek(position),
        }
    }

    fn poll_complete(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<u64>> {
        match &mut self.content {
            PromptContent::Read(bytes) => Pin::new(bytes).poll_complete(cx),
            PromptContent::Handle(file) => Pin::new(file).poll_complete(cx),
        }
    }
}
