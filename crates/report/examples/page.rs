//! Writes the HTML report of a record, or of a synthetic one, to look at, and prints its tables.
//!
//! Usage: `page RECORD|synthetic|visits OUT.html`

use std::error::Error;
use std::path::Path;

use firstflight_report::Pictures;

#[path = "../tests/integration/synthetic/mod.rs"]
mod synthetic;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(from), Some(to)) = (arguments.next(), arguments.next()) else {
        return Err("usage: page RECORD|synthetic|visits OUT.html".into());
    };
    let painted = tempfile::tempdir()?;
    let (record, directory) = match from.as_str() {
        "synthetic" => (synthetic::record(7), painted.path()),
        "visits" => (synthetic::visits_alone(7), painted.path()),
        path => (firstflight_report::read(Path::new(path))?, Path::new(path).parent().unwrap()),
    };
    if directory == painted.path() {
        synthetic::paint(&record, directory)?;
    }
    print!("{}", firstflight_report::summary(&record));
    let page = firstflight_report::html::render(&record, &Pictures::beside(&record, directory));
    Ok(std::fs::write(to, page)?)
}
