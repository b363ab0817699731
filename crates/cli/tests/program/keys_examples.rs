//! The examples for a cluster do what they say.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::running::{Ended, PROGRAM, firstflight, run, site, text, until};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/cluster");

/// An example with its places in `dir`.
fn example(name: &str, dir: &Path) -> String {
    let mut text = text(&Path::new(EXAMPLES).join(name));
    assert!(!text.is_empty(), "{name}");
    for place in ["/etc/firstflight", "/run/firstflight-keys", "/run/firstflight"] {
        text = text.replace(place, dir.to_str().unwrap());
    }
    text.replace("/usr/bin/firstflight", PROGRAM)
}

fn done(dir: &Path, arguments: &[&str]) -> Ended {
    let ended = run(firstflight(dir).current_dir(dir).args(arguments));
    assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
    ended
}

#[test]
fn the_configuration_is_good() {
    let site = site();
    let dir = site.path();
    done(dir, &["keys", "new-encryption", "kek"]);
    fs::copy(dir.join("kek"), dir.join("store-password")).unwrap();
    fs::write(dir.join("serve.toml"), example("serve.toml", dir)).unwrap();
    let checked = done(dir, &["serve", "--check", "--config", "serve.toml"]);
    assert!(checked.out.contains("OK"), "{checked:?}");
}

/// Each unit's commands, run by a shell. What they would tell systemd is left out.
#[test]
fn the_units_commands_run() {
    let site = site();
    let dir = site.path();
    done(dir, &["keys", "new", "ticket.keys"]);
    fs::write(dir.join("serve.toml"), "[tickets]\nkeys = \"file\"\nfile = \"ticket.keys\"\n")
        .unwrap();
    let command = |unit: &str, setting: &str| {
        let text = example(unit, dir);
        let line = text.lines().find_map(|line| line.strip_prefix(setting)).expect(setting);
        // The inner shell's parent is the watch; an outer shell must not put in its own.
        ["nginx", "haproxy"].iter().fold(line.to_owned(), |line, service| {
            let reload = format!("\"systemctl try-reload-or-restart {service}\"");
            line.replace(&reload, "'kill $PPID'")
        })
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
    // Where the clock's second is still that of the first key, the turn comes with the next.
    assert!(until(|| done(dir, &["keys", "list", "ticket.keys"]).out.contains("previous")));
    // Its command ends it, by the signal that systemd would send.
    sh(&command("firstflight-keys-nginx.service", "ExecStart="));
    let after = text(&dir.join("nginx/tickets.conf"));
    assert_eq!(after.matches("ssl_session_ticket_key").count(), 3, "{after}");
    let before = text(&dir.join("haproxy"));
    sh(&command("firstflight-keys-haproxy.service", "ExecStart="));
    assert_ne!(text(&dir.join("haproxy")), before);
    assert!(example("firstflight-keys-rotate.timer", dir).contains("OnUnitActiveSec=11h"));
}
