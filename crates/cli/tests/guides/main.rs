//! Runs the commands of all guides in docs/guides in order, on new machines, and compares their output.
//!
//! The machines are fresh Debian systems without the internet. Alone, as root: `cargo test --package
//! firstflight --test guides`; `GUIDES_SHOW=1` prints all output. In a guide:
//!
//! - ```` ```sh ````: commands for one shell on each machine, without input; one that fails ends the
//!   guide
//! - ```` ```text ```` after them: the whole output, with any spacing; `...` stands for any lines
//! - `<!-- machines: a b -->`, `<!-- lets-encrypt -->`: at the top: their names; an authority under
//!   Let's Encrypt's name
//! - `<!-- on: a b -->`: the next commands run on each of these
//! - `<!-- carry: FILE from a to b -->`: copies a file between root's homes
//! - `<!-- may differ: WORD WORD -->`: words of the output that may differ
//! - `<!-- not run: REASON -->`: leaves the next commands out

mod guide;
mod output;
mod stage;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use firstflight_testkit::{Machine, Shell, can_boot};
use guide::{Block, Guide, Kind};
use libtest_mimic::{Arguments, Failed, Trial};
use output::Output;
use stage::Stage;

const GUIDES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guides");

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // A guide may have four machines: two guides at a time are enough for a small machine.
    arguments.test_threads.get_or_insert(2);
    let guides: Vec<_> = files().iter().map(|file| read(file)).collect();
    if !arguments.list {
        for guide in &guides {
            for (line, reason) in guide.left_out() {
                println!("not run: docs/guides/{}:{line}: {reason}", guide.name);
            }
        }
    }
    let obstacle = can_boot().err();
    if let (Some(reason), false) = (&obstacle, arguments.list) {
        for guide in &guides {
            // In this form scripts/tests repeats it at the end.
            println!("SKIPPED docs/guides/{}: {reason}", guide.name);
        }
    }
    let stage = Arc::new(Stage::default());
    let mut trials = vec![
        Trial::test("rules_of_guides", || rule(guide::rules)),
        Trial::test("rules_of_output", || rule(output::rules)),
    ];
    trials.extend(guides.into_iter().map(|guide| {
        let stage = stage.clone();
        let name = guide.name.trim_end_matches(".md").to_owned();
        Trial::test(name, move || run_guide(&guide, &stage)).with_ignored_flag(obstacle.is_some())
    }));
    let conclusion = libtest_mimic::run(&arguments, trials);
    // A static or a leaked reference would leave the root filesystem in memory.
    drop(stage);
    conclusion.exit_code()
}

fn rule(test: fn()) -> Result<(), Failed> {
    test();
    Ok(())
}

/// All guides, without their index.
fn files() -> Vec<PathBuf> {
    let entries = fs::read_dir(GUIDES).expect("docs/guides");
    let mut files: Vec<_> = entries
        .map(|entry| entry.expect("docs/guides").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .filter(|path| path.file_name().is_some_and(|name| name != "README.md"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{GUIDES} has no guides");
    files
}

fn read(file: &Path) -> Guide {
    let name = file.file_name().expect("a file").to_string_lossy().into_owned();
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{name}: {error}"));
    Guide::parse(&name, &text).unwrap_or_else(|error| panic!("docs/guides/{name}:{error}"))
}

/// Runs the commands of a guide.
fn run_guide(guide: &Guide, stage: &Stage) -> Result<(), Failed> {
    let machines = stage.machines(&guide.machines, guide.lets_encrypt);
    let mut shells: Vec<_> = machines.iter().map(|machine| machine.shell()).collect();
    for block in &guide.blocks {
        let place = format!("docs/guides/{}:{}", guide.name, block.line);
        match &block.kind {
            Kind::NotRun(_) => {}
            Kind::Carry { files, from, to } => copy_files(&machines, files, *from, to),
            Kind::Run { on, output } => {
                for &at in on {
                    run(block, output.as_ref(), &machines[at], &mut shells[at])
                        .map_err(|why| format!("{place}, on {}: {why}", machines[at].name()))?;
                }
            }
        }
    }
    Ok(())
}

fn run(
    block: &Block,
    expected: Option<&Output>,
    machine: &Machine,
    shell: &mut Shell,
) -> Result<(), String> {
    let output = shell.run(&block.script).map_err(|output| {
        let journal = machine.run("journalctl --no-pager --lines=20").stdout;
        let journal = String::from_utf8_lossy(&journal);
        let script = &block.script;
        format!("a command failed\n{script}\n--- output:\n{output}--- journal:\n{journal}")
    })?;
    if std::env::var_os("GUIDES_SHOW").is_some() {
        println!("--- {}, line {}:\n{output}", machine.name(), block.line);
    }
    let Some(expected) = expected else { return Ok(()) };
    expected
        .compare(&output)
        .map_err(|why| format!("{why}\n{}\n--- output:\n{output}", block.script))
}

/// Copies files of root, with their modes.
fn copy_files(machines: &[Machine], files: &[String], from: usize, to: &[usize]) {
    for file in files {
        let path = format!("/root/{file}");
        for &to in to {
            machines[to].copy(&machines[from].path(&path), &path);
        }
    }
}
