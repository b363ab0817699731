//! Writes the HTML report of a record, or of a synthetic one, to look at.
//!
//! Usage: `page RECORD|synthetic OUT.html`

use std::error::Error;
use std::path::Path;

#[path = "../tests/synthetic/mod.rs"]
mod synthetic;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(from), Some(to)) = (arguments.next(), arguments.next()) else {
        return Err("usage: page RECORD|synthetic OUT.html".into());
    };
    let record = match from.as_str() {
        "synthetic" => synthetic::record(7),
        path => firstflight_report::read(Path::new(path))?,
    };
    Ok(std::fs::write(to, firstflight_report::html::render(&record))?)
}
