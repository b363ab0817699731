//! Help texts at a width of 100 columns.

use crate::support::program::{firstflight, run, site};

/// The output of a command line with `--help`.
fn help(command: &[&str]) -> String {
    let home = site();
    let ended = run(firstflight(home.path()).args(command).arg("--help").env("COLUMNS", "100"));
    assert_eq!((ended.code, &*ended.err), (Some(0), ""), "{ended:?}");
    ended.out
}

#[test]
fn of_the_program() {
    insta::assert_snapshot!(help(&[]));
}

#[test]
fn of_serve() {
    insta::assert_snapshot!(help(&["serve"]));
}

#[test]
fn of_fetch() {
    insta::assert_snapshot!(help(&["fetch"]));
}

#[test]
fn of_try() {
    insta::assert_snapshot!(help(&["try"]));
}

#[test]
fn of_audit() {
    insta::assert_snapshot!(help(&["audit"]));
}

#[test]
fn of_authority() {
    insta::assert_snapshot!(help(&["authority"]));
}

#[test]
fn of_authority_trust() {
    insta::assert_snapshot!(help(&["authority", "trust"]));
}

#[test]
fn of_keys() {
    insta::assert_snapshot!(help(&["keys"]));
}

#[test]
fn of_keys_new() {
    insta::assert_snapshot!(help(&["keys", "new"]));
}

#[test]
fn of_keys_rotate() {
    insta::assert_snapshot!(help(&["keys", "rotate"]));
}

#[test]
fn of_keys_list() {
    insta::assert_snapshot!(help(&["keys", "list"]));
}

#[test]
fn of_keys_export() {
    insta::assert_snapshot!(help(&["keys", "export"]));
}

#[test]
fn of_keys_watch() {
    insta::assert_snapshot!(help(&["keys", "watch"]));
}

#[test]
fn of_keys_new_encryption() {
    insta::assert_snapshot!(help(&["keys", "new-encryption"]));
}

#[test]
fn of_keys_rotate_encryption() {
    insta::assert_snapshot!(help(&["keys", "rotate-encryption"]));
}

#[test]
fn of_bench() {
    insta::assert_snapshot!(help(&["bench"]));
}

#[test]
fn of_doctor() {
    insta::assert_snapshot!(help(&["doctor"]));
}

#[test]
fn of_report() {
    insta::assert_snapshot!(help(&["report"]));
}

#[test]
fn of_lab() {
    insta::assert_snapshot!(help(&["lab"]));
}

#[test]
fn of_completions() {
    insta::assert_snapshot!(help(&["completions"]));
}

#[test]
fn of_health() {
    insta::assert_snapshot!(help(&["health"]));
}

#[test]
fn of_manual() {
    insta::assert_snapshot!(help(&["manual"]));
}
