//! The examples for ticket keys in a cluster.

use std::fs;
use std::path::Path;
use std::process::Command;

use firstflight_testkit::skipped_without;

use crate::support::program::{Ended, PROGRAM, firstflight, run, site, text, until};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/cluster");

/// An example with its paths in `dir`.
fn example(name: &str, dir: &Path) -> String {
    let mut text = text(&Path::new(EXAMPLES).join(name));
    assert!(!text.is_empty(), "{name}");
    for place in ["/etc/firstflight", "/run/firstflight-keys", "/run/firstflight"] {
        text = text.replace(place, dir.to_str().unwrap());
    }
    text.replace("/usr/bin/firstflight", PROGRAM)
}

fn succeeds(dir: &Path, arguments: &[&str]) -> Ended {
    let ended = run(firstflight(dir).current_dir(dir).args(arguments));
    assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
    ended
}

#[test]
fn the_example_configurations_are_valid() {
    let site = site();
    let dir = site.path();
    succeeds(dir, &["keys", "new-encryption", "kek"]);
    fs::copy(dir.join("kek"), dir.join("store-password")).unwrap();
    fs::write(dir.join("serve.toml"), example("serve.toml", dir)).unwrap();
    let checked = succeeds(dir, &["serve", "--check", "--config", "serve.toml", "."]);
    assert!(checked.out.contains("OK"), "{checked:?}");
}

/// Runs the commands of each unit in a shell.
#[test]
fn the_commands_of_the_units_run() {
    let site = site();
    let dir = site.path();
    succeeds(dir, &["keys", "new", "ticket.keys"]);
    fs::write(dir.join("serve.toml"), "[tickets]\nkeys = \"file\"\nfile = \"ticket.keys\"\n")
        .unwrap();
    let command = |unit: &str, setting: &str| {
        let text = example(unit, dir);
        let line = text.lines().find_map(|line| line.strip_prefix(setting)).expect(setting);
        // The inner shell, whose parent is `keys watch`, must expand `$PPID`, not the outer one.
        line.replace(".reload\"", ".reload; kill $PPID'").replace("\"touch", "'touch")
    };
    let sh = |line: &str| {
        assert!(!line.contains("systemctl"), "{line}");
        let ended = run(Command::new("sh").args(["-c", line]).current_dir(dir).env("HOME", dir));
        assert_eq!(ended.code, Some(0), "{line}: {ended:?}");
    };
    sh(&command("firstflight-keys-haproxy.service", "ExecStartPre="));
    let before = text(&dir.join("haproxy"));
    assert_eq!(before.lines().count(), 3, "{before}");
    sh(&command("firstflight-keys-nginx.service", "ExecStartPre="));
    let before = text(&dir.join("nginx/tickets.conf"));
    assert_eq!(before.matches("ssl_session_ticket_key").count(), 2, "{before}");
    sh(&command("firstflight-keys-rotate.service", "ExecStart="));
    // Keys rotate in whole seconds, so the rotation may take effect with the next second.
    assert!(until(|| succeeds(dir, &["keys", "list", "ticket.keys"]).out.contains("previous")));
    // The command of `keys watch` ends it, with the signal that systemd would send.
    sh(&command("firstflight-keys-nginx.service", "ExecStart="));
    assert!(dir.join("nginx.reload").exists(), "what the path unit waits for");
    let after = text(&dir.join("nginx/tickets.conf"));
    assert_eq!(after.matches("ssl_session_ticket_key").count(), 3, "{after}");
    let before = text(&dir.join("haproxy"));
    sh(&command("firstflight-keys-haproxy.service", "ExecStart="));
    assert_ne!(text(&dir.join("haproxy")), before);
    assert!(dir.join("haproxy.reload").exists());
    assert_eq!(
        command("firstflight-keys-reload@.path", "PathExists="),
        format!("{}/%i.reload", dir.display())
    );
    sh(&command("firstflight-keys-reload@.service", "ExecStart=").replace("%i", "haproxy"));
    assert!(!dir.join("haproxy.reload").exists());
    let reload = example("firstflight-keys-reload@.service", dir);
    assert!(reload.contains("systemctl --no-block start %i.service"), "no failure of this unit");
    assert!(
        example("firstflight-keys-rotate.timer", dir)
            .contains("OnCalendar=00/8:00\nPersistent=true")
    );
}

/// systemd accepts the units. The unit that writes keys has no privileges, and the one that reloads
/// another server can do nothing else.
#[test]
fn the_example_units_are_valid_and_sandboxed() {
    if skipped_without(&["systemd-analyze"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let units = [
        "nginx.service",
        "haproxy.service",
        "reload@.service",
        "reload@.path",
        "rotate.service",
        "rotate.timer",
    ];
    for name in units.map(|name| format!("firstflight-keys-{name}")) {
        let unit = text(&Path::new(EXAMPLES).join(&name));
        // The program is not installed yet.
        let unit = unit.replace("/usr/bin/firstflight", PROGRAM);
        fs::write(dir.path().join(&name), unit).unwrap();
        if let Some(instance) = name.contains('@').then(|| name.replace('@', "@nginx")) {
            std::os::unix::fs::symlink(&name, dir.path().join(instance)).unwrap();
        }
    }
    let analyze = |arguments: &[&str]| {
        let mut command = Command::new("systemd-analyze");
        run(command.args(arguments).current_dir(dir.path()).env("LC_ALL", "C"))
    };
    let verified = analyze(&[
        "verify",
        "./firstflight-keys-nginx.service",
        "./firstflight-keys-haproxy.service",
        "./firstflight-keys-reload@nginx.path",
        "./firstflight-keys-reload@nginx.service",
        "./firstflight-keys-rotate.timer",
    ]);
    assert_eq!((verified.code, &*verified.err), (Some(0), ""), "{verified:?}");
    // The threshold is in tenths of the exposure level, which is from 0 to 10.
    for (unit, threshold) in [("nginx", 20), ("haproxy", 20), ("reload@nginx", 20)] {
        let unit = format!("./firstflight-keys-{unit}.service");
        let secure =
            analyze(&["security", "--offline=true", &format!("--threshold={threshold}"), &unit]);
        assert_eq!(secure.code, Some(0), "{secure:?}");
    }
}
