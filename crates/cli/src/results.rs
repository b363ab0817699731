//! The results of `lab`, `bench` and `report`: the files of a run, its checks, and the conditions of
//! `--fail-if`.

use std::collections::HashSet;
use std::fs::File;
use std::io::Write;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use firstflight_lab::ServerKind;
use firstflight_report::conditions::Condition;
use firstflight_report::{
    CheckOutcome, Pictures, Record, check_run, csv, html, junit, markdown, replace_file, terminal,
};
use firstflight_units::printable_json;

/// Flags for CI: conditions, and their outcomes as JUnit XML.
#[derive(Args)]
pub(crate) struct ConditionArgs {
    /// Exit with 1 if this is true for any cell, such as 'p95(0rtt) > 1.2*rtt + 5ms'; may be
    /// repeated. If it was not measured, exit with 2.
    #[arg(long, value_name = "CONDITION", value_parser = condition)]
    fail_if: Vec<Condition>,

    /// Write conditions and outcomes as JUnit XML.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
}

impl ConditionArgs {
    /// Whether any of the flags is given.
    pub(crate) fn is_set(&self) -> bool {
        !self.fail_if.is_empty() || self.junit.is_some()
    }

    /// Refuses conditions that refer to an earlier record.
    ///
    /// # Errors
    /// If there is such a condition.
    pub(crate) fn refuse_old(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            !self.needs_old(),
            "conditions with `old` need `firstflight report --compare`; leave them out here"
        );
        Ok(())
    }

    /// Whether a condition refers to an earlier record.
    pub(crate) fn needs_old(&self) -> bool {
        self.fail_if.iter().any(Condition::needs_old)
    }

    /// Evaluates the checks that apply to every record, and the conditions.
    pub(crate) fn outcomes(&self, record: &Record, old: Option<&Record>) -> Vec<CheckOutcome> {
        let mut all = check_run(record, ServerKind::Firstflight.name());
        all.extend(self.fail_if.iter().map(|condition| condition.outcome(record, old)));
        all
    }

    /// Prints the outcomes to stderr, writes the JUnit file, and returns the exit code.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn conclude(&self, outcomes: &[CheckOutcome]) -> anyhow::Result<ExitCode> {
        err!("{}", terminal::check_outcomes(outcomes));
        if let Some(path) = &self.junit {
            write(path, &junit::render(outcomes))?;
        }
        Ok(match () {
            () if outcomes
                .iter()
                .any(|outcome| outcome.undecided.is_none() && !outcome.passed()) =>
            {
                ExitCode::FAILURE
            }
            () if outcomes.iter().any(|outcome| outcome.undecided.is_some()) => ExitCode::from(2),
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
        out!("{text}");
        return Ok(());
    }
    std::fs::write(path, text).with_context(|| not_writable(path))
}

/// Checks that [`write`] can write a file, and leaves the file unchanged.
///
/// # Errors
/// If the file cannot be opened for writing.
pub(crate) fn check_writable(path: &Path) -> anyhow::Result<()> {
    let metadata = path.metadata();
    // Opening a pipe would wait for a reader, and closing it would end the reader's input. Opening
    // a dangling link would create its target, and the clean-up below would remove the link.
    let is_special = match &metadata {
        Ok(metadata) => !metadata.is_file() && !metadata.is_dir(),
        Err(_) => path.is_symlink(),
    };
    if path == Path::new("-") || is_special {
        return Ok(());
    }
    let opened = File::options().append(true).create(true).open(path);
    opened.with_context(|| not_writable(path))?;
    if metadata.is_err() {
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

fn not_writable(path: &Path) -> String {
    format!("cannot write {}; choose a path that is writable", path.display())
}

/// Creates the output directory. Called before a run, which may take hours.
///
/// # Errors
/// If it cannot be created or written to.
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

/// Finishes a run: writes its files, prints the summary, and evaluates the conditions. `name` is
/// `lab` or `bench`.
///
/// # Errors
/// If a file cannot be written.
pub(crate) fn finish(
    record: &Record,
    name: &str,
    directory: &Path,
    json: bool,
    conditions: &ConditionArgs,
) -> anyhow::Result<ExitCode> {
    let summary = write_files(record, name, directory)?;
    match json {
        true => outln!("{}", printable_json(&serde_json::to_string(record)?)),
        false => out!("{summary}"),
    }
    let code = conditions.conclude(&conditions.outcomes(record, None))?;
    print_locations(record, name, directory);
    Ok(code)
}

/// Writes the record, its summary, its reports and its CSV files, and removes what an earlier run left
/// beside them. Returns the summary.
///
/// # Errors
/// If a file cannot be written.
fn write_files(record: &Record, name: &str, directory: &Path) -> anyhow::Result<String> {
    let path = directory.join(format!("{name}.json"));
    // The files of an unreadable earlier record are unknown, and stay.
    let earlier = firstflight_report::read(&path).ok();
    firstflight_report::write(record, &path)?;
    let text = terminal::render(record);
    let pictures = Pictures::load(record, directory);
    let mut files = vec![
        (format!("{name}.txt"), text.clone()),
        (REPORT_FILE.to_owned(), html::render(record, &pictures)),
        ("report.md".to_owned(), markdown::render(record)),
    ];
    for table in tables(record) {
        let content = csv_text(|out| match table {
            "visits.csv" => csv::visits(record, out),
            "visit-cells.csv" => csv::visit_cells(record, out),
            "cells.csv" => csv::cells(record, out),
            _ => csv::samples(record, out),
        })?;
        files.push((table.to_owned(), content));
    }
    for (file, content) in &files {
        let path = directory.join(file);
        replace_file(&path, |out| out.write_all(content.as_bytes()))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(earlier) = earlier {
        let current: HashSet<&str> =
            files.iter().map(|(file, _)| file.as_str()).chain(evidence_files(record)).collect();
        // If a stage failed, captures may be missing, so the earlier ones stay.
        let failed = !record.failed_stages.is_empty();
        let pictures = evidence_files(&earlier).filter(|_| !failed);
        let old = tables(&earlier).into_iter().chain(pictures);
        for file in old.filter(|file| !current.contains(file) && may_be_output(file)) {
            let _ = std::fs::remove_file(directory.join(file));
        }
        // Removes empty ones only.
        for subdirectory in SUBDIRECTORIES {
            let _ = std::fs::remove_dir(directory.join(subdirectory));
        }
    }
    Ok(text)
}

/// The tables of a run, those of visits first; not each run has all of them.
const TABLES: [&str; 4] = ["visits.csv", "visit-cells.csv", "cells.csv", "samples.csv"];

/// The tables of a record; those that would be empty are left out.
fn tables(record: &Record) -> Vec<&'static str> {
    let visited = !record.visit_cells.is_empty();
    let measured = !visited || !record.cells.is_empty();
    let exists = |(index, _): &(usize, &str)| if *index < 2 { visited } else { measured };
    TABLES.into_iter().enumerate().filter(exists).map(|(_, table)| table).collect()
}

/// The subdirectories of captures and pictures.
const SUBDIRECTORIES: [&str; 2] = ["captures", "films"];

/// The files of a record's captures and pictures, relative to its directory.
fn evidence_files(record: &Record) -> impl Iterator<Item = &str> {
    let frames = record.filmstrips.iter().flat_map(|strip| &strip.frames);
    let captures = record.captures.iter().map(|capture| capture.file.as_str());
    captures.chain(frames.map(|frame| frame.file.as_str()))
}

/// Whether a run can have written a file of this name. An untrusted record can name any file.
fn may_be_output(file: &str) -> bool {
    let mut parts = Path::new(file).components();
    let known = |first: &str| TABLES.contains(&first) || SUBDIRECTORIES.contains(&first);
    matches!(parts.next(), Some(Component::Normal(first)) if first.to_str().is_some_and(known))
        && parts.all(|part| matches!(part, Component::Normal(_)))
}

/// Renders CSV to a string.
///
/// # Errors
/// If `write` fails.
pub(crate) fn csv_text(
    write: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>,
) -> anyhow::Result<String> {
    let mut text = Vec::new();
    write(&mut text)?;
    Ok(String::from_utf8(text)?)
}

/// Prints the paths of the files.
fn print_locations(record: &Record, name: &str, directory: &Path) {
    let directory = std::fs::canonicalize(directory).unwrap_or_else(|_| PathBuf::from(directory));
    errln!(
        "\nThe run took {:.0} s. Report: {}\nEvery {}: {}; captures, tables and CSV are \
         in the same directory.",
        record.seconds,
        directory.join(REPORT_FILE).display(),
        if record.samples.is_empty() && !record.visits.is_empty() { "visit" } else { "sample" },
        directory.join(format!("{name}.json")).display(),
    );
}

const REPORT_FILE: &str = "report.html";

/// The exit code of shells for a program that SIGINT has ended.
pub(crate) const EXIT_CODE_SIGINT: u8 = 130;

#[cfg(test)]
mod tests {
    use firstflight_report::{Capture, SCHEMA, VisitCell};

    use super::*;

    #[test]
    fn a_run_removes_only_the_files_of_the_previous_run() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join("out").join(name);
        let record = |captures: &[&str]| Record {
            schema: SCHEMA,
            captures: captures
                .iter()
                .map(|file| Capture { file: (*file).to_owned(), ..Capture::default() })
                .collect(),
            ..Record::default()
        };
        std::fs::create_dir_all(path("captures")).unwrap();
        let files = ["captures/a", "captures/b", "../outside", "captures/../notes", "own.csv"];
        for file in files {
            std::fs::write(path(file), file).unwrap();
        }
        let out = path("");
        // Without an earlier record, existing files belong to the user.
        std::fs::write(path("visits.csv"), "").unwrap();
        write_files(&record(&[]), "lab", &out).unwrap();
        assert!(path("visits.csv").exists());

        let first = Record { visit_cells: vec![VisitCell::default()], ..record(&files) };
        write_files(&first, "lab", &out).unwrap();
        assert!(path("visits.csv").exists() && path("visit-cells.csv").exists());
        write_files(&record(&["captures/b"]), "lab", &out).unwrap();
        for (file, stays) in [
            ("captures/a", false),
            ("visits.csv", false),
            ("visit-cells.csv", false),
            ("captures/b", true),
            ("cells.csv", true),
            ("../outside", true),
            ("notes", true),
            ("own.csv", true),
        ] {
            assert_eq!(path(file).exists(), stays, "{file}");
        }
        assert!(firstflight_report::read(&path("lab.json")).unwrap().visit_cells.is_empty());

        // The previous record had no visits, and a stage of this run failed.
        std::fs::write(path("visits.csv"), "").unwrap();
        let failed_stages = vec!["captures: full".to_owned()];
        write_files(&Record { failed_stages, ..record(&[]) }, "lab", &out).unwrap();
        assert!(path("visits.csv").exists() && path("captures/b").exists());
    }

    #[test]
    fn a_failed_check_outweighs_an_undecided_one() {
        let arguments = ConditionArgs { fail_if: Vec::new(), junit: None };
        let undecided = CheckOutcome::undecided("labels", "a", "b");
        let failed = CheckOutcome { findings: vec!["c".to_owned()], ..CheckOutcome::default() };
        let passed = CheckOutcome::default();
        for (outcomes, expected) in [
            (vec![undecided.clone(), failed], ExitCode::FAILURE),
            (vec![undecided, passed.clone()], ExitCode::from(2)),
            (vec![passed], ExitCode::SUCCESS),
        ] {
            let code = arguments.conclude(&outcomes).unwrap();
            assert_eq!(format!("{code:?}"), format!("{expected:?}"), "{outcomes:?}");
        }
    }

    #[test]
    fn check_writable_leaves_files_and_links_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("old"), "old").unwrap();
        std::os::unix::fs::symlink("target", path("link")).unwrap();
        for name in ["old", "new", "link"] {
            check_writable(&path(name)).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path("old")).unwrap(), "old");
        assert!(path("link").is_symlink() && !path("new").exists() && !path("target").exists());
        check_writable(&path("none/new")).unwrap_err();
    }
}
