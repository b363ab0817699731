//! Records on disk: JSON, optionally compressed by gzip, and its JSON Schema.

use std::fs::{self, File, Metadata};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use schemars::generate::SchemaSettings;
use schemars::transform::{Transform, transform_subschemas};
use schemars::{Schema, SchemaGenerator};
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
    /// The content is not a record.
    #[error("{path} is not a record: {source}; records are written by `lab` and `bench`")]
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
    /// Another schema version.
    #[error(
        "unsupported schema {0}, supported are 2 and {SCHEMA}; read it with the version that wrote it"
    )]
    Schema(u32),
    /// A cell index out of range.
    #[error("damaged record: its {what} refers to cell {cell} of {cells}; measure again")]
    Place {
        /// What refers to the cell.
        what: &'static str,
        /// The index of the cell.
        cell: usize,
        /// The number of cells.
        cells: usize,
    },
}

/// Writes a record as JSON, compressed by gzip if the name ends in `.gz`. Replaces a file as
/// [`replace_file`] does.
///
/// # Errors
/// [`RecordError::File`].
pub fn write(record: &Record, path: &Path) -> Result<(), RecordError> {
    let is_packed = path.extension().is_some_and(|extension| extension == "gz");
    let written = replace_file(path, |out| match is_packed {
        true => {
            let mut packed = GzEncoder::new(out, Compression::default());
            write_json(record, &mut packed)?;
            packed.finish().map(|_| ())
        }
        false => write_json(record, out),
    });
    written.map_err(|source| RecordError::File { verb: "write", path: path.to_owned(), source })
}

/// Writes a file beside the one that it replaces, and renames it when it is complete. If that
/// fails, the old file is unchanged. If `path` is a symbolic link, its target is replaced. Anything
/// but a regular file, such as a pipe, is written to directly.
///
/// # Errors
/// Those of `write` and of the system.
pub fn replace_file(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<()> {
    let write_to = |file: File| {
        let mut out = BufWriter::new(file);
        write(&mut out).and_then(|()| out.flush())
    };
    let target = match path.canonicalize() {
        Ok(target) => target,
        Err(_) if path.is_symlink() => return write_to(File::create(path)?),
        Err(_) => path.to_owned(),
    };
    let found = target.metadata().ok();
    let name = target.file_name().filter(|_| found.as_ref().is_none_or(Metadata::is_file));
    let Some(name) = name else { return write_to(File::create(path)?) };
    let unfinished =
        target.with_file_name(format!(".{}.{}.new", name.display(), std::process::id()));
    let file = File::create(&unfinished)?;
    let replaced = found
        .map_or(Ok(()), |found| file.set_permissions(found.permissions()))
        .and_then(|()| write_to(file))
        .and_then(|()| fs::rename(&unfinished, &target));
    if replaced.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    replaced
}

/// Reads a record, compressed or not, regardless of its file name. Records of schema 2 are
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
        true => MultiGzDecoder::new(file).take(MAX_RECORD_BYTES + 1).read_to_end(&mut bytes),
        false => file.take(MAX_RECORD_BYTES + 1).read_to_end(&mut bytes),
    };
    read.map_err(failed)?;
    if bytes.len() as u64 > MAX_RECORD_BYTES {
        return Err(failed(io::Error::other(
            "the record is larger than 1 GiB; measure fewer samples",
        )));
    }
    parse(&bytes).map_err(|source| RecordError::Content { path: path.to_owned(), source })
}

/// Parses a record from JSON.
///
/// # Errors
/// [`ParseError`]. All cell indices of a parsed record are valid.
pub fn parse(json: &[u8]) -> Result<Record, ParseError> {
    let Version { schema } = serde_json::from_slice(json)?;
    let record = match schema {
        // Schema 2 had only TCP; the missing fields have defaults.
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

fn write_json(record: &Record, out: &mut impl Write) -> io::Result<()> {
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
    check_cell_indices(places, cells)?;
    let effects = record.visit_effects.iter();
    let places = (record.visits.iter().map(|visit| ("visit", visit.cell)))
        .chain(effects.flat_map(|e| [("visit effect", e.from), ("visit effect", e.to)]))
        .chain(record.filmstrips.iter().map(|strip| ("filmstrip", strip.cell)));
    check_cell_indices(places, record.visit_cells.len())
}

fn check_cell_indices(
    mut places: impl Iterator<Item = (&'static str, usize)>,
    cells: usize,
) -> Result<(), ParseError> {
    match places.find(|(_, cell)| *cell >= cells) {
        Some((what, cell)) => Err(ParseError::Place { what, cell, cells }),
        None => Ok(()),
    }
}

/// The JSON Schema (draft 2020-12) of records that this version writes, with the documentation of
/// the types as descriptions. `docs/reference/record.schema.json` is this text.
pub fn json_schema() -> String {
    let settings = SchemaSettings::draft2020_12().with_transform(WithoutLinks);
    let generator: SchemaGenerator = settings.into_generator();
    let mut schema = generator.into_root_schema_for::<Record>();
    schema.insert("title".to_owned(), format!("firstflight record, schema {SCHEMA}").into());
    // Serializing a schema cannot fail: it has only strings, numbers and maps.
    let mut text = serde_json::to_string_pretty(&schema).unwrap_or_default();
    text.push('\n');
    text
}

/// Removes rustdoc links from descriptions: `` [`X`](crate::X) `` becomes `` `X` ``.
#[derive(Clone, Debug)]
struct WithoutLinks;

impl Transform for WithoutLinks {
    fn transform(&mut self, schema: &mut Schema) {
        let description = schema.get("description").and_then(|text| text.as_str());
        if let Some(text) = description.map(without_links) {
            schema.insert("description".to_owned(), text.into());
        }
        transform_subschemas(self, schema);
    }
}

fn without_links(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once("[`") {
        out.push_str(before);
        let (name, after) = link.split_once("`]").unwrap_or((link, ""));
        out.push('`');
        out.push_str(name);
        out.push('`');
        let target = after.strip_prefix('(').and_then(|target| target.split_once(')'));
        rest = target.map_or(after, |(_, after)| after);
    }
    out.push_str(rest);
    // Joins wrapped lines.
    out.split("\n\n").map(|part| part.replace('\n', " ")).collect::<Vec<_>>().join("\n\n")
}

const GZIP: [u8; 2] = [0x1f, 0x8b];
// A record of 100,000 samples has about 30 MB.
const MAX_RECORD_BYTES: u64 = 1 << 30;
