//! Writes the HTML comparison of two records, or of two synthetic ones, to look at.
//!
//! Usage: `comparison OLD|synthetic NEW|synthetic OUT.html [CONDITION...]`

use std::error::Error;
use std::path::Path;

use firstflight_report::conditions::Condition;
use firstflight_report::{Record, Verdict, compare, read, verdict_lines};

#[path = "../tests/integration/synthetic/mod.rs"]
mod synthetic;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().ok_or("name two records and a file");
    let (old, new, to) = (record(&next()?, 7)?, record(&next()?, 8)?, next()?);
    let conditions: Result<Vec<Condition>, _> =
        arguments.map(|text| Condition::parse(&text)).collect();
    let verdicts: Vec<Verdict> =
        conditions?.iter().map(|condition| condition.verdict(&new, Some(&old))).collect();
    let comparison = compare(&old, &new);
    print!("{}\n{}", comparison.sentence(), verdict_lines(&verdicts));
    Ok(std::fs::write(to, comparison.html(&verdicts))?)
}

fn record(name: &str, seed: u64) -> Result<Record, Box<dyn Error>> {
    Ok(match name {
        "synthetic" => synthetic::record(seed),
        path => read(Path::new(path))?,
    })
}
