//! The output of `make package`: the Debian package on a fresh machine, the container image, manual
//! pages and completions.

mod deb;
mod image;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use firstflight_testkit::{TEST_TIMEOUT, output_within, skipped_without};

use tempfile::TempDir;

/// The program under test: the one built for tests or, to test a release, the one that
/// FIRSTFLIGHT_PROGRAM names.
fn program() -> String {
    std::env::var("FIRSTFLIGHT_PROGRAM")
        .unwrap_or_else(|_| env!("CARGO_BIN_EXE_firstflight").to_owned())
}

/// Runs scripts/package for one kind of package, in a temporary directory.
fn package(kind: &str, version: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/package");
    let mut command = Command::new(script);
    command.args(["--binary", &program(), "--version", version, kind, "--out"]).arg(dir.path());
    // Not compressed, because it is used for a minute only.
    output_of(command.env("PACKAGE_COMPRESSION", "none").env("PACKAGE_ARCHIVE", "no"));
    let file = dir.path().join(match kind {
        "deb" => format!("firstflight_{version}_amd64.deb"),
        _ => format!("firstflight-{version}-image.tar"),
    });
    assert!(file.exists(), "{}", file.display());
    (dir, file)
}

/// The output of a command, which must succeed.
fn output_of(command: &mut Command) -> String {
    // A package of a debug build takes minutes on a busy machine.
    let output = output_within(command, 5 * TEST_TIMEOUT);
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    out
}

#[test]
fn manual_pages_pass_mandoc() {
    if skipped_without(&["mandoc"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    output_of(Command::new(program()).args(["manual", "--out"]).arg(dir.path()));
    let mut pages: Vec<_> =
        fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    pages.sort();
    let names: Vec<_> =
        pages.iter().map(|page| page.file_name().unwrap().to_str().unwrap()).collect();
    for needed in ["firstflight.1", "firstflight-serve.1", "firstflight-keys-new.1"] {
        assert!(names.contains(&needed), "{names:?}");
    }
    let text = fs::read_to_string(dir.path().join("firstflight.toml.5")).unwrap();
    assert!(text.contains(".SS early_data") && text.contains(".SH [admin]"), "{text}");
    // Its exit code is not 0 if there is a warning.
    output_of(Command::new("mandoc").args(["-T", "lint", "-W", "warning"]).args(&pages));
}

#[test]
fn a_manual_page_is_printed_by_its_name() {
    let page = output_of(Command::new(program()).args(["manual", "keys-new"]));
    assert!(page.contains("firstflight keys new"), "{page}");
    let mut command = Command::new(program());
    let refused = output_within(command.args(["manual", "nothing"]), TEST_TIMEOUT);
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(stderr.contains("there is no page \"nothing\"; there are firstflight.1"), "{stderr}");
}

#[test]
fn bash_completes_commands_flags_and_values() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("firstflight");
    fs::write(&file, output_of(Command::new(program()).args(["completions", "bash"]))).unwrap();
    output_of(Command::new("bash").arg("-n").arg(&file));
    let completed = |words: &str| {
        let script = format!(
            ". /usr/share/bash-completion/bash_completion; . {}; COMP_WORDS=({words}); \
             COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _firstflight firstflight \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"; \
             printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            file.display()
        );
        output_of(Command::new("bash").args(["-c", &script]))
    };
    assert_eq!(completed("firstflight ser"), "serve\n");
    assert_eq!(completed("firstflight serve --drain-t"), "--drain-timeout\n");
    assert_eq!(completed("firstflight keys rotate-e"), "rotate-encryption\n");
    assert_eq!(completed("firstflight completions f"), "fish\n");
}

#[test]
fn completions_for_other_shells() {
    for (shell, mark) in [
        ("zsh", "#compdef firstflight"),
        ("fish", "complete -c firstflight"),
        ("elvish", "edit:completion"),
        ("powershell", "Register-ArgumentCompleter"),
    ] {
        let text = output_of(Command::new(program()).args(["completions", shell]));
        assert!(text.contains(mark), "{shell}: {text}");
    }
}
