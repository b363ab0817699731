//! A record on disk.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::Record;

/// A record that cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} the record {path}: {source}")]
pub struct RecordError {
    verb: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// Writes a record as JSON.
///
/// # Errors
/// [`RecordError`] with the file.
pub fn write(record: &Record, path: &Path) -> Result<(), RecordError> {
    let failed = |source| RecordError { verb: "write", path: path.to_owned(), source };
    let mut out = BufWriter::new(File::create(path).map_err(failed)?);
    serde_json::to_writer(&mut out, record).map_err(|error| failed(error.into()))?;
    out.write_all(b"\n").and_then(|()| out.flush()).map_err(failed)
}

/// Reads a record back.
///
/// # Errors
/// [`RecordError`] with the file.
pub fn read(path: &Path) -> Result<Record, RecordError> {
    let failed = |source| RecordError { verb: "read", path: path.to_owned(), source };
    let file = BufReader::new(File::open(path).map_err(failed)?);
    serde_json::from_reader(file).map_err(|error| failed(error.into()))
}
