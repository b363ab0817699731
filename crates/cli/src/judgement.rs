//! Checks of a record: those that apply to every run, and the conditions of `--fail-if`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use firstflight_lab::ServerKind;
use firstflight_report::conditions::Condition;
use firstflight_report::{CheckOutcome, Record, check_run, junit, terminal};

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

    /// Runs the checks that apply to every run, and the conditions.
    pub(crate) fn outcomes(&self, record: &Record, old: Option<&Record>) -> Vec<CheckOutcome> {
        let mut all = check_run(record, ServerKind::Firstflight.name());
        all.extend(self.fail_if.iter().map(|condition| {
            condition.check(record, old).unwrap_or_else(|error| {
                CheckOutcome::undecided("condition", condition.text(), &error.to_string())
            })
        }));
        all
    }

    /// Prints the outcomes to stderr, writes the JUnit file, and returns the exit code.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn conclude(&self, outcomes: &[CheckOutcome]) -> anyhow::Result<ExitCode> {
        eprint!("{}", terminal::check_outcomes(outcomes));
        if let Some(path) = &self.junit {
            write(path, &junit::render(outcomes))?;
        }
        Ok(match () {
            () if outcomes.iter().any(|outcome| outcome.undecided.is_some()) => ExitCode::from(2),
            () if outcomes.iter().any(|outcome| !outcome.passed()) => ExitCode::FAILURE,
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
