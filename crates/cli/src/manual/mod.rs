//! `firstflight manual`: manual pages, from the flags and the configuration themselves.

mod roff;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use jiff::Timestamp;

/// Write manual pages: firstflight(1), one for each command, and firstflight.toml(5).
///
/// Packages install them. Without a package: firstflight manual serve | man -l -
#[derive(Args)]
pub(crate) struct ManualArgs {
    /// Page to print: serve, keys-new, firstflight.toml. Default: firstflight.
    #[arg(value_name = "PAGE")]
    page: Option<String>,

    /// Write all pages to this directory.
    #[arg(long, value_name = "DIR", conflicts_with = "page")]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: &ManualArgs) -> anyhow::Result<ExitCode> {
    let pages = pages()?;
    if let Some(dir) = &args.out {
        write(&pages, dir)?;
        return Ok(ExitCode::SUCCESS);
    }
    let wanted = args.page.as_deref().unwrap_or("firstflight");
    let is_it = |page: &&Page| {
        let (name, _) = page.file.rsplit_once('.').unwrap_or((&page.file, ""));
        name == wanted || name.strip_prefix("firstflight-") == Some(wanted)
    };
    let Some(page) = pages.iter().find(is_it) else {
        let names: Vec<_> = pages.iter().map(|page| &*page.file).collect();
        bail!("there is no page {wanted:?}; there are {}", names.join(", "));
    };
    // Whoever has stopped reading wants no more.
    let _ = io::stdout().write_all(page.text.as_bytes());
    Ok(ExitCode::SUCCESS)
}

/// Write shell completions to stdout.
///
/// Packages install them. Manually, for bash, write to
/// ~/.local/share/bash-completion/completions/firstflight.
#[derive(Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

pub(crate) fn complete(args: &CompletionsArgs) -> ExitCode {
    let mut out = Vec::new();
    clap_complete::generate(args.shell, &mut crate::command(), "firstflight", &mut out);
    // Whoever has stopped reading wants no more.
    let _ = io::stdout().write_all(&out);
    ExitCode::SUCCESS
}

/// A page, and the file that manuals expect it in.
struct Page {
    file: String,
    text: String,
}

fn write(pages: &[Page], dir: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    for page in pages {
        let path = dir.join(&page.file);
        fs::write(&path, &page.text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn pages() -> anyhow::Result<Vec<Page>> {
    let date = date()?;
    let mut program = crate::command().disable_help_subcommand(true);
    // Names of commands with those above them, as `firstflight keys new`.
    program.build();
    let mut pages = Vec::new();
    of_command(&program, &date, &mut pages)?;
    pages.push(Page {
        file: "firstflight.toml.5".to_owned(),
        text: roff::page(&firstflight_config::reference(), &title(5, "firstflight.toml", &date)),
    });
    Ok(pages)
}

fn of_command(command: &Command, date: &str, pages: &mut Vec<Page>) -> anyhow::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let man = Man::new(command.clone())
        .title(name.to_uppercase())
        .date(date)
        .source(source())
        .manual(MANUAL);
    let mut text = Vec::new();
    man.render(&mut text)?;
    pages.push(Page { file: format!("{name}.1"), text: tidied(&String::from_utf8(text)?) });
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        of_command(below, date, pages)?;
    }
    Ok(())
}

/// Without line breaks beside an empty line, of which formatters warn.
fn tidied(page: &str) -> String {
    let lines: Vec<_> = page.lines().collect();
    let empty =
        |at: Option<usize>| at.and_then(|at| lines.get(at)).is_some_and(|line| line.is_empty());
    let kept = lines
        .iter()
        .enumerate()
        .filter(|(at, line)| **line != ".br" || !(empty(at.checked_sub(1)) || empty(Some(at + 1))));
    kept.flat_map(|(_, line)| [line, "\n"]).collect()
}

fn title(section: u8, name: &str, date: &str) -> roff::Title {
    roff::Title {
        name: name.to_owned(),
        section,
        what: "configuration file of firstflight serve".to_owned(),
        date: date.to_owned(),
        source: source(),
        manual: MANUAL.to_owned(),
    }
}

/// The day of the source where a build says so (SOURCE_DATE_EPOCH, seconds since 1970), so that two
/// builds of it have the same pages; else today.
fn date() -> anyhow::Result<String> {
    let day = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(seconds) => seconds
            .parse()
            .ok()
            .and_then(|seconds| Timestamp::from_second(seconds).ok())
            .context("SOURCE_DATE_EPOCH is no number of seconds since 1970; unset it")?,
        Err(_) => Timestamp::now(),
    };
    Ok(day.strftime("%Y-%m-%d").to_string())
}

fn source() -> String {
    format!("firstflight {}", env!("CARGO_PKG_VERSION"))
}

const MANUAL: &str = "firstflight manual";
