//! The admin listener: a TCP or unix socket.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use firstflight_config::{AdminAddress, AdminSettings};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};

use crate::AdminError;

/// A listening socket of either kind.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

/// A connection of either kind.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// The file of a unix socket. Removed on drop, unless another process has replaced it.
pub(crate) struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Listener {
    /// Binds the address of the settings.
    ///
    /// # Errors
    /// [`AdminError::Listen`] or [`AdminError::InUse`].
    pub(crate) async fn open(settings: &AdminSettings) -> Result<Self, AdminError> {
        match &settings.address {
            AdminAddress::Tcp(address) => {
                let listener = TcpListener::bind(address).await;
                listener.map(Self::Tcp).map_err(|reason| listen(address.to_string(), reason))
            }
            AdminAddress::Unix(path) => {
                if is_served(path).await {
                    return Err(AdminError::InUse { path: path.clone() });
                }
                let listening = listen_at(path, settings.socket_mode);
                let (listener, file) =
                    listening.map_err(|reason| listen(path.display().to_string(), reason))?;
                Ok(Self::Unix(listener, file))
            }
        }
    }

    /// The address with its actual port, or `unix:` and the path of the socket.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Tcp(listener) => {
                listener.local_addr().map_or_else(|_| String::new(), |address| address.to_string())
            }
            Self::Unix(_, file) => format!("unix:{}", file.path.display()),
        }
    }

    /// Accepts the next connection.
    ///
    /// # Errors
    /// Errors of `accept`.
    pub(crate) async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                let _ = stream.set_nodelay(true);
                Box::new(stream)
            }
            Self::Unix(listener, _) => Box::new(listener.accept().await?.0),
        })
    }
}

/// Listens at `path`. The socket has these permissions from the start: it is created in a private
/// directory, and then renamed to `path`, where it replaces a stale socket atomically.
fn listen_at(path: &Path, mode: u32) -> io::Result<(UnixListener, SocketFile)> {
    if fs::symlink_metadata(path).is_ok_and(|existing| !existing.file_type().is_socket()) {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file there is not a socket"));
    }
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let parent = path.parent().unwrap_or(Path::new("."));
    let private_dir = parent.join(format!(".{}", hex::encode(random)));
    DirBuilder::new().mode(0o700).create(&private_dir)?;
    let new = private_dir.join("s");
    let listening = (|| {
        let listener = UnixListener::bind(&new)?;
        fs::set_permissions(&new, Permissions::from_mode(mode & 0o777))?;
        let inode = fs::metadata(&new)?.ino();
        fs::rename(&new, path)?;
        Ok((listener, SocketFile { path: path.to_owned(), inode }))
    })();
    if listening.is_err() {
        let _ = fs::remove_file(&new);
    }
    let _ = fs::remove_dir(&private_dir);
    listening
}

/// Whether a process listens at `path`, even if its queue of connections is full.
async fn is_served(path: &Path) -> bool {
    match UnixStream::connect(path).await {
        Ok(_) => true,
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

fn listen(address: String, reason: io::Error) -> AdminError {
    AdminError::Listen { address, reason }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::metadata(&self.path).is_ok_and(|existing| existing.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use firstflight_testkit::TEST_TIMEOUT;

    use super::*;

    #[tokio::test]
    async fn a_unix_socket_is_private_and_removed_with_its_listener() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.sock");
        let mut settings = AdminSettings::new(AdminAddress::Unix(path.clone()));
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        let first = Listener::open(&settings).await.unwrap();
        assert_eq!(mode(), 0o600);
        assert!(matches!(Listener::open(&settings).await, Err(AdminError::InUse { .. })));
        drop(first);
        assert!(!path.exists());
        // A stale socket of a killed process.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        settings.socket_mode = 0o660;
        let second = Listener::open(&settings).await.unwrap();
        assert_eq!(mode(), 0o660);
        assert_eq!(second.name(), format!("unix:{}", path.display()));
        // A socket of another process is not removed.
        fs::remove_file(&path).unwrap();
        let _other = std::os::unix::net::UnixListener::bind(&path).unwrap();
        drop(second);
        assert!(path.exists());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[tokio::test]
    async fn a_process_that_accepts_no_connections_keeps_its_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.sock");
        let socket = tokio::net::UnixSocket::new_stream().unwrap();
        socket.bind(&path).unwrap();
        let _hangs = socket.listen(0).unwrap();
        let _queued = UnixStream::connect(&path).await.unwrap();
        let settings = AdminSettings::new(AdminAddress::Unix(path));
        let opened = tokio::time::timeout(TEST_TIMEOUT, Listener::open(&settings)).await;
        assert!(matches!(opened, Ok(Err(AdminError::InUse { .. }))));
    }

    #[tokio::test]
    async fn a_file_that_is_not_a_socket_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("precious");
        fs::write(&path, "data").unwrap();
        let settings = AdminSettings::new(AdminAddress::Unix(path.clone()));
        let error = Listener::open(&settings).await.map(drop).unwrap_err().to_string();
        assert!(error.contains("not a socket"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"data");
    }
}
