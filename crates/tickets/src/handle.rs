//! The handle that the TLS side holds: seals and opens, from many threads.

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use sha2::{Digest, Sha256};

use crate::file::{FileError, KeyFile};
use crate::key::Opened;
use crate::ring::{Ring, Warning};
use crate::schedule::{Schedule, UnixTime};

/// Ticket keys in use: a ring and where it comes from. `Send + Sync`; share it in an `Arc`.
///
/// Sealing and opening take a read lock for as long as it takes to copy one pointer. Call
/// [`refresh`](Self::refresh) once a second from a timer: it alone reads the file or makes keys.
#[derive(Debug)]
pub struct TicketKeys {
    ring: RwLock<Arc<Ring>>,
    source: Source,
}

/// What a [`TicketKeys::refresh`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refreshed {
    /// Nothing was due.
    Unchanged,
    /// The in-process ring has turned by its schedule.
    Rotated,
    /// The file was replaced or changed; its ring is in use.
    Reread,
}

impl TicketKeys {
    /// Keys of this process alone, random, rotated by `schedule`. They die with the process, so
    /// that no ticket outlives it.
    pub fn in_process(schedule: Schedule, now: UnixTime) -> Self {
        Self::of(Ring::fresh(schedule, now), Source::InProcess)
    }

    /// Keys from a file, which other processes may use too.
    ///
    /// # Errors
    /// If the file cannot be read, others may read it, or it is not a ticket-key file.
    pub fn from_file(file: KeyFile) -> Result<Self, FileError> {
        let (text, _) = file.read_text()?;
        let ring = file.parse(&text)?;
        let seen = Mutex::new(Seen { digest: digest(&text), complaint: None });
        Ok(Self::of(ring, Source::File { file, seen }))
    }

    /// Seals `content` under the key that is current at `now`, into a ticket that is
    /// [`RING_OVERHEAD`](crate::RING_OVERHEAD) bytes longer.
    pub fn seal(&self, content: &[u8], now: UnixTime) -> Vec<u8> {
        self.ring().seal(content, now)
    }

    /// Opens a ticket sealed under any key of the ring whose tickets still live at `now`.
    pub fn open(&self, ticket: &[u8], now: UnixTime) -> Opened {
        self.ring().open(ticket, now)
    }

    /// Turns an in-process ring when it is due; takes up a changed file. Reads the file whole
    /// each time, some hundred bytes: no time stamp tells a change as surely as the content.
    ///
    /// # Errors
    /// If the file cannot be used. The ring from before stays in use, and the same error is given
    /// only once as long as it lasts.
    pub fn refresh(&self, now: UnixTime) -> Result<Refreshed, FileError> {
        match &self.source {
            Source::InProcess => Ok(self.keep_up(now)),
            Source::File { file, seen } => {
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                match self.reread(file, &mut seen) {
                    Ok(refreshed) => {
                        seen.complaint = None;
                        Ok(refreshed)
                    }
                    Err(error) => seen.complain(error),
                }
            }
        }
    }

    /// The ring in use.
    pub fn ring(&self) -> Arc<Ring> {
        Arc::clone(&self.ring.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The schedule in use. Its lifetime is the one to set as the TLS session timeout.
    pub fn schedule(&self) -> Schedule {
        self.ring().schedule()
    }

    /// What an operator should know about the ring at `now`.
    pub fn warnings(&self, now: UnixTime) -> Vec<Warning> {
        self.ring().warnings(now)
    }

    /// Whether a ticket may come that another process, or an earlier one, has issued: if so, the
    /// strike register has to begin with a recording window (RFC 8446 section 8.2).
    pub fn may_predate_start(&self) -> bool {
        matches!(self.source, Source::File { .. })
    }

    fn of(ring: Ring, source: Source) -> Self {
        Self { ring: RwLock::new(Arc::new(ring)), source }
    }

    fn keep_up(&self, now: UnixTime) -> Refreshed {
        if now < self.ring().due() {
            return Refreshed::Unchanged;
        }
        let mut ring = self.ring.write().unwrap_or_else(PoisonError::into_inner);
        // Asked again: another thread may have come first.
        if now < ring.due() {
            return Refreshed::Unchanged;
        }
        Arc::make_mut(&mut ring).keep_up(now);
        Refreshed::Rotated
    }

    fn reread(&self, file: &KeyFile, seen: &mut Seen) -> Result<Refreshed, FileError> {
        let (text, _) = file.read_text()?;
        let digest = digest(&text);
        if digest == seen.digest {
            return Ok(Refreshed::Unchanged);
        }
        let ring = Arc::new(file.parse(&text)?);
        *self.ring.write().unwrap_or_else(PoisonError::into_inner) = ring;
        seen.digest = digest;
        Ok(Refreshed::Reread)
    }
}

#[derive(Debug)]
enum Source {
    InProcess,
    File { file: KeyFile, seen: Mutex<Seen> },
}

/// The file as it was when its ring was taken up, and what was wrong with it since.
#[derive(Debug)]
struct Seen {
    digest: [u8; 32],
    complaint: Option<String>,
}

impl Seen {
    /// Passes an error on if it is news.
    fn complain(&mut self, error: FileError) -> Result<Refreshed, FileError> {
        let complaint = Some(error.to_string());
        if self.complaint == complaint {
            return Ok(Refreshed::Unchanged);
        }
        self.complaint = complaint;
        Err(error)
    }
}

fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

#[cfg(test)]
#[path = "handle_tests.rs"]
mod tests;
