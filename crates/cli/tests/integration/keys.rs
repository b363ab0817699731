//! `firstflight keys`: files, output and the command of `keys watch`.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::program::{Ended, Running, firstflight, run, site, text, until};

fn keys(dir: &Path, arguments: &[&str]) -> Ended {
    run(firstflight(dir).current_dir(dir).arg("keys").args(arguments))
}

fn succeeds(dir: &Path, arguments: &[&str]) -> String {
    let ended = keys(dir, arguments);
    assert_eq!((ended.code, &*ended.err), (Some(0), ""), "{arguments:?}: {ended:?}");
    ended.out
}

/// The state and name of each key.
fn listed(dir: &Path) -> Vec<(String, String)> {
    let list: Value = serde_json::from_str(&succeeds(dir, &["list", "--json", "ring"])).unwrap();
    let field = |key: &Value, name: &str| key[name].as_str().unwrap().to_owned();
    let keys = list["keys"].as_array().unwrap();
    keys.iter().map(|key| (field(key, "state"), field(key, "name"))).collect()
}

#[test]
fn list_shows_a_rotation() {
    let site = site();
    let dir = site.path();
    succeeds(dir, &["new", "ring"]);
    let before = listed(dir);
    succeeds(dir, &["rotate", "ring"]);
    // Keys rotate in whole seconds, so the rotation may take effect with the next second.
    assert!(until(|| listed(dir)[0].0 == "previous"));
    let after = listed(dir);
    let states: Vec<_> = after.iter().map(|(state, _)| state.as_str()).collect();
    assert_eq!(states, ["previous", "current", "next"]);
    assert_eq!(after[0].1, before[0].1);
    assert_eq!(after[1].1, before[1].1, "the next key took over");
    let table = succeeds(dir, &["list", "ring"]);
    assert!(table.contains(&format!("{}  current ", &after[1].1[..8])), "{table}");
    assert!(table.lines().all(|line| line.len() <= 100));
}

/// A ring that was not rotated in time still works, and `keys list` warns about it.
#[test]
fn list_exits_with_1_if_something_must_be_done() {
    let site = site();
    let dir = site.path();
    succeeds(dir, &["new", "ring"]);
    let ring = text(&dir.join("ring"));
    let (first, _) = ring.rsplit_once("\n[[key]]").unwrap();
    fs::write(dir.join("ring"), first).unwrap();
    let ended = keys(dir, &["list", "ring"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.err.contains("no next ticket key"), "{ended:?}");
}

#[test]
fn export_writes_only_changes() {
    let site = site();
    let dir = site.path();
    succeeds(dir, &["new", "ring"]);
    for (format, to) in [("nginx", "directory"), ("haproxy", "haproxy.keys"), ("envoy", "sds.json")]
    {
        let arguments = ["export", "--format", format, "--to", to, "ring"];
        assert!(succeeds(dir, &arguments).contains("now has the current keys"));
        assert!(succeeds(dir, &arguments).contains("already had the current keys"));
    }
    let ended = keys(dir, &["export", "--format", "nginx", "--to", "haproxy.keys", "ring"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err.contains("name a directory"), "{ended:?}");
}

/// The command runs at the start and once per change, and is retried when it fails. The key file may be
/// missing for a while. SIGTERM ends the program.
#[test]
fn watch_exports_changes_and_runs_its_command() {
    let site = site();
    let dir = site.path();
    succeeds(dir, &["new", "ring"]);
    let (stderr, ran) = (dir.join("stderr"), dir.join("ran"));
    let mut command = firstflight(dir);
    command.current_dir(dir).args(["keys", "watch", "--format", "haproxy", "--to", "out", "ring"]);
    command.args(["--exec", "cat out >> ran; test -e works"]).stdin(Stdio::null());
    let mut watch = Running::start(command.stderr(File::create(&stderr).unwrap()));
    let lines = || text(&ran).lines().count();
    assert!(until(|| text(&stderr).contains("retrying in 2 s")), "{}", text(&stderr));
    fs::write(dir.join("works"), "").unwrap();
    assert!(until(|| text(&stderr).contains("succeeded")), "{}", text(&stderr));
    assert!(lines() >= 9, "three times three keys");

    fs::write(&ran, "").unwrap();
    fs::rename(dir.join("ring"), dir.join("away")).unwrap();
    assert!(until(|| text(&stderr).contains("No such file")), "{}", text(&stderr));
    fs::rename(dir.join("away"), dir.join("ring")).unwrap();
    succeeds(dir, &["rotate", "ring"]);
    assert!(until(|| text(&stderr).matches("succeeded").count() == 2), "{}", text(&stderr));
    assert_eq!(text(&ran), text(&dir.join("out")), "once, with the new keys");

    watch.signal(Signal::SIGTERM);
    assert!(watch.wait().is_some_and(|status| status.success()), "{}", text(&stderr));
}

#[test]
fn watch_refuses_to_start_without_keys() {
    let site = site();
    let dir = site.path();
    let ended = keys(dir, &["watch", "--format", "envoy", "--to", "out", "ring"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err.contains("ring") && ended.err.contains("keys new"), "{ended:?}");
    assert!(!dir.join("out").exists());
}

#[test]
fn key_encryption_files_are_made_and_rotated() {
    let site = site();
    let dir = site.path();
    let first = succeeds(dir, &["new-encryption", "kek"]);
    let before = text(&dir.join("kek"));
    let again = keys(dir, &["new-encryption", "kek"]);
    assert_eq!(again.code, Some(2), "{again:?}");
    assert!(again.err.contains("exists already"), "{again:?}");
    let second = succeeds(dir, &["rotate-encryption", "kek"]);
    assert_ne!(first, second);
    let after = text(&dir.join("kek"));
    let keys = |text: &str| -> Vec<String> {
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    };
    assert_eq!(keys(&after).len(), 2);
    assert_eq!(keys(&after)[1..], keys(&before)[..], "the old key still opens records");
    for key in keys(&after) {
        assert!(!first.contains(&key) && !second.contains(&key), "the output contains no key");
    }
}

#[test]
fn keys_are_found_by_the_configuration_file() {
    let site = site();
    let dir = site.path();
    succeeds(dir, &["new", "ring"]);
    let config = |text: &str| fs::write(dir.join("serve.toml"), text).unwrap();
    config("[tickets]\nkeys = \"file\"\nfile = \"ring\"\n");
    assert_eq!(
        succeeds(dir, &["list", "--config", "serve.toml"]),
        succeeds(dir, &["list", "ring"])
    );
    let refused = |arguments: &[&str], expected: &[&str]| {
        let ended = keys(dir, arguments);
        assert_eq!((ended.code, &*ended.out), (Some(2), ""), "{ended:?}");
        assert!(expected.iter().all(|word| ended.err.contains(word)), "{ended:?}");
    };
    config("");
    refused(
        &["list", "--config", "serve.toml"],
        &["serve.toml", "set keys to \"file\" or \"store\""],
    );
    config("[tickets]\nkeys = \"stone\"\n");
    refused(&["rotate", "--config", "serve.toml"], &["line 2", "`store`"]);
    refused(&["list"], &["<FILE>", "--config"]);
    refused(&["list", "ring", "--config", "serve.toml"], &["cannot be used with"]);
    config(
        "[store]\nurl = \"unix:///nowhere/s\"\n[tickets]\nkeys = \"store\"\nkey_encryption_file = \"kek\"\n",
    );
    refused(&["list", "--config", "serve.toml"], &["key-encryption keys from kek", "No such file"]);
    succeeds(dir, &["new-encryption", "kek"]);
    refused(&["list", "--config", "serve.toml"], &["the store"]);
}
