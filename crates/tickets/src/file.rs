//! A ring in a file that several processes share.
//!
//! ```toml
//! version = 1
//! rotation_seconds = 43200    # 60 to 604800
//! lifetime_seconds = 43200    # 1 to 604800, at most 7 days
//!
//! [[key]]                     # one or more, the oldest first
//! name = "..."                # 32 hexadecimal digits
//! secret = "..."              # 64 hexadecimal digits
//! not_before = 1790000000     # seconds since 1970, ascending
//! ```
//!
//! The key with the latest `not_before` that is not in the future is current. Processes agree on it
//! as far as their clocks agree. A clock that is off does no harm, since all have all keys.

use std::fmt::Write as _;
use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use tempfile::NamedTempFile;
use thiserror::Error;
use toml::Spanned;
use zeroize::Zeroizing;

use crate::key::TicketKey;
use crate::ring::{DatedKey, Ring, RingError};
use crate::schedule::{Schedule, ScheduleError, UnixTime};
use crate::secret_file::{self, MAX_BYTES, SecretFileError};

/// A ticket-key file, by its path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyFile {
    path: PathBuf,
}

/// Why a ticket-key file cannot be used. No message shows a secret.
#[derive(Debug, Error)]
pub enum FileError {
    /// It cannot be read.
    #[error(
        "cannot read ticket keys from {}: {source}; give a file that `firstflight keys new` made \
         for this user",
        path.display()
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Others than the file's owner may read or write it.
    #[error(
        "ticket keys in {} can be read by others (mode {mode:03o}); run `chmod 600 {}`",
        path.display(), path.display()
    )]
    ReadableByOthers {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It is not a ticket-key file.
    #[error("{} line {line}: {problem}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// A new file was requested at an existing path.
    #[error("{} exists already; choose another name, or rotate its keys", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// It cannot be written.
    #[error("cannot write ticket keys to {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl KeyFile {
    /// The ticket-key file at `path`. Touches nothing.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Generates keys and writes them to a new file, atomically, with mode 0600.
    ///
    /// # Errors
    /// Returns [`FileError`] if the path exists or cannot be written.
    pub fn write_new(&self, schedule: Schedule, now: UnixTime) -> Result<Ring, FileError> {
        let ring = Ring::generate(schedule, now);
        let file = self.prepare(&ring, None)?;
        secret_file::persist_new(file, &self.path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => FileError::Exists { path: self.path.clone() },
            _ => self.write_error(error),
        })?;
        Ok(ring)
    }

    /// Reads the ring.
    ///
    /// # Errors
    /// If the file cannot be read, others may read it, or it is not a ticket-key file.
    pub fn read(&self) -> Result<Ring, FileError> {
        self.parse(&self.read_text()?.0)
    }

    /// Rotates the ring in the file ([`Ring::rotate`]) and replaces the file atomically. Keeps its
    /// owner; a symbolic link is followed.
    ///
    /// # Errors
    /// Returns [`FileError`] if the file cannot be read, is invalid, or cannot be replaced.
    pub fn rotate(&self, now: UnixTime) -> Result<Ring, FileError> {
        let path = self.path.canonicalize().map_err(|source| self.read_error(source))?;
        let target = Self::new(path);
        let (text, metadata) = target.read_text()?;
        let mut ring = target.parse(&text)?;
        ring.rotate(now);
        let file = target.prepare(&ring, Some(&metadata))?;
        secret_file::persist(file, &target.path).map_err(|error| target.write_error(error))?;
        Ok(ring)
    }

    /// Reads the file's text and metadata, if only its owner can read it.
    pub(crate) fn read_text(&self) -> Result<(Zeroizing<String>, Metadata), FileError> {
        secret_file::read(&self.path).map_err(|error| match error {
            SecretFileError::Read(source) => self.read_error(source),
            SecretFileError::ReadableByOthers(mode) => {
                FileError::ReadableByOthers { path: self.path.clone(), mode }
            }
            SecretFileError::TooLong => {
                let problem = format!("a ticket-key file has {MAX_BYTES} bytes at most");
                FileError::Content { path: self.path.clone(), line: 1, problem }
            }
        })
    }

    /// Parses `text`. The file's path is used in messages only.
    ///
    /// # Errors
    /// [`FileError::Content`] with the line.
    pub fn parse(&self, text: &str) -> Result<Ring, FileError> {
        parse(text).map_err(|Problem { at, problem }| FileError::Content {
            path: self.path.clone(),
            line: 1 + text.as_bytes()[..at.min(text.len())].iter().filter(|b| **b == b'\n').count(),
            problem,
        })
    }

    /// A temporary file beside the target, with the ring in it, on disk, mode 0600.
    fn prepare(
        &self,
        ring: &Ring,
        reference: Option<&Metadata>,
    ) -> Result<NamedTempFile, FileError> {
        secret_file::prepare(&self.path, text_of(ring).as_bytes(), reference)
            .map_err(|source| self.write_error(source))
    }

    fn read_error(&self, source: io::Error) -> FileError {
        FileError::Read { path: self.path.clone(), source }
    }

    fn write_error(&self, source: io::Error) -> FileError {
        FileError::Write { path: self.path.clone(), source }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: Spanned<i64>,
    rotation_seconds: Spanned<u64>,
    lifetime_seconds: Spanned<u64>,
    key: Vec<Spanned<Entry>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: Spanned<Zeroizing<String>>,
    secret: Spanned<Zeroizing<String>>,
    not_before: u64,
}

/// What is wrong with a text, and at which byte offset.
struct Problem {
    at: usize,
    problem: String,
}

impl Ring {
    /// Serializes as a key file, for a successor process.
    pub fn to_text(&self) -> Zeroizing<String> {
        text_of(self)
    }

    /// Parses [`Ring::to_text`]. Returns `None` if it is invalid.
    pub fn from_text(text: &str) -> Option<Self> {
        parse(text).ok()
    }
}

fn parse(text: &str) -> Result<Ring, Problem> {
    let document: Document = toml::from_str(text).map_err(|error| Problem {
        at: error.span().map_or(0, |span| span.start),
        // Not the error itself: it quotes the line, which may contain a secret. Its message quotes
        // the unexpected value, which may be a secret too.
        problem: format!("{} ({SHAPE})", without_secrets(error.message())),
    })?;
    let version = &document.version;
    if *version.get_ref() != VERSION {
        let problem = format!("`version` must be {VERSION}, not {}", version.get_ref());
        return Err(Problem { at: version.span().start, problem });
    }
    let (rotation, lifetime) = (&document.rotation_seconds, &document.lifetime_seconds);
    let schedule = Schedule::new(
        Duration::from_secs(*rotation.get_ref()),
        Duration::from_secs(*lifetime.get_ref()),
    )
    .map_err(|error| {
        let at = match error {
            ScheduleError::Rotation(_) => rotation.span().start,
            ScheduleError::Lifetime(_) => lifetime.span().start,
        };
        Problem { at, problem: error.to_string() }
    })?;
    let keys = document.key.iter().map(|entry| dated_key(entry.get_ref()));
    let keys = keys.collect::<Result<Vec<_>, _>>()?;
    Ring::new(keys, schedule).map_err(|error| {
        let at = match error {
            RingError::Empty => 0,
            RingError::Order(at) | RingError::Name(at) => document.key[at].span().start,
        };
        Problem { at, problem: error.to_string() }
    })
}

/// Removes every word from the message that is long enough to be part of a secret.
fn without_secrets(message: &str) -> String {
    let mut shown = String::with_capacity(message.len());
    let mut rest = message;
    while !rest.is_empty() {
        let word_end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        let (word, after) = rest.split_at(word_end);
        shown.push_str(if word.len() < MAX_SHOWN_WORD_BYTES { word } else { "(not shown)" });
        let next_word = after.find(|c: char| c.is_ascii_alphanumeric()).unwrap_or(after.len());
        let (separator, after) = after.split_at(next_word);
        shown.push_str(separator);
        rest = after;
    }
    shown
}

fn dated_key(entry: &Entry) -> Result<DatedKey, Problem> {
    let mut name = [0; 16];
    let mut secret = Zeroizing::new([0; 32]);
    from_hex(&entry.name, "name", &mut name)?;
    from_hex(&entry.secret, "secret", secret.as_mut())?;
    let key = TicketKey::new(name, *secret);
    Ok(DatedKey { key, not_before: UnixTime(entry.not_before) })
}

fn from_hex(
    value: &Spanned<Zeroizing<String>>,
    field: &str,
    bytes: &mut [u8],
) -> Result<(), Problem> {
    let digits = 2 * bytes.len();
    hex::decode_to_slice(value.get_ref().as_str(), bytes).map_err(|_| Problem {
        at: value.span().start,
        problem: format!(
            "`{field}` must be {digits} hexadecimal digits; it has {} characters",
            value.get_ref().chars().count()
        ),
    })
}

fn text_of(ring: &Ring) -> Zeroizing<String> {
    let keys = ring.keys();
    // Allocates once: growing would leave copies of secrets in memory.
    let mut text = Zeroizing::new(String::with_capacity(512 + keys.len() * 256));
    text.push_str(
        "# Ticket keys of firstflight, shared by the processes that use this file. Anyone who\n\
         # reads it can read early data: keep it at mode 600. Each key is current from its\n\
         # `not_before` (seconds since 1970) until the next one's.\n",
    );
    let schedule = ring.schedule();
    let mut lines = format!(
        "version = {VERSION}\nrotation_seconds = {}\nlifetime_seconds = {}\n",
        schedule.rotation().as_secs(),
        schedule.lifetime().as_secs()
    );
    text.push_str(&lines);
    for DatedKey { key, not_before } in keys {
        lines.clear();
        let name = hex::encode(key.name());
        // Writing to a String cannot fail.
        let _ = write!(lines, "\n[[key]]\nname = \"{name}\"\nnot_before = {}\n", not_before.0);
        text.push_str(&lines);
        text.push_str("secret = \"");
        text.push_str(&Zeroizing::new(hex::encode(key.secret())));
        text.push_str("\"\n");
    }
    text
}

const VERSION: i64 = 1;
const MAX_SHOWN_WORD_BYTES: usize = 16;
const SHAPE: &str = "a ticket-key file has `version`, `rotation_seconds`, `lifetime_seconds` and \
                     one or more [[key]] with `name`, `secret` and `not_before`";

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
