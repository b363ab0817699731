//! What a run leaves in its directory: the record, and everything that is made from it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use firstflight_report::{Pictures, Record, csv, html, markdown, terminal};
use firstflight_units::printable_json;

use crate::judgement::JudgementArgs;

/// Makes the directory, before the run takes its time.
///
/// # Errors
/// If it cannot be made or written to.
pub(crate) fn prepare(directory: &Path) -> anyhow::Result<()> {
    let refused = |reason: std::io::Error| {
        let path = directory.display();
        anyhow::anyhow!(
            "cannot write into the directory {path}: {reason}; choose one with --output"
        )
    };
    std::fs::create_dir_all(directory).map_err(refused)?;
    tempfile::tempfile_in(directory).map(drop).map_err(refused)
}

/// How a run ends: its record is kept, printed and judged. `name` is `lab` or `bench`.
///
/// # Errors
/// If a file cannot be written.
pub(crate) fn finish(
    record: &Record,
    name: &str,
    directory: &Path,
    json: bool,
    judgement: &JudgementArgs,
) -> anyhow::Result<ExitCode> {
    let summary = keep(record, name, directory)?;
    match json {
        true => println!("{}", printable_json(&serde_json::to_string(record)?)),
        false => print!("{summary}"),
    }
    let code = judgement.conclude(&judgement.outcomes(record, None))?;
    point_out(record, name, directory);
    Ok(code)
}

/// Writes the record and its forms; `name` is `lab` or `bench`. Returns the summary as it was
/// written.
///
/// # Errors
/// If a file cannot be written.
fn keep(record: &Record, name: &str, directory: &Path) -> anyhow::Result<String> {
    firstflight_report::write(record, &directory.join(format!("{name}.json")))?;
    let text = terminal::render(record);
    let pictures = Pictures::load(record, directory);
    let mut forms = vec![
        (format!("{name}.txt"), text.clone()),
        (REPORT.to_owned(), html::render(record, &pictures)),
        ("report.md".to_owned(), markdown::render(record)),
    ];
    // What was not asked for leaves no empty tables.
    let visited = !record.visit_cells.is_empty();
    if visited {
        forms.push(("visits.csv".to_owned(), in_memory(|out| csv::visits(record, out))?));
        forms.push(("visit-cells.csv".to_owned(), in_memory(|out| csv::visit_cells(record, out))?));
    }
    if !visited || !record.cells.is_empty() {
        forms.push(("cells.csv".to_owned(), in_memory(|out| csv::cells(record, out))?));
        forms.push(("samples.csv".to_owned(), in_memory(|out| csv::samples(record, out))?));
    }
    for (file, content) in forms {
        let path = directory.join(file);
        std::fs::write(&path, content)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(text)
}

/// What is written, as a text.
///
/// # Errors
/// None that a text in memory gives.
pub(crate) fn in_memory(
    write: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>,
) -> anyhow::Result<String> {
    let mut text = Vec::new();
    write(&mut text)?;
    Ok(String::from_utf8(text)?)
}

/// Says where things are.
fn point_out(record: &Record, name: &str, directory: &Path) {
    let place = std::fs::canonicalize(directory).unwrap_or_else(|_| PathBuf::from(directory));
    eprintln!(
        "\nThe run took {:.0} s. The report: {}\nEvery {}: {}; captures, tables and CSV are \
         beside it.",
        record.seconds,
        place.join(REPORT).display(),
        if record.samples.is_empty() && !record.visits.is_empty() { "visit" } else { "sample" },
        place.join(format!("{name}.json")).display(),
    );
}

const REPORT: &str = "report.html";
