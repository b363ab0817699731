//! `firstflight manual` and `firstflight completions`: manual pages and shell completions, generated
//! from the definitions of flags and configuration.

mod roff;

use std::fs;
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
    let requested = args.page.as_deref().unwrap_or("firstflight");
    let matches = |page: &&Page| {
        let (name, _) = page.file.rsplit_once('.').unwrap_or((&page.file, ""));
        name == requested || name.strip_prefix("firstflight-") == Some(requested)
    };
    let Some(page) = pages.iter().find(matches) else {
        let names: Vec<_> = pages.iter().map(|page| &*page.file).collect();
        bail!("there is no page {requested:?}; there are {}", names.join(", "));
    };
    out!("{}", page.text);
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
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::command(), "firstflight", &mut script);
    out!("{}", String::from_utf8_lossy(&script));
    ExitCode::SUCCESS
}

/// A manual page with its file name.
struct Page {
    file: String,
    text: String,
}

fn write(pages: &[Page], dir: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    for page in pages {
        let path = dir.join(&page.file);
        fs::write(&path, &page.text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn pages() -> anyhow::Result<Vec<Page>> {
    let date = date()?;
    let mut program = crate::command().disable_help_subcommand(true);
    // Completes the names of subcommands, such as `firstflight keys new`.
    program.build();
    let mut pages = Vec::new();
    add_command_pages(&program, &date, &mut pages)?;
    pages.push(Page {
        file: "firstflight.toml.5".to_owned(),
        text: roff::page(&firstflight_config::reference(), &title(5, "firstflight.toml", &date)),
    });
    Ok(pages)
}

fn add_command_pages(command: &Command, date: &str, pages: &mut Vec<Page>) -> anyhow::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let man = Man::new(command.clone())
        .title(name.to_uppercase())
        .date(date)
        .source(source())
        .manual(MANUAL);
    let mut text = Vec::new();
    man.render(&mut text)?;
    pages.push(Page {
        file: format!("{name}.1"),
        text: without_redundant_breaks(&String::from_utf8(text)?),
    });
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        add_command_pages(subcommand, date, pages)?;
    }
    Ok(())
}

/// Removes line breaks (`.br`) next to empty lines: formatters warn about them.
fn without_redundant_breaks(page: &str) -> String {
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
        description: "configuration file of firstflight serve".to_owned(),
        date: date.to_owned(),
        source: source(),
        manual: MANUAL.to_owned(),
    }
}

/// The date of SOURCE_DATE_EPOCH (seconds since 1970) if it is set, for reproducible builds, else
/// today.
fn date() -> anyhow::Result<String> {
    let day = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(seconds) => {
            seconds.parse().ok().and_then(|seconds| Timestamp::from_second(seconds).ok()).context(
                "SOURCE_DATE_EPOCH is not a number of seconds since 1970; fix or unset it",
            )?
        }
        Err(_) => Timestamp::now(),
    };
    Ok(day.strftime("%Y-%m-%d").to_string())
}

fn source() -> String {
    format!("firstflight {}", env!("CARGO_PKG_VERSION"))
}

const MANUAL: &str = "firstflight manual";
