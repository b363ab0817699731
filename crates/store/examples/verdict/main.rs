//! Tables of what `scripts/cluster` left behind: what was asked, and what was measured.
//!
//!     verdict DIRECTORY

mod claims;
mod lab;

use std::error::Error;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use serde::de::DeserializeOwned;

use crate::lab::Record;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory] = arguments.as_slice() else {
        return Err("usage: verdict DIRECTORY".into());
    };
    let directory = Path::new(directory);
    if let Some(near) = record(directory, "near")? {
        lab::near(&near);
    }
    if let Some(far) = record(directory, "far")? {
        lab::far(&far);
    }
    if let Some(dead) = record(directory, "dead")? {
        lab::dead(&dead);
    }
    for (file, title) in [
        ("claims.jsonl", "Claims"),
        ("wait.jsonl", "Claims with a replica beside the store, and one a millisecond away,"),
    ] {
        let path = directory.join(file);
        if path.exists() {
            let text = std::fs::read_to_string(path)?;
            let runs = text.lines().map(serde_json::from_str).collect::<Result<Vec<_>, _>>()?;
            claims::claims(title, &runs);
        }
    }
    let path = directory.join("memory.json");
    if path.exists() {
        claims::memory(&read(&path)?);
    }
    Ok(())
}

/// A lab's record; `None`: that part was not run.
fn record(directory: &Path, part: &str) -> Result<Option<Record>, Box<dyn Error>> {
    let path = directory.join(format!("{part}.json.gz"));
    path.exists().then(|| read(&path)).transpose()
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T, Box<dyn Error>> {
    let mut bytes = Vec::new();
    let file = File::open(path)?;
    match path.extension().is_some_and(|extension| extension == "gz") {
        true => GzDecoder::new(file).read_to_end(&mut bytes)?,
        false => { file }.read_to_end(&mut bytes)?,
    };
    Ok(serde_json::from_slice(&bytes)?)
}
