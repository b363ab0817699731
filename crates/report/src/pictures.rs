//! Pictures for a report that is one file: read from beside the record, and put into the page.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::{Component, Path};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use crate::Record;

/// The pictures of a record's filmstrips, as far as they were found beside it.
#[derive(Clone, Debug, Default)]
pub struct Pictures {
    /// `data:` URIs by the file's path in the record.
    found: HashMap<String, String>,
}

impl Pictures {
    /// Reads the pictures that a record names, below the directory that it lies in. What is no
    /// PNG or JPEG, not below the directory, larger than 96 KiB, or more than 1 MiB together, is
    /// left out: the report names the file instead.
    pub fn beside(record: &Record, directory: &Path) -> Self {
        let mut pictures = Self::default();
        let mut room = MAX_TOTAL_BYTES;
        for frame in record.filmstrips.iter().flat_map(|strip| &strip.frames) {
            if pictures.found.contains_key(&frame.file) {
                continue;
            }
            let Some(bytes) = picture(directory, &frame.file) else { continue };
            let Some(left) = room.checked_sub(bytes.len()) else { continue };
            let Some(kind) = kind(&bytes) else { continue };
            room = left;
            let uri = format!("data:image/{kind};base64,{}", BASE64_STANDARD.encode(bytes));
            pictures.found.insert(frame.file.clone(), uri);
        }
        pictures
    }

    /// The picture as a URI of its own.
    pub(crate) fn uri(&self, file: &str) -> Option<&str> {
        self.found.get(file).map(String::as_str)
    }
}

/// A file's bytes. The record may come from anywhere: it names files below its directory alone.
fn picture(directory: &Path, file: &str) -> Option<Vec<u8>> {
    let file = Path::new(file);
    let plain = file.components().all(|part| matches!(part, Component::Normal(_)));
    let path = directory.join(file);
    // A pipe would be waited for.
    if !plain || !path.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MAX_PICTURE_BYTES as u64 + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() <= MAX_PICTURE_BYTES).then_some(bytes)
}

fn kind(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, ..] => Some("png"),
        [0xff, 0xd8, 0xff, ..] => Some("jpeg"),
        _ => None,
    }
}

const MAX_PICTURE_BYTES: usize = 96 << 10;
const MAX_TOTAL_BYTES: usize = 1 << 20;
