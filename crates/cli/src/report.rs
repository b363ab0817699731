//! `firstflight report`: shows a record in any format, or compares it with an earlier one.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use firstflight_report::{
    Pictures, Record, compare, csv, html, json_schema, markdown, read, terminal,
};
use firstflight_units::printable_json;

use crate::results::csv_text;
use crate::results::{ConditionArgs, write};

/// Show a record of `lab` or `bench` on the terminal or as HTML, Markdown or CSV, or compare it
/// with an earlier one.
///
/// A record is the lab.json or bench.json of a run, optionally compressed by gzip. With --fail-if
/// it exits with 0 if no condition is true, 1 if one is, and 2 if one cannot be evaluated.
#[derive(Args)]
pub(crate) struct ReportArgs {
    /// Record to show.
    #[arg(value_name = "FILE", required_unless_present = "schema")]
    record: Option<PathBuf>,

    /// An earlier record to compare with: `old` in --fail-if is its figure of the same cell
    #[arg(long, value_name = "OLD")]
    compare: Option<PathBuf>,

    /// Write the report as one HTML file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write it as Markdown; - is stdout
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,

    /// Write the cells with their figures as CSV; - is stdout
    #[arg(long, value_name = "FILE")]
    cells_csv: Option<PathBuf>,

    /// Write every sample as CSV; - is stdout
    #[arg(long, value_name = "FILE")]
    samples_csv: Option<PathBuf>,

    /// Write the cells of browsers' visits with their figures as CSV; - is stdout
    #[arg(long, value_name = "FILE")]
    visit_cells_csv: Option<PathBuf>,

    /// Write every visit of a browser as CSV; - is stdout
    #[arg(long, value_name = "FILE")]
    visits_csv: Option<PathBuf>,

    /// Print the record as JSON, converted to the current schema
    #[arg(long)]
    json: bool,

    /// Print the JSON Schema of records and exit.
    #[arg(long)]
    schema: bool,

    #[command(flatten)]
    conditions: ConditionArgs,
}

pub(crate) fn run(args: ReportArgs) -> anyhow::Result<ExitCode> {
    if args.schema {
        out!("{}", json_schema());
        return Ok(ExitCode::SUCCESS);
    }
    let Some(path) = &args.record else {
        anyhow::bail!("no record given; name one, such as lab-results/lab.json");
    };
    if args.conditions.needs_old() && args.compare.is_none() {
        anyhow::bail!("a condition refers to `old`; give the earlier record with --compare");
    }
    let record = read(path)?;
    let old = args.compare.as_deref().map(read).transpose()?;
    let compared = old.as_ref().map(|old| compare(old, &record));
    let outcomes = args.conditions.outcomes(&record, old.as_ref());
    if let Some(to) = &args.html {
        let page = compared.as_ref().map(|compared| compared.html(&outcomes));
        write(to, &page.unwrap_or_else(|| page_of(&record, path)))?;
    }
    if let Some(path) = &args.markdown {
        let text = compared.as_ref().map(|compared| compared.markdown(&outcomes));
        write(path, &text.unwrap_or_else(|| markdown::render(&record)))?;
    }
    write_tables(&args, &record)?;
    match &compared {
        _ if args.json => outln!("{}", printable_json(&serde_json::to_string(&record)?)),
        _ if has_output_flag(&args) => {}
        Some(compared) => out!("{}", compared.text(&[])),
        None => out!("{}", terminal::render(&record)),
    }
    args.conditions.conclude(&outcomes)
}

/// The HTML report, with the pictures in the record's directory.
fn page_of(record: &Record, path: &Path) -> String {
    let directory = path.parent().unwrap_or(Path::new(""));
    html::render(record, &Pictures::load(record, directory))
}

fn write_tables(args: &ReportArgs, record: &Record) -> anyhow::Result<()> {
    if let Some(path) = &args.cells_csv {
        write(path, &csv_text(|out| csv::cells(record, out))?)?;
    }
    if let Some(path) = &args.samples_csv {
        write(path, &csv_text(|out| csv::samples(record, out))?)?;
    }
    if let Some(path) = &args.visit_cells_csv {
        write(path, &csv_text(|out| csv::visit_cells(record, out))?)?;
    }
    if let Some(path) = &args.visits_csv {
        write(path, &csv_text(|out| csv::visits(record, out))?)?;
    }
    Ok(())
}

/// Whether a flag has already written the report or a table, to a file or stdout.
fn has_output_flag(args: &ReportArgs) -> bool {
    let files = [
        &args.html,
        &args.markdown,
        &args.cells_csv,
        &args.samples_csv,
        &args.visit_cells_csv,
        &args.visits_csv,
    ];
    files.into_iter().any(Option::is_some)
}
