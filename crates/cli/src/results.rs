//! Verdicts on a record: what every run is asked, and the conditions of `--fail-if`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use firstflight_lab::ServerKind;
use firstflight_report::conditions::Condition;
use firstflight_report::{
    Pictures, Record, Verdict, csv, html, junit, markdown, summary, verdict_lines, verdicts,
};
use firstflight_units::printable_json;

/// Flags for pipelines.
#[derive(Args)]
pub(crate) struct JudgementArgs {
    /// Exit with 1 if this is true for any cell, such as 'p95(0rtt) > 1.2*rtt + 5ms'; may be
    /// repeated. If it was not measured, exit with 2.
    #[arg(long, value_name = "CONDITION", value_parser = condition)]
    fail_if: Vec<Condition>,

    /// Write conditions and outcomes as JUnit XML.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
}

impl JudgementArgs {
    /// Whether anything is asked.
    pub(crate) fn chosen(&self) -> bool {
        !self.fail_if.is_empty() || self.junit.is_some()
    }

    /// Whether any condition speaks of an earlier record.
    pub(crate) fn needs_old(&self) -> bool {
        self.fail_if.iter().any(Condition::needs_old)
    }

    /// Asks a record what every run is asked, and the conditions.
    pub(crate) fn verdicts(&self, record: &Record, old: Option<&Record>) -> Vec<Verdict> {
        let mut all = verdicts(record, ServerKind::Firstflight.name());
        all.extend(self.fail_if.iter().map(|condition| {
            condition.check(record, old).unwrap_or_else(|error| {
                Verdict::undecided("condition", condition.text(), &error.to_string())
            })
        }));
        all
    }

    /// Says on stderr what the verdicts are, writes the JUnit file, and has the exit code.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn conclude(&self, verdicts: &[Verdict]) -> anyhow::Result<ExitCode> {
        eprint!("{}", verdict_lines(verdicts));
        if let Some(path) = &self.junit {
            write(path, &junit::render(verdicts))?;
        }
        Ok(match () {
            () if verdicts.iter().any(|verdict| verdict.undecided.is_some()) => ExitCode::from(2),
            () if verdicts.iter().any(|verdict| !verdict.passed()) => ExitCode::FAILURE,
            () => ExitCode::SUCCESS,
        })
    }
}

fn condition(text: &str) -> Result<Condition, String> {
    Condition::parse(text).map_err(|error| format!("{error}\n{}", error.pointer()))
}

/// Writes a text to a file; `-` is stdout.
pub(crate) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    if path == Path::new("-") {
        print!("{text}");
        return Ok(());
    }
    std::fs::write(path, text).with_context(|| {
        format!("cannot write {}; choose a place that can be written", path.display())
    })
}

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
    let code = judgement.conclude(&judgement.verdicts(record, None))?;
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
    let text = summary(record);
    let pictures = Pictures::beside(record, directory);
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
