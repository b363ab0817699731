//! The Debian package on a new machine: installed, used, upgraded under load, removed.

use std::process::Command;

use firstflight_testkit::{Machine, Root, skipped_without_root};

use crate::package::{output_of, package};

/// Includes the packages of other tests, so that all share one root file system.
const PACKAGES: [&str; 7] =
    ["curl", "openssl", "procps", "python3", "+haproxy", "+nginx", "+redis-server"];

/// Reinstalls the package, which its scripts treat as an upgrade.
const REINSTALL: &str = "apt-get install -y --reinstall ./second.deb 2>&1";

const URL: &str = "https://localhost:8443/";

#[test]
fn the_debian_package_installs_upgrades_and_purges() {
    if skipped_without_root() {
        return;
    }
    let (_first, deb) = package("deb", "0.1.0");
    let (_second, newer) = package("deb", "0.1.1");
    // The packages of this test are not compressed.
    let unpacked = "uses-no-compression-for-control-tarball,uses-no-compression-for-data-tarball";
    let mut lintian = Command::new("lintian");
    lintian.args(["--allow-root", "--fail-on", "error,warning", "--suppress-tags", unpacked]);
    assert_eq!(output_of(lintian.arg(&deb)), "", "lintian reports nothing");

    let machine = Root::make(&PACKAGES).boot("packaged");
    machine.copy(&deb, "/root/first.deb");
    machine.copy(&newer, "/root/second.deb");
    machine.output("apt-get install -y ./first.deb");
    assert_serves(&machine);
    let old_process = main_process(&machine);
    upgrade_under_load(&machine);
    assert_ne!(main_process(&machine), old_process, "the new version has taken over");
    assert!(machine.output("dpkg-query -W firstflight").contains("0.1.1"));

    assert_decisions_survive(&machine);
    assert_sockets_stay_open(&machine);
    remove(&machine);
    reinstall(&machine);

    machine.output("apt-get purge -y firstflight");
    assert_eq!(remaining_files(&machine), "");
    // User ids are not reused while files of the user may remain.
    machine.output("getent passwd firstflight");
}

/// Checks that the installation has started the service, and that it accepts early data.
fn assert_serves(machine: &Machine) {
    machine.output("systemctl is-active firstflight && systemctl is-enabled firstflight");
    let health = "firstflight health --config /etc/firstflight/firstflight.toml";
    assert_eq!(machine.output(health), "ok\n");
    let owner = machine.output(&format!("ps -o user= -p {}", main_process(machine)));
    assert!(owner.starts_with("firstfl"), "{owner}");
    // A user who can read the program could access its memory at the start.
    assert_eq!(machine.output("stat --format '%U %a' /usr/bin/firstflight"), "root 711\n");
    let fetch = "firstflight fetch --cacert /var/lib/firstflight/authority/authority.pem --silent \
                 --show-error --tls-earlydata --output page \
                 --write-out '%{http_code} %{tls_earlydata}\\n'";
    for http3 in ["", "--http3-only"] {
        machine.output("rm -f jar");
        let twice = format!("for _ in 1 2; do {fetch} {http3} --ssl-sessions jar {URL}; done");
        let responses = machine.output(&twice);
        let (first, second) = responses.trim().split_once('\n').unwrap();
        assert_eq!(first, "200 0", "no session yet");
        assert!(early(second), "early data is accepted {http3}: {second}");
    }
    assert!(machine.output("cat page").contains("firstflight works"));
    machine.output("test -e /usr/share/man/man5/firstflight.toml.5.gz");
    machine.output("test -e /usr/share/doc/firstflight/examples/firstflight.toml");
}

/// Upgrades to the second version while clients send requests with their sessions: no request
/// fails.
fn upgrade_under_load(machine: &Machine) {
    let client = format!(
        "#!/bin/bash
         # A client that comes again and again until it is told to stop.
         until [[ -e /root/stop ]]; do
             firstflight fetch --insecure --silent --max-time 60 --tls-earlydata --ssl-sessions \"$1\" $2 \
                 --output /dev/null --write-out '%{{http_code}} %{{tls_earlydata}}\\n' {URL} >>\"$1.log\"
         done
        "
    );
    machine.write("/root/client", &client);
    // The client's program stays the same; the server is upgraded.
    machine.output("cp /usr/bin/firstflight /usr/local/bin/ && chmod +x client && hash -r");
    let fetch = format!(
        "firstflight fetch --insecure --silent --show-error --tls-earlydata --ssl-sessions kept \
         --output /dev/null --write-out '%{{http_code}} %{{tls_earlydata}}\\n' {URL}"
    );
    machine.output(&fetch);
    let script = "trap 'touch stop' EXIT
        for one in a b; do ./client $one & ./client $one-quic --http3-only & done
        came() { cat *.log 2>/dev/null | wc -l; }
        wait_for() {
            for _ in {1..1800}; do (( $(came) >= $1 )) && return; sleep 0.1; done
            echo \"$(came) of $1 requests have come in three minutes\" >&2; exit 1
        }
        wait_for 40
        apt-get install -y ./second.deb || exit
        wait_for $(( $(came) + 40 ))
        touch stop; wait; rm /usr/local/bin/firstflight";
    machine.output(script);
    let log = machine.output("cat *.log");
    let failed: Vec<_> = log.lines().filter(|line| !line.starts_with("200 ")).collect();
    assert!(failed.is_empty(), "of {} failed: {failed:?}", log.lines().count());
    assert!(log.lines().filter(|line| early(line)).count() > 40, "{log}");
    let response = machine.output(&fetch);
    assert!(early(response.trim()), "a session of the previous version is accepted: {response}");
    println!("{} requests during an upgrade, 0 failed", log.lines().count());
}

/// Checks that an administrator's decisions about the service survive an upgrade.
fn assert_decisions_survive(machine: &Machine) {
    let old = main_process(machine);
    machine.write("/usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n");
    machine.output("chmod +x /usr/sbin/policy-rc.d");
    let output = machine.output(REINSTALL);
    assert!(output.contains("is still the version before"), "{output}");
    assert_eq!(main_process(machine), old, "no process may be started");
    machine.output("rm /usr/sbin/policy-rc.d");

    machine.output("systemctl stop firstflight");
    machine.output(REINSTALL);
    assert_eq!(machine.output("systemctl is-active firstflight || true"), "inactive\n");
    // An upgrade respects the administrator's decision.
    machine.output(&format!(
        "systemctl start firstflight && {REINSTALL} && systemctl is-active firstflight"
    ));
}

/// Checks that enabled sockets stay open during an upgrade: a client that connects while no server
/// runs waits for one.
fn assert_sockets_stay_open(machine: &Machine) {
    machine.output("mkdir -p /run/systemd/system/firstflight.socket.d");
    let file = "/run/systemd/system/firstflight.socket.d/addresses.conf";
    machine.write(
        file,
        "[Socket]
         # Replaces all addresses of the unit.
         ListenStream=
         ListenStream=127.0.0.1:8443
         ListenStream=[::1]:8443
         ListenDatagram=127.0.0.1:8443
         ListenDatagram=[::1]:8443
        ",
    );
    machine.output(
        "systemctl daemon-reload && systemctl stop firstflight
         systemctl enable --now firstflight.socket && systemctl start firstflight",
    );
    let old = main_process(machine);
    machine.output(REINSTALL);
    assert_ne!(main_process(machine), old, "it is upgraded with its sockets");
    machine.output("systemctl is-active firstflight.socket");
    machine.output("systemctl stop firstflight");
    machine.output(&format!("curl --silent --insecure --output /dev/null --max-time 60 {URL}"));
    machine.output("systemctl is-active firstflight");
}

/// Removes the package with its sockets. Configuration, enabled units and state remain for a
/// reinstallation.
fn remove(machine: &Machine) {
    // The package manager's first step: from now on a client must not start the service again.
    machine.output("/var/lib/dpkg/info/firstflight.prerm remove");
    assert_eq!(machine.output("ss --no-header --listening --tcp --udp 'sport = 8443'"), "");
    machine.output("apt-get remove -y firstflight");
    assert!(!machine.run("pgrep firstflight").status.success(), "the service has ended");
    let kept = [
        "/etc/firstflight",
        "/etc/firstflight/firstflight.toml",
        "/etc/logrotate.d/firstflight",
        "/etc/systemd/system/multi-user.target.wants/firstflight.service",
        "/etc/systemd/system/sockets.target.wants/firstflight.socket",
        "/var/lib/firstflight",
        "/var/log/firstflight",
    ];
    assert_eq!(remaining_files(machine).lines().collect::<Vec<_>>(), kept);
}

/// Checks that a reinstallation starts what was enabled, without an upgrade handoff.
fn reinstall(machine: &Machine) {
    let upgrades = "journalctl --sync; journalctl --unit firstflight | grep -c 'has taken over'";
    let before = machine.output(upgrades);
    machine.output("apt-get install -y ./second.deb");
    machine.output("systemctl is-active firstflight.socket firstflight.service");
    assert_eq!(machine.output(upgrades), before, "no process was running");
}

/// Whether early data was sent and accepted.
fn early(response: &str) -> bool {
    response.strip_prefix("200 ").and_then(|bytes| bytes.parse().ok()).is_some_and(|n: i64| n > 0)
}

fn main_process(machine: &Machine) -> String {
    machine.output("systemctl show --property=MainPID --value firstflight").trim().to_owned()
}

/// Files with the package's name, except those of the package manager and of administrators.
fn remaining_files(machine: &Machine) -> String {
    machine.output(
        r"find / -xdev \( -path /proc -o -path /sys -o -path /run -o -path /tmp -o -path /root \
            -o -path /var/lib/dpkg -o -path /var/lib/systemd -o -path /var/log/journal \) -prune \
            -o -name '*firstflight*' -print | sort",
    )
}
