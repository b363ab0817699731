//! Makes the tables behind `docs/evidence/scale.md` from the raw data of `scripts/cluster`.
//!
//!     scale_tables DIRECTORY [PAGE]
//!
//! With a PAGE (`results/2026-11-27-vm/scale.md`, or a copy of it), also replaces the tables in it.

mod claims;
mod costs;
mod lab_record;
mod page;
mod scale;
mod units;

use std::error::Error;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use serde::de::DeserializeOwned;

use crate::lab_record::{Finding, Record};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (directory, page) = match arguments.as_slice() {
        [directory] => (Path::new(directory), None),
        [directory, page] => (Path::new(directory), Some(Path::new(page))),
        _ => return Err("usage: scale_tables DIRECTORY [PAGE]".into()),
    };
    let findings = latency(directory)?;
    for (file, title) in [
        ("claims.jsonl", "Claims"),
        ("wait.jsonl", "Claims with a replica beside the store, and one a millisecond away,"),
    ] {
        let path = directory.join(file);
        if path.exists() {
            claims::claims(title, &runs(&path)?);
        }
    }
    let path = directory.join("memory.json");
    if path.exists() {
        claims::memory(&read(&path)?);
    }
    let Some(page) = page else { return Ok(()) };
    let mut tables = scale::tables(directory)?;
    tables.push(("latency", lab_record::table(&findings)));
    page::fill(page, &tables)
}

/// Prints a record's samples, and returns what they show.
type Analyze = fn(&Record) -> Vec<Finding>;

/// Prints the results of each part of the lab, and returns all findings.
fn latency(directory: &Path) -> Result<Vec<Finding>, Box<dyn Error>> {
    let mut findings = Vec::new();
    let parts: [(&str, Analyze); 3] =
        [("near", lab_record::near), ("far", lab_record::far), ("dead", lab_record::dead)];
    for (part, analyze) in parts {
        let path = directory.join(part).with_extension("json.gz");
        if path.exists() {
            let found = analyze(&read(&path)?);
            found.iter().for_each(|finding| println!("{finding}"));
            println!();
            findings.extend(found);
        }
    }
    Ok(findings)
}

/// Reads JSON objects, one per line.
fn runs<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>, Box<dyn Error>> {
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

/// Reads a JSON object; a file `.gz` is compressed.
fn read<T: DeserializeOwned>(path: &Path) -> Result<T, Box<dyn Error>> {
    let mut bytes = Vec::new();
    let mut file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
    match path.extension().is_some_and(|extension| extension == "gz") {
        true => GzDecoder::new(file).read_to_end(&mut bytes)?,
        false => file.read_to_end(&mut bytes)?,
    };
    Ok(serde_json::from_slice(&bytes)?)
}
