//! A service manager that receives notifications.

use std::io::{self, ErrorKind};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use crate::TEST_TIMEOUT;

/// The socket of a service manager such as systemd, for a process's `NOTIFY_SOCKET` (sd_notify).
#[derive(Debug)]
pub struct ServiceManager {
    socket: UnixDatagram,
    path: PathBuf,
}

impl ServiceManager {
    /// Listens at `notify` in this directory.
    ///
    /// # Panics
    /// If the socket cannot be created.
    pub fn new(dir: &Path) -> Self {
        let path = dir.join("notify");
        let socket = UnixDatagram::bind(&path).expect("a socket in the directory");
        socket.set_read_timeout(Some(TEST_TIMEOUT)).expect("a timeout above zero");
        Self { socket, path }
    }

    /// Where it listens.
    ///
    /// # Panics
    /// If the path is not UTF-8.
    pub fn path(&self) -> &str {
        self.path.to_str().expect("a path of ours")
    }

    /// Waits for a message that contains this word, such as `READY=1`, and returns the message.
    ///
    /// # Panics
    /// If none comes in time, or one says that a reload or upgrade has failed (`STATUS=not`) and
    /// does not contain the word.
    pub fn wait_for(&self, word: &str) -> String {
        self.wait_for_or(word, String::new)
    }

    /// [`ServiceManager::wait_for`], with an explanation if it panics, such as the process's log.
    ///
    /// # Panics
    /// As [`ServiceManager::wait_for`].
    pub fn wait_for_or(&self, word: &str, explain: impl Fn() -> String) -> String {
        loop {
            let message = self.receive().unwrap_or_else(|error| {
                panic!("the service manager never hears {word}: {error}: {}", explain())
            });
            if message.contains(word) {
                return message;
            }
            assert!(!message.contains("STATUS=not"), "{message}: {}", explain());
        }
    }

    fn receive(&self) -> io::Result<String> {
        let mut buffer = [0; 4000];
        loop {
            match self.socket.recv(&mut buffer) {
                // A receive with a timeout is not restarted after a signal.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                count => return Ok(String::from_utf8_lossy(&buffer[..count?]).into_owned()),
            }
        }
    }
}
