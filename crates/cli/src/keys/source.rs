//! Where the keys come from.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use firstflight_tickets::{KeyFile, Ring, UnixTime};

#[derive(Args)]
pub(super) struct SourceArgs {
    /// The file, as `keys new` wrote it
    file: PathBuf,
}

/// A place where keys are.
pub(super) enum Source {
    File(KeyFile),
}

impl SourceArgs {
    pub(super) fn open(self) -> anyhow::Result<Source> {
        Ok(Source::File(KeyFile::new(self.file)))
    }
}

impl Source {
    /// The ring as it is now.
    pub(super) fn read(&self, _now: UnixTime) -> anyhow::Result<Ring> {
        match self {
            Self::File(file) => Ok(file.read()?),
        }
    }

    /// Turns the ring by one.
    pub(super) fn rotate(&self, now: UnixTime) -> anyhow::Result<Ring> {
        match self {
            Self::File(file) => Ok(file.rotate(now)?),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => file.path().display().fmt(f),
        }
    }
}
