//! Where the operators' side listens: loopback, another address, or a unix socket.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::net::TcpListener as StdTcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use firstflight_config::{AdminAddress, AdminSettings};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

use crate::AdminError;

/// A listening socket of either kind.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

/// A connection of either kind.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A unix socket's file, which goes with its listener unless another process has replaced it, or
/// listens there too.
pub(crate) struct SocketFile {
    path: PathBuf,
    inode: u64,
    left: AtomicBool,
}

impl Listener {
    /// Listens.
    ///
    /// # Errors
    /// [`AdminError`].
    pub(crate) async fn open(settings: &AdminSettings) -> Result<Self, AdminError> {
        match &settings.address {
            AdminAddress::Tcp(address) => {
                let listener = TcpListener::bind(address).await;
                listener.map(Self::Tcp).map_err(|reason| listen(address.to_string(), reason))
            }
            AdminAddress::Unix(path) => {
                if is_served(path) {
                    return Err(AdminError::InUse { path: path.clone() });
                }
                let listening = listen_at(path, settings.socket_mode);
                let (listener, file) =
                    listening.map_err(|reason| listen(path.display().to_string(), reason))?;
                Ok(Self::Unix(listener, file))
            }
        }
    }

    /// Goes on with a socket of the process before this one.
    ///
    /// # Errors
    /// [`AdminError::Listen`] if it is none that these settings want.
    pub(crate) fn adopt(settings: &AdminSettings, socket: OwnedFd) -> Result<Self, AdminError> {
        match &settings.address {
            AdminAddress::Tcp(address) => {
                let adopted = adopt_tcp(socket.into());
                adopted.map(Self::Tcp).map_err(|reason| listen(address.to_string(), reason))
            }
            AdminAddress::Unix(path) => {
                let adopted = adopt_unix(socket.into(), path);
                adopted
                    .map(|(listener, file)| Self::Unix(listener, file))
                    .map_err(|reason| listen(path.display().to_string(), reason))
            }
        }
    }

    /// The same socket, for another process.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn share(&self) -> io::Result<OwnedFd> {
        match self {
            Self::Tcp(listener) => listener.as_fd().try_clone_to_owned(),
            Self::Unix(listener, _) => listener.as_fd().try_clone_to_owned(),
        }
    }

    /// Another process listens here: a socket's file stays.
    pub(crate) fn leave(&self) {
        if let Self::Unix(_, file) = self {
            file.left.store(true, Ordering::Relaxed);
        }
    }

    /// The address, with the port that the system chose, or `unix:` and the socket's path.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Tcp(listener) => {
                listener.local_addr().map_or_else(|_| String::new(), |address| address.to_string())
            }
            Self::Unix(_, file) => format!("unix:{}", file.path.display()),
        }
    }

    /// The next connection.
    ///
    /// # Errors
    /// The system's.
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

/// Listens at `path` with these permissions from the first moment on: the socket is made where
/// nobody else gets at it, and takes the place of a dead one in one step.
fn listen_at(path: &Path, mode: u32) -> io::Result<(UnixListener, SocketFile)> {
    if fs::symlink_metadata(path).is_ok_and(|there| !there.file_type().is_socket()) {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file there is no socket"));
    }
    let mut unguessed = [0; 8];
    getrandom::fill(&mut unguessed).map_err(io::Error::other)?;
    let beside = path.parent().unwrap_or(Path::new("."));
    let workshop = beside.join(format!(".{}", hex::encode(unguessed)));
    DirBuilder::new().mode(0o700).create(&workshop)?;
    let made = workshop.join("s");
    let listening = (|| {
        let listener = UnixListener::bind(&made)?;
        fs::set_permissions(&made, Permissions::from_mode(mode & 0o777))?;
        let inode = fs::metadata(&made)?.ino();
        fs::rename(&made, path)?;
        Ok((listener, SocketFile { path: path.to_owned(), inode, left: AtomicBool::new(false) }))
    })();
    if listening.is_err() {
        let _ = fs::remove_file(&made);
    }
    let _ = fs::remove_dir(&workshop);
    listening
}

fn adopt_tcp(listener: StdTcpListener) -> io::Result<TcpListener> {
    // It answers for a listener of its kind alone.
    listener.local_addr()?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

fn adopt_unix(listener: StdUnixListener, path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let inode = fs::metadata(path)?.ino();
    let file = SocketFile { path: path.to_owned(), inode, left: AtomicBool::new(false) };
    Ok((UnixListener::from_std(listener)?, file))
}

/// Whether somebody listens at `path`.
fn is_served(path: &Path) -> bool {
    StdUnixStream::connect(path).is_ok()
}

fn listen(address: String, reason: io::Error) -> AdminError {
    AdminError::Listen { address, reason }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = !self.left.load(Ordering::Relaxed);
        if ours && fs::metadata(&self.path).is_ok_and(|there| there.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_unix_socket_is_its_owners_and_goes_with_its_process() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.sock");
        let mut settings = AdminSettings::new(AdminAddress::Unix(path.clone()));
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        let first = Listener::open(&settings).await.unwrap();
        assert_eq!(mode(), 0o600);
        assert!(matches!(Listener::open(&settings).await, Err(AdminError::InUse { .. })));
        drop(first);
        assert!(!path.exists());
        // One that a killed process has left behind.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        settings.socket_mode = 0o660;
        let second = Listener::open(&settings).await.unwrap();
        assert_eq!(mode(), 0o660);
        assert_eq!(second.name(), format!("unix:{}", path.display()));
        // Somebody else's by now: left alone.
        fs::remove_file(&path).unwrap();
        let _theirs = std::os::unix::net::UnixListener::bind(&path).unwrap();
        drop(second);
        assert!(path.exists());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[tokio::test]
    async fn a_file_that_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("precious");
        fs::write(&path, "data").unwrap();
        let settings = AdminSettings::new(AdminAddress::Unix(path.clone()));
        let error = Listener::open(&settings).await.map(drop).unwrap_err().to_string();
        assert!(error.contains("no socket"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"data");
    }
}
