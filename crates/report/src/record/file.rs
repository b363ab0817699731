//! A record on disk: JSON, or JSON compressed by gzip.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use serde::Deserialize;

use super::{Record, SCHEMA};

/// A record that cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file cannot be opened, written or read.
    #[error("cannot {verb} the record {path}: {source}")]
    File {
        /// `read` or `write`.
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What it holds is not a record.
    #[error("{path} is no record of ours: {source}; records are what `lab` and `bench` write")]
    Content {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ParseError,
    },
}

/// Bytes that are not a record.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    /// Not JSON, or not with a record's fields.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// Another version of the record's form.
    #[error(
        "it has schema {0}, this program reads 2 and {SCHEMA}: read it with the version that wrote it"
    )]
    Schema(u32),
    /// A place that is not there.
    #[error("its {what} names cell {cell}, but there are {cells}: measure again, it is damaged")]
    Place {
        /// What names the cell.
        what: &'static str,
        /// The cell that is named.
        cell: usize,
        /// How many there are.
        cells: usize,
    },
}

/// Writes a record as JSON, compressed by gzip if the name ends in `.gz`.
///
/// # Errors
/// [`RecordError::File`].
pub fn write(record: &Record, path: &Path) -> Result<(), RecordError> {
    let failed = |source| RecordError::File { verb: "write", path: path.to_owned(), source };
    let out = BufWriter::new(File::create(path).map_err(failed)?);
    if path.extension().is_some_and(|extension| extension == "gz") {
        let mut packed = GzEncoder::new(out, Compression::default());
        put(record, &mut packed).map_err(failed)?;
        packed.finish().and_then(|mut out| out.flush()).map_err(failed)
    } else {
        let mut out = out;
        put(record, &mut out).map_err(failed)
    }
}

/// Reads a record back, compressed or not, whatever its name says. Records of schema 2 are
/// converted.
///
/// # Errors
/// [`RecordError`] with the file.
pub fn read(path: &Path) -> Result<Record, RecordError> {
    let failed = |source| RecordError::File { verb: "read", path: path.to_owned(), source };
    let mut file = BufReader::new(File::open(path).map_err(failed)?);
    let packed = file.fill_buf().map_err(failed)?.starts_with(&GZIP);
    let mut bytes = Vec::new();
    let read = match packed {
        true => MultiGzDecoder::new(file).take(LARGEST + 1).read_to_end(&mut bytes),
        false => file.take(LARGEST + 1).read_to_end(&mut bytes),
    };
    read.map_err(failed)?;
    if bytes.len() as u64 > LARGEST {
        return Err(failed(io::Error::other("it is larger than 1 GiB; measure fewer samples")));
    }
    parse(&bytes).map_err(|source| RecordError::Content { path: path.to_owned(), source })
}

/// A record from its JSON.
///
/// # Errors
/// [`ParseError`]; every place that a record names is there afterwards.
pub fn parse(json: &[u8]) -> Result<Record, ParseError> {
    let Version { schema } = serde_json::from_slice(json)?;
    let record = match schema {
        // It had TCP alone, and said nothing of what goes without saying there.
        2 => Record { schema: SCHEMA, ..serde_json::from_slice(json)? },
        SCHEMA => serde_json::from_slice(json)?,
        other => return Err(ParseError::Schema(other)),
    };
    check(&record)?;
    Ok(record)
}

#[derive(Deserialize)]
struct Version {
    schema: u32,
}

fn put(record: &Record, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, record)?;
    out.write_all(b"\n").and_then(|()| out.flush())
}

fn check(record: &Record) -> Result<(), ParseError> {
    let cells = record.cells.len();
    let pairs = record.control.iter().flat_map(|control| &control.pairs);
    let places = (record.samples.iter().map(|s| ("sample", s.cell)))
        .chain(record.effects.iter().flat_map(|e| [("effect", e.from), ("effect", e.to)]))
        .chain(pairs.flat_map(|p| [("control", p.cell), ("control", p.twin)]))
        .chain(record.waterfalls.iter().map(|w| ("waterfall", w.cell)));
    hold(places, cells)?;
    let effects = record.visit_effects.iter();
    let places = (record.visits.iter().map(|visit| ("visit", visit.cell)))
        .chain(effects.flat_map(|e| [("visit effect", e.from), ("visit effect", e.to)]))
        .chain(record.filmstrips.iter().map(|strip| ("filmstrip", strip.cell)));
    hold(places, record.visit_cells.len())
}

fn hold(
    mut places: impl Iterator<Item = (&'static str, usize)>,
    cells: usize,
) -> Result<(), ParseError> {
    match places.find(|(_, cell)| *cell >= cells) {
        Some((what, cell)) => Err(ParseError::Place { what, cell, cells }),
        None => Ok(()),
    }
}

const GZIP: [u8; 2] = [0x1f, 0x8b];
// A record of 100,000 samples has some 30 MB.
const LARGEST: u64 = 1 << 30;
